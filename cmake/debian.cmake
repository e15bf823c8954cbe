# Run by CPack over the installed files before it packs them: what Debian wants otherwise than `cmake --install` does.
set(usr ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr)
if(NOT EXISTS ${usr}/bin/unisono)
  message(FATAL_ERROR "debian.cmake: ${usr}/bin/unisono does not exist; build the tool first")
endif()
set(doc ${usr}/share/doc/unisono)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(strip --strip-debug ${usr}/lib/libunisono.a)
# Debian's own format; the date is SOURCE_DATE_EPOCH if that is set.
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
configure_file(${CPACK_UNISONO_PACKAGING}/changelog.in ${doc}/changelog @ONLY)
# -n: no time and no name in it, so that the same files make the same package.
file(GLOB manuals ${usr}/share/man/man1/*.1)
run(gzip -9 -n ${manuals} ${doc}/changelog)
file(REMOVE ${doc}/LICENSE)
configure_file(${CPACK_UNISONO_PACKAGING}/copyright ${doc}/copyright COPYONLY)
file(MAKE_DIRECTORY ${usr}/share/zsh/vendor-completions ${usr}/share/lintian/overrides)
file(GLOB completions ${usr}/share/zsh/site-functions/*)
file(COPY ${completions} DESTINATION ${usr}/share/zsh/vendor-completions)
file(REMOVE_RECURSE ${usr}/share/zsh/site-functions)
configure_file(${CPACK_UNISONO_PACKAGING}/lintian-overrides ${usr}/share/lintian/overrides/unisono COPYONLY)
