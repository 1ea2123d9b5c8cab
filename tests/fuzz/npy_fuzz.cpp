// Any bytes as a .npy file: a tensor whose bytes fit its shape, or a Status; never a crash.
#include <cstdint>
#include <cstdlib>

#include "ccks/tensor_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const bool void2_is_bf16 : {false, true}) {
    const auto tensor = ccks::parse_npy(std::as_bytes(std::span(data, size)), "fuzz", {void2_is_bf16});
    if (!tensor.ok()) continue;
    std::size_t bytes = ccks::wire::dtype_bytes(tensor->dtype);
    for (const std::int64_t extent : tensor->shape) bytes *= static_cast<std::size_t>(extent);
    if (bytes != tensor->bytes.size()) std::abort();
  }
  return 0;
}
