# The CUDA side. The host code needs only the headers, since the driver is opened at run time.
include(embed_kernel.cmake)

file(GLOB CCKS_GPU_CUDA_SOURCES CONFIGURE_DEPENDS cuda/*.cpp)
target_sources(ccks_gpu PRIVATE ${CCKS_GPU_CUDA_SOURCES})

ccks_embed_kernel(ccks_gpu cuda/clock.cu)
ccks_embed_kernel(ccks_gpu cuda/generic_worker.cu)
