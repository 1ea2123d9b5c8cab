# One library for those who embed it, and everything that installs. Included after all folders are there.

# libccks holds the objects of all folders; BUILD_SHARED_LIBS decides its kind.
set(objects "")
foreach(folder spec codegen scheduler gpu)
  if(TARGET ccks_${folder})
    list(APPEND objects $<TARGET_OBJECTS:ccks_${folder}>)
  endif()
  # Objects compiled with flags of their own (the worker, once for each instruction set) are not among their folder's.
  get_property(targets DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "OBJECT_LIBRARY")
      list(APPEND objects $<TARGET_OBJECTS:${target}>)
    endif()
  endforeach()
endforeach()
add_library(ccks ${objects})
add_library(ccks::ccks ALIAS ccks)
set_target_properties(ccks PROPERTIES LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION} SOVERSION 0)
target_link_libraries(ccks
  PUBLIC ccks_headers Threads::Threads
  PRIVATE yaml-cpp fmt::fmt spdlog::spdlog nlohmann_json::nlohmann_json
          PkgConfig::hwloc numa ${CMAKE_DL_LIBS})

include(CMakePackageConfigHelpers)
set(CCKS_INSTALL_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/ccks)
set(CCKS_INSTALL_SPEC_DIR ${CMAKE_INSTALL_DATADIR}/ccks)

install(TARGETS ccks ccks_headers EXPORT ccks-targets)
install(EXPORT ccks-targets NAMESPACE ccks:: DESTINATION ${CCKS_INSTALL_CMAKE_DIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ccks DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh" PATTERN "*.h")
foreach(program ccks-run ccks-gen ccks-bench)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/spec/schema ${PROJECT_SOURCE_DIR}/spec/examples
  DESTINATION ${CCKS_INSTALL_SPEC_DIR} OPTIONAL)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ccks-config.cmake.in ${PROJECT_BINARY_DIR}/ccks-config.cmake
  INSTALL_DESTINATION ${CCKS_INSTALL_CMAKE_DIR} PATH_VARS CCKS_INSTALL_SPEC_DIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ccks-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ccks-config.cmake ${PROJECT_BINARY_DIR}/ccks-config-version.cmake
  DESTINATION ${CCKS_INSTALL_CMAKE_DIR})

# The build tree as a package of its own, for code generated on the way to a run (`./ccks run`).
set(CCKS_INSTALL_SPEC_DIR spec)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ccks-config.cmake.in ${PROJECT_BINARY_DIR}/package/ccks-config.cmake
  INSTALL_DESTINATION ${PROJECT_BINARY_DIR}/package INSTALL_PREFIX ${PROJECT_SOURCE_DIR} PATH_VARS CCKS_INSTALL_SPEC_DIR)
configure_file(${PROJECT_BINARY_DIR}/ccks-config-version.cmake ${PROJECT_BINARY_DIR}/package/ccks-config-version.cmake COPYONLY)
export(EXPORT ccks-targets NAMESPACE ccks:: FILE ${PROJECT_BINARY_DIR}/package/ccks-targets.cmake)

# pkg-config finds the prefix from where its file lies, so that an installed tree can be moved.
file(RELATIVE_PATH CCKS_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
if(NOT BUILD_SHARED_LIBS)
  set(CCKS_PC_LIBS " -lhwloc -lfmt -lspdlog -lyaml-cpp -lnuma -ldl -pthread")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/ccks.pc.in ${PROJECT_BINARY_DIR}/ccks.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ccks.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
