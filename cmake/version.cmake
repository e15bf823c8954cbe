# The version, from the one header that says it, and the commit, known at build time to those who ask for it.

set(version_header ${CMAKE_CURRENT_LIST_DIR}/../include/unisono/version.h)
file(STRINGS ${version_header} version_line REGEX "^#define UNISONO_VERSION \"[0-9.]+\"$")
string(REGEX REPLACE ".*\"([0-9.]+)\".*" "\\1" UNISONO_VERSION "${version_line}")
if(NOT UNISONO_VERSION)
  message(FATAL_ERROR "${version_header} has no line #define UNISONO_VERSION \"x.y.z\"")
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${version_header})

# unisono_commit: a library of one function. Its source is looked at in every build, and written only when the commit has
# changed, so a commit costs one small compilation and the links of what uses it.
function(unisono_commit_library)
  set(source ${PROJECT_BINARY_DIR}/commit.cc)
  add_custom_target(unisono_commit_source BYPRODUCTS ${source}
    COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DOUTPUT=${source} -P ${PROJECT_SOURCE_DIR}/cmake/commit.cmake
    COMMENT "" VERBATIM)
  add_library(unisono_commit STATIC ${source})
  target_link_libraries(unisono_commit PRIVATE unisono_flags)
  add_dependencies(unisono_commit unisono_commit_source)
endfunction()
