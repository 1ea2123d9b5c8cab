# spec and codegen from the build at CCKS_PREBUILT_DIR. A sanitizer build is about the runtime; these two folders are
# single-threaded, make up most of the project, and are fuzzed under AddressSanitizer anyway.
foreach(folder spec codegen)
  add_library(ccks_${folder} STATIC IMPORTED GLOBAL)
  set_target_properties(ccks_${folder} PROPERTIES IMPORTED_LOCATION ${CCKS_PREBUILT_DIR}/${folder}/libccks_${folder}.a)
  target_include_directories(ccks_${folder} INTERFACE ${PROJECT_SOURCE_DIR})
  target_link_libraries(ccks_${folder} INTERFACE ccks_headers yaml-cpp fmt::fmt nlohmann_json::nlohmann_json)
endforeach()
target_link_libraries(ccks_codegen INTERFACE ccks_spec)

# What links the whole library links the folders.
add_library(ccks INTERFACE)
target_link_libraries(ccks INTERFACE ccks_scheduler ccks_gpu ccks_codegen ccks_spec)
add_library(ccks::ccks ALIAS ccks)
