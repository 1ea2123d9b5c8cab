# The CUDA side. nvcc is called directly, so that CMake needs no CUDA language and configures the same everywhere; the host
# code needs only the headers, since the driver is opened at run time.
set(CCKS_CUDA_GENCODE -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_80,code=compute_80
  CACHE STRING "What nvcc compiles the embedded kernels for: native code for Hopper, PTX for everything else")

file(GLOB CCKS_GPU_CUDA_SOURCES CONFIGURE_DEPENDS cuda/*.cpp)
target_sources(ccks_gpu PRIVATE ${CCKS_GPU_CUDA_SOURCES})
target_compile_definitions(ccks_gpu PRIVATE CCKS_HAVE_CUDA)
target_include_directories(ccks_gpu SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})

# ccks_embed_kernel(NAME): compiles cuda/NAME.cu to a fatbin and embeds it as `ccks_image_NAME`.
function(ccks_embed_kernel name)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/cuda/${name}.cu)
  set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin)
  set(embed ${CMAKE_CURRENT_BINARY_DIR}/embed_${name}.cpp)
  add_custom_command(OUTPUT ${fatbin} DEPFILE ${fatbin}.d DEPENDS ${source}
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -O3 ${CCKS_CUDA_GENCODE} -I${PROJECT_SOURCE_DIR}/include
      -MD -MF ${fatbin}.d -MT ${fatbin} -fatbin -o ${fatbin} ${source}
    COMMENT "Compiling ${name}.cu for GPUs" VERBATIM)
  file(CONFIGURE OUTPUT ${embed} @ONLY CONTENT [[
// Made by gpu/cuda.cmake.
asm(R"(
  .section .rodata
  .balign 64
  .global ccks_image_@name@
  ccks_image_@name@:
  .incbin "@fatbin@"
  .byte 0
  .section .note.GNU-stack,"",%progbits
  .text
)");
]])
  set_source_files_properties(${embed} PROPERTIES OBJECT_DEPENDS ${fatbin})
  target_sources(ccks_gpu PRIVATE ${embed})
endfunction()

ccks_embed_kernel(clock)
ccks_embed_kernel(generic_worker)
