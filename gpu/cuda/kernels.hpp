// Device code that comes with the library, embedded by the build as fatbins (sm_90a code and PTX for other GPUs).
#pragma once

extern "C" {
extern const unsigned char ccks_image_generic_worker[];  // kernel `ccks_worker` over GenericOps
extern const unsigned char ccks_image_clock[];           // kernel `ccks_clock`
}
