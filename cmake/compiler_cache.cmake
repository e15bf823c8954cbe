# Compiles through ccache where it is installed: what was compiled before, in this or another clone of the same sources, is not
# compiled again.
find_program(UNISONO_CCACHE ccache DOC "ccache, or empty to compile without it")
if(UNISONO_CCACHE)
  # Paths below the sources count as relative, so that clones share results; the precompiled header's macros and times do not
  # count.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
               CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${UNISONO_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endif()
