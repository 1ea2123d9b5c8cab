# The JIT: needs no CUDA toolkit to build, so every build has it. What workers include is held in the library as strings.
file(GLOB CCKS_JIT_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
set(CCKS_JIT_ROOT ${PROJECT_SOURCE_DIR}/include)
file(GLOB CCKS_JIT_HEADERS CONFIGURE_DEPENDS
  ${CCKS_JIT_ROOT}/ccks/wire/*.hpp ${CCKS_JIT_ROOT}/ccks/worker/*.hpp ${CCKS_JIT_ROOT}/ccks/worker/*.cuh)
set(CCKS_JIT_EMBEDDED ${CMAKE_CURRENT_BINARY_DIR}/jit_headers.cpp)
add_custom_command(OUTPUT ${CCKS_JIT_EMBEDDED}
  COMMAND ${CMAKE_COMMAND} -DROOT=${CCKS_JIT_ROOT} -DOUTPUT=${CCKS_JIT_EMBEDDED} -P ${CMAKE_CURRENT_LIST_DIR}/embed.cmake
  DEPENDS ${CCKS_JIT_HEADERS} ${CMAKE_CURRENT_LIST_DIR}/embed.cmake VERBATIM)
target_sources(ccks_gpu PRIVATE ${CCKS_JIT_SOURCES} ${CCKS_JIT_EMBEDDED})
