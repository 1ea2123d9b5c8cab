# What ccks-gen writes comes from templates/, held in the library as strings; the program itself is in tools/.
file(GLOB CCKS_TEMPLATES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/templates/*.in)
set(CCKS_TEMPLATES_SOURCE ${CMAKE_CURRENT_BINARY_DIR}/templates.cpp)
add_custom_command(OUTPUT ${CCKS_TEMPLATES_SOURCE}
  COMMAND ${CMAKE_COMMAND} -DFOLDER=${CMAKE_CURRENT_SOURCE_DIR}/templates -DOUTPUT=${CCKS_TEMPLATES_SOURCE}
          -P ${CMAKE_CURRENT_SOURCE_DIR}/templates/embed.cmake
  DEPENDS ${CCKS_TEMPLATES} ${CMAKE_CURRENT_SOURCE_DIR}/templates/embed.cmake VERBATIM)
target_sources(ccks_codegen PRIVATE ${CCKS_TEMPLATES_SOURCE})
set_source_files_properties(emit_sources.cpp PROPERTIES COMPILE_DEFINITIONS CCKS_VERSION="${PROJECT_VERSION}")
add_subdirectory(tools)
