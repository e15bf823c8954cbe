# The files that `cmake --install` installs, and the packages that find_package(unisono) and pkg-config find.
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
install(FILES ${PROJECT_BINARY_DIR}/unisono-config.cmake ${PROJECT_BINARY_DIR}/unisono-config-version.cmake
  DESTINATION ${package_dir})

# Relative to itself, so that the package works wherever --prefix or DESTDIR puts it.
file(RELATIVE_PATH UNISONO_PREFIX_FROM_PKGCONFIG /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" UNISONO_PREFIX_FROM_PKGCONFIG "${UNISONO_PREFIX_FROM_PKGCONFIG}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/unisono.pc.in ${PROJECT_BINARY_DIR}/unisono.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/unisono.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(FILES LICENSE README.md CHANGELOG.md ARCHITECTURE.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(CODE
  "set(source \"${PROJECT_SOURCE_DIR}\")\nset(pages \"${PROJECT_BINARY_DIR}/pages/docs\")\nset(folder \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR}/docs\")")
install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/install_pages.cmake)
# Pages name these files.
install(DIRECTORY examples/api examples/kubernetes DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples PATTERN CMakeLists.txt EXCLUDE)

# unisono_install_tool(TARGET NAME): a tool, with its manual page and its completions, which come out of the tool itself.
function(unisono_install_tool target name)
  install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  set(pages ${PROJECT_BINARY_DIR}/pages)
  set(made "")
  foreach(page "${name}.1 man" "${name} completion bash" "_${name} completion zsh" "${name}.fish completion fish")
    separate_arguments(words UNIX_COMMAND "${page}")
    list(POP_FRONT words file)
    add_custom_command(OUTPUT ${pages}/${file} DEPENDS ${target} COMMAND ${CMAKE_COMMAND} -E make_directory ${pages}
      COMMAND $<TARGET_FILE:${target}> ${words} > ${pages}/${file} VERBATIM)
    list(APPEND made ${pages}/${file})
  endforeach()
  add_custom_target(${target}_pages ALL DEPENDS ${made})
  install(FILES ${pages}/${name}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${pages}/${name} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${pages}/_${name} DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${pages}/${name}.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endfunction()
if(TARGET unisono_tool)
  unisono_install_tool(unisono_tool unisono)
endif()
if(TARGET unisono_lab_tool)
  unisono_install_tool(unisono_lab_tool unisono-lab)
endif()
