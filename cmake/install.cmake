# What `cmake --install` puts where, and the package that find_package(unisono) finds.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/unisono)
install(TARGETS unisono EXPORT unisono_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/unisono DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT unisono_targets NAMESPACE unisono:: FILE unisono-targets.cmake DESTINATION ${package_dir})
if(TARGET unisono_tool)
  install(TARGETS unisono_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# The archive needs what it was built with: threads, and Highway's run-time dispatch.
file(WRITE ${PROJECT_BINARY_DIR}/unisono-config.cmake [[
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(PkgConfig)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
include(${CMAKE_CURRENT_LIST_DIR}/unisono-targets.cmake)
]])
write_basic_package_version_file(${PROJECT_BINARY_DIR}/unisono-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/unisono-config.cmake ${PROJECT_BINARY_DIR}/unisono-config-version.cmake DESTINATION ${package_dir})
