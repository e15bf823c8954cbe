# cmake -DSOURCE_DIR=… -DOUTPUT=… -P commit.cmake: writes the function that names the commit, if it would differ.
# A tree that is no checkout, or has no git, is "unknown". The index is not refreshed: a build must not change the checkout.

set(commit "")
find_program(git git)
if(git AND EXISTS ${SOURCE_DIR}/.git)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env GIT_OPTIONAL_LOCKS=0 ${git} describe --always --dirty --abbrev=10
    WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT commit)
  set(commit unknown)
endif()
set(text "// Written by cmake/commit.cmake.\n#include \"cli/common/version.h\"\n\n")
string(APPEND text "const char* unisono::cli::commit_text() { return \"${commit}\"; }\n")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${OUTPUT} "${text}")
endif()
