# What `cmake --install` puts where, and the packages that find_package(unisono) and pkg-config find.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/unisono)
set(library_places ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS unisono EXPORT unisono_targets ${library_places})
install(EXPORT unisono_targets NAMESPACE unisono:: FILE unisono-targets.cmake DESTINATION ${package_dir})
set(UNISONO_HAS_SHARED OFF)
if(TARGET unisono_shared)
  set(UNISONO_HAS_SHARED ON)
  # An export of its own, so that who links only the shared library needs nothing of what the archive needs.
  install(TARGETS unisono_shared EXPORT unisono_shared_targets ${library_places})
  install(EXPORT unisono_shared_targets NAMESPACE unisono:: FILE unisono-shared-targets.cmake DESTINATION ${package_dir})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/unisono DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

set(UNISONO_PC_OPENDHT "")
if(UNISONO_OPENDHT)
  set(UNISONO_PC_OPENDHT " -lopendht")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/unisono-config.cmake.in ${PROJECT_BINARY_DIR}/unisono-config.cmake @ONLY)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/unisono-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/unisono-config.cmake ${PROJECT_BINARY_DIR}/unisono-config-version.cmake DESTINATION ${package_dir})

# Relative to itself, so that the package works wherever --prefix or DESTDIR puts it.
file(RELATIVE_PATH UNISONO_PREFIX_FROM_PKGCONFIG /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" UNISONO_PREFIX_FROM_PKGCONFIG "${UNISONO_PREFIX_FROM_PKGCONFIG}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/unisono.pc.in ${PROJECT_BINARY_DIR}/unisono.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/unisono.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(FILES LICENSE README.md CHANGELOG.md ARCHITECTURE.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(CODE "set(source \"${PROJECT_SOURCE_DIR}\")\nset(pages \"${PROJECT_BINARY_DIR}/pages/docs\")\nset(folder \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR}/docs\")")
install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/install_pages.cmake)
# Pages name these files.
install(DIRECTORY examples/api examples/kubernetes DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples PATTERN CMakeLists.txt EXCLUDE)

# The manual page and the completions come out of the tool itself.
if(TARGET unisono_tool)
  install(TARGETS unisono_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  set(tool_pages "")
  function(unisono_tool_page name)
    add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/pages/${name} DEPENDS unisono_tool
      COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/pages
      COMMAND $<TARGET_FILE:unisono_tool> ${ARGN} > ${PROJECT_BINARY_DIR}/pages/${name} VERBATIM)
    set(tool_pages ${tool_pages} ${PROJECT_BINARY_DIR}/pages/${name} PARENT_SCOPE)
  endfunction()
  unisono_tool_page(unisono.1 man)
  unisono_tool_page(unisono completion bash)
  unisono_tool_page(_unisono completion zsh)
  unisono_tool_page(unisono.fish completion fish)
  add_custom_target(unisono_pages ALL DEPENDS ${tool_pages})
  set(pages ${PROJECT_BINARY_DIR}/pages)
  install(FILES ${pages}/unisono.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${pages}/unisono DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${pages}/_unisono DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${pages}/unisono.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
