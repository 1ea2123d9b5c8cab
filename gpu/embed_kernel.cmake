# Device code as bytes in a host program. nvcc is called directly, so that CMake needs no CUDA language and configures the
# same everywhere. Where no nvcc was found this file is not read: callers ask `if(COMMAND ccks_embed_kernel)`.
set(CCKS_CUDA_GENCODE -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_80,code=compute_80
  CACHE STRING "What nvcc compiles the embedded kernels for: native code for Hopper, PTX for everything else")
set(CCKS_CUDA_NATIVE sm_90a CACHE STRING "The architecture that nvcc compiles kernels for of which there is nothing but machine code")
set(CCKS_CUDA_INCLUDE_DIRS ${CUDAToolkit_INCLUDE_DIRS} CACHE INTERNAL "Where <cuda.h> is")
set(CCKS_NVCC ${CUDAToolkit_NVCC_EXECUTABLE} CACHE INTERNAL "nvcc of the toolkit that was found")

# ccks_embed_kernel(TARGET SOURCE [NATIVE | APART] [nvcc options]): compiles SOURCE, relative to the calling folder, to a fatbin, or to machine code
# for CCKS_CUDA_NATIVE alone, as the JIT makes it, and embeds it in TARGET as the bytes from `ccks_image_<name of the file>` to
# `ccks_image_<name>_end`. TARGET is compiled with CCKS_HAVE_CUDA and CCKS_CUDA_NATIVE (a string) and finds <cuda.h>. Not compressed:
# unpacking is 40 % of a load, and in a handoff workers stand still for it. APART is NATIVE for a loop or bodies that are an image of their own (ccks/worker/apart_ops.cuh):
# addresses of functions are real only in relocatable code, which is linked alone.
set(CCKS_APART_REGISTERS 168 CACHE STRING "Registers of a thread in workers whose bodies are an image of their own, as the JIT has it")
function(ccks_embed_kernel target source)
  cmake_parse_arguments(PARSE_ARGV 2 arg "NATIVE;APART" "" "")
  set(link "")
  if(arg_NATIVE OR arg_APART)
    string(REPLACE sm_ compute_ virtual ${CCKS_CUDA_NATIVE})
    set(form -cubin -gencode arch=${virtual},code=${CCKS_CUDA_NATIVE})
    if(arg_APART)
      list(APPEND form -rdc=true -maxrregcount=${CCKS_APART_REGISTERS} -DCCKS_WORKER_APART=1 -DCCKS_WORKER_REGISTERS=${CCKS_APART_REGISTERS})
    endif()
  else()
    set(form -fatbin --no-compress ${CCKS_CUDA_GENCODE})
  endif()
  get_filename_component(name ${source} NAME_WE)
  get_filename_component(source ${source} ABSOLUTE BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
  set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin)
  set(compiled ${fatbin})
  if(arg_APART)
    set(compiled ${CMAKE_CURRENT_BINARY_DIR}/${name}.o.cubin)
    set(link COMMAND ${CCKS_NVCC} -dlink -cubin -rdc=true -gencode arch=${virtual},code=${CCKS_CUDA_NATIVE} -o ${fatbin} ${compiled})
  endif()
  set(embed ${CMAKE_CURRENT_BINARY_DIR}/embed_${name}.cpp)
  get_property(known DIRECTORY PROPERTY CCKS_EMBEDDED)
  if(NOT name IN_LIST known)  # several targets of a folder may embed one kernel
    set_property(DIRECTORY APPEND PROPERTY CCKS_EMBEDDED ${name})
    add_custom_command(OUTPUT ${fatbin} DEPFILE ${fatbin}.d DEPENDS ${source}
      COMMAND ${CCKS_NVCC} -std=c++20 -O3 ${form} -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR} ${arg_UNPARSED_ARGUMENTS}
        -MD -MF ${fatbin}.d -MT ${fatbin} -o ${compiled} ${source}
      ${link}
      COMMENT "Compiling ${name}.cu for GPUs" VERBATIM)
    file(CONFIGURE OUTPUT ${embed} @ONLY CONTENT [[
// Made by embed_kernel.cmake.
asm(R"(
  .section .rodata
  .balign 64
  .global ccks_image_@name@
  ccks_image_@name@:
  .incbin "@fatbin@"
  .global ccks_image_@name@_end
  ccks_image_@name@_end:
  .byte 0
  .section .note.GNU-stack,"",%progbits
  .text
)");
]])
    set_source_files_properties(${embed} PROPERTIES OBJECT_DEPENDS ${fatbin})
  endif()
  target_sources(${target} PRIVATE ${embed})
  target_compile_definitions(${target} PRIVATE CCKS_HAVE_CUDA CCKS_CUDA_NATIVE="${CCKS_CUDA_NATIVE}")
  target_include_directories(${target} SYSTEM PRIVATE ${CCKS_CUDA_INCLUDE_DIRS})
endfunction()
