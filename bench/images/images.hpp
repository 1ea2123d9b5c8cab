// Device code of the benches, embedded by the build where there is an nvcc (CCKS_HAVE_CUDA).
#pragma once

extern "C" {
extern const unsigned char ccks_image_empty_worker[];  // kernel `ccks_worker` whose ops do nothing
}
