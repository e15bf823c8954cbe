"""Shared by the checks of an installed Unisono: commands that must succeed, and programs run as two ranks."""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS = 2


def run(argv, seconds, **more):
    """The output; ends the check if the command fails or takes too long."""
    answer = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, **more)
    if answer.returncode != 0:
        sys.exit(f"{' '.join(argv)} ended with {answer.returncode}:\n{answer.stdout[-4000:]}")
    return answer.stdout


def run_ranks(program, folder, libraries=None):
    """All ranks of one program at once; they meet at a file. `libraries`: a folder of shared libraries that are installed
    nowhere."""
    meeting = "file://" + os.path.join(folder, "meeting-" + os.path.basename(program))
    base = {**os.environ, "WORLD_SIZE": str(RANKS), "UNISONO_RENDEZVOUS": meeting}
    if libraries:
        base["LD_LIBRARY_PATH"] = libraries
    ranks = [
        subprocess.Popen(
            [program], env={**base, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(RANKS)
    ]
    good = True
    for rank, process in enumerate(ranks):
        try:
            output = process.communicate(timeout=60)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()[0] + "not finished in 60 s\n"
        print(f"{os.path.basename(program)}: {output}", end="")
        good = good and process.returncode == 0
    if not good:
        sys.exit(f"{program} failed")


def needed(program):
    """The shared libraries that the program itself asks for."""
    dynamic = run(["readelf", "-d", program], 60)
    return [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line]


def expect_library(program, shared):
    """That it uses libunisono.so, or does not: a link may quietly have taken the other library."""
    uses = "libunisono.so.0" in needed(program)
    if uses != shared:
        sys.exit(
            f"{program} {'uses' if uses else 'does not use'} libunisono.so.0, but was to be linked with the {'shared' if shared else 'static'} library"
        )


def pkg_config(library_folder, *words):
    environment = {**os.environ, "PKG_CONFIG_PATH": os.path.join(library_folder, "pkgconfig")}
    return run(["pkg-config", *words, "unisono"], 60, env=environment).split()


def build_with_pkg_config(library_folder, folder, static):
    """Both programs, each by one call of its compiler; their paths."""
    words = ["--static", "--cflags", "--libs"] if static else ["--cflags", "--libs"]
    flags = pkg_config(library_folder, *words)
    programs = []
    for source, compiler in (
        ("consumer.c", ["cc", "-std=c99", "-Wpedantic", "-Werror"]),
        ("consumer.cc", ["c++", "-std=c++20"]),
    ):
        program = os.path.join(folder, f"pkgconfig_{'static' if static else 'shared'}_{source.replace('.', '_')}")
        run([*compiler, "-Wall", "-Wextra", os.path.join(HERE, source), "-o", program, *flags], 120)
        expect_library(program, shared=not static)
        programs.append(program)
    return programs
