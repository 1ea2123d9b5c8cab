// What has to be known of machine code before it is loaded.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "ccks/result.hpp"

namespace ccks::gpu {

/// What op bodies in an image of their own (ccks/worker/apart_ops.cuh) want of the loop that calls them, as ptxas has written it down for the kernel `ccks_bodies`, which calls them too.
struct BodiesNeeds {
  unsigned registers = 0;            // of a thread
  unsigned stack_bytes = 0;          // of a thread
  unsigned static_shared_bytes = 0;  // of a block
};

/// Reads it off a cubin; nothing where the bytes are no ELF file, so that only a driver can tell. invalid_data where bodies could not run in another image's kernel: they
/// have constant memory of their own (a launch binds that of its kernel's image, and bodies would read those), the file is cut off, or it does not say what they need.
Result<std::optional<BodiesNeeds>> bodies_needs(std::span<const std::byte> cubin);

}  // namespace ccks::gpu
