#!/usr/bin/env python3
"""Runs the instructions of packaging/Containerfile without a container engine.

  python3 tests/packaging/container_test.py [--check] [--keep]

First it reads the Containerfile: it has only instructions that this program knows, copies what exists, and leaves the names of
packages to
tools/install_dependencies. With --check that is all. Then it makes a root directory for each stage with debootstrap, from the
mirror that this
machine's apt uses, and runs every RUN there by chroot. At the end the entry point tells its version, and two ranks make
all-reduces.

Ends with 77 (skipped) and the reason where the second part cannot run: it needs root, debootstrap and a mirror of Debian 12.
Everything lies in build/container: the base of all stages, which is kept for the next run, and the stages, which are deleted
(--keep: they stay). Mounts and processes live in namespaces of their own, so the kernel removes them with the command that
needed them, however it ends. With ccache on this machine the stages use its cache, too. CMAKE_BUILD_PARALLEL_LEVEL is passed
on.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import unittest

from containerfile import Invalid, ignored_names, named_packages, parse

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
WORK = os.path.join(ROOT, "build", "container")
IMAGE = "debian:bookworm-slim"
SUITE = "bookworm"
CACHE = "/ccache"
SKIPPED = 77
# As in the images called "slim": what a container does not need is not unpacked.
SLIM = "".join(
    f"path-exclude /usr/share/{name}/*\n" for name in ("doc", "groff", "info", "linda", "lintian/overrides", "locale", "man")
)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def write(text, *path):
    with open(os.path.join(*path), "w", encoding="utf-8") as file:
        file.write(text)


# --- checks that only read the file ---------------------------------------------------------------------------------------

class Containerfile(unittest.TestCase):
    def setUp(self):
        self.stages = parse(read("packaging/Containerfile"))
        self.commands = [step.parts["command"] for stage in self.stages for step in stage.steps if step.name == "RUN"]

    def test_file_ends_with_an_entry_point(self):
        self.assertEqual(self.stages[-1].entrypoint, ["unisono"])

    def test_all_stages_begin_with_the_image_that_this_test_makes(self):
        self.assertEqual({stage.image for stage in self.stages}, {IMAGE})

    def test_only_install_dependencies_names_packages(self):
        self.assertIn("tools/install_dependencies build", self.commands)
        for command in self.commands:
            self.assertEqual(named_packages(command), [], command)

    def test_copied_files_exist(self):
        ignored = ignored_names(read(".dockerignore"))
        for stage in self.stages:
            for step in stage.steps:
                if step.name == "COPY" and not step.parts["stage"]:
                    for source in step.parts["sources"].split():
                        self.assertTrue(os.path.exists(os.path.join(ROOT, source)), step)
                        self.assertNotIn(source.split("/")[0], ignored, step)

    def test_presets_and_options_exist(self):
        presets = {preset["name"] for preset in json.loads(read("CMakePresets.json"))["configurePresets"]}
        options = set(re.findall(r"^option\((UNISONO_\w+)", read("CMakeLists.txt"), re.MULTILINE))
        text = "\n".join(self.commands)
        self.assertLessEqual(set(re.findall(r"--preset (\w+)", text)), presets)
        self.assertLessEqual(set(re.findall(r"-D(UNISONO_\w+)=", text)), options)


class Forms(unittest.TestCase):
    """The reader refuses all other forms."""

    def refused(self, text, reason):
        with self.assertRaisesRegex(Invalid, reason):
            parse(text)

    def test_an_unknown_instruction(self):
        self.refused("FROM a\nADD x y\n", "line 2: ADD is not one of")

    def test_an_instruction_before_the_first_stage(self):
        self.refused("RUN true\n", "before the first FROM")

    def test_a_pattern_in_copy(self):
        self.refused("FROM a\nCOPY *.txt /\n", "line 2: COPY in a form")

    def test_a_copy_from_a_later_stage(self):
        self.refused("FROM a\nCOPY --from=b /x /x\nFROM a AS b\n", "no stage of this name")

    def test_run_as_a_list(self):
        self.refused('FROM a\nRUN ["true"]\n', "line 2: RUN in a form")

    def test_an_entry_point_that_is_not_a_list(self):
        self.refused("FROM a\nENTRYPOINT [1]\n", "no list of words")

    def test_a_last_line_with_a_continuation(self):
        self.refused("FROM a\nRUN true \\\n", "goes on in none")

    def test_continued_lines_are_one(self):
        stage, = parse("FROM a AS b\n# comment\nRUN one \\\n  # comment\n  two\n")
        self.assertEqual([(step.line, step.parts["command"]) for step in stage.steps], [(3, "one   two")])

    def test_a_pattern_among_the_ignored_names(self):
        with self.assertRaises(Invalid):
            ignored_names("**/build\n")

    def test_packages_in_a_command_are_found(self):
        self.assertEqual(named_packages("apt-get update && apt-get install -y cmake /x/*.deb && rm x"), ["cmake"])


def check():
    program = unittest.main(argv=[sys.argv[0]], exit=False)
    return program.result.wasSuccessful()


# --- the packages of this machine
# -------------------------------------------------------------------------------------------------------

class Skipped(Exception):
    """Why the instructions cannot be run here."""


def output(*argv):
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout


def package_sources():
    """(address, release) of each of Debian's own archives of SUITE that apt has, the suite itself first."""
    found = []
    for line in output(
        "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)", "Created-By: Packages"
    ).splitlines():
        address, release, component, *origin = line.split(" ")
        known = origin in ([], [""], ["Debian"], ["$(ORIGIN)"])  # it is unknown before the first `apt-get update`
        if component == "main" and known and release in (SUITE, f"{SUITE}-updates", f"{SUITE}-security"):
            found.append((address, release))
    return sorted(dict.fromkeys(found), key=lambda source: source[1] != SUITE)


def apt_settings():
    """How this machine's apt fetches files: proxies and the like, in the form of apt.conf."""
    return "".join(line + "\n" for line in output("apt-config", "dump").splitlines()
                   if re.match(r"Acquire::(?!IndexTargets|Changelogs|CompressionTypes|cdrom)\w", line))


def sources_or_skip():
    if os.geteuid() != 0:
        raise Skipped("making a root directory needs root")
    for program in ("debootstrap", "unshare", "setpriv", "apt-get"):
        if not shutil.which(program):
            raise Skipped(f"{program} is missing (apt-get install debootstrap)")
    sources = package_sources()
    if not sources or sources[0][1] != SUITE:
        raise Skipped(f"apt on this machine has no source of Debian's {SUITE}")
    os.makedirs(WORK, exist_ok=True)
    release = os.path.join(WORK, "Release")
    answer = subprocess.run(["/usr/lib/apt/apt-helper", "download-file", f"{sources[0][0]}dists/{SUITE}/Release", release],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    if answer.returncode != 0:
        reasons = [line for line in answer.stdout.splitlines() if line.startswith("E:")]
        raise Skipped("\n".join(["the mirror of Debian's packages does not answer", *reasons]))
    return sources


# --- root directories
# ----------------------------------------------------------------------------------------------------------------------

# sh -c ENTER sh ROOT CACHE WORKDIR COMMAND: mounts the file systems that an engine gives a container, and runs the command
# inside.
# /dev is made of a few devices, so that nothing in there can harm this machine's; /dev/shm has the 64 MB that engines give it.
ENTER = f"""set -e
mount -t proc proc "$1/proc"
mount -t sysfs -o ro sysfs "$1/sys"
mount -t tmpfs -o mode=755 tmpfs "$1/dev"
for name in null zero full random urandom tty; do : > "$1/dev/$name"; mount --bind "/dev/$name" "$1/dev/$name"; done
mkdir "$1/dev/shm" "$1/dev/pts"
mount -t tmpfs -o size=64m,mode=1777 tmpfs "$1/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$1/dev/pts"
ln -s pts/ptmx "$1/dev/ptmx"
ln -s /proc/self/fd "$1/dev/fd"
if [ -n "$2" ]; then mkdir -p "$1{CACHE}"; mount --bind "$2" "$1{CACHE}"; fi
exec chroot "$1" /bin/sh -c 'cd "$0" && exec /bin/sh -c "$1"' "$3" "$4"
"""


def in_namespaces(argv, seconds, **more):
    """Runs a command that may mount things and start processes: both end with it, and it ends with this program, however that
    ends."""
    return subprocess.run(
        ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", *argv],
        stdin=subprocess.DEVNULL,
        timeout=seconds,
        **more,
    )


def mounts_below(folder):
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return [line.split()[4] for line in file if line.split()[4].startswith(folder + "/")]


def delete(folder):
    """Refuses while something is mounted inside: /dev and the compiler cache of this machine must never be deleted."""
    if mounts_below(folder):
        sys.exit(f"container_test: still mounted: {mounts_below(folder)}; {folder} is not deleted")
    if os.path.exists(folder):
        shutil.rmtree(folder)


def make_base(sources):
    """The root directory that all stages begin with; made anew when it would be another one."""
    base, stamp = os.path.join(WORK, "base"), os.path.join(WORK, "base.txt")
    lists = "".join(f"deb {address} {release} main\n" for address, release in sources)
    wanted = lists + apt_settings() + SLIM
    if os.path.exists(stamp):
        with open(stamp, encoding="utf-8") as file:
            if file.read() == wanted:
                return base
        os.remove(stamp)
    delete(base)
    print(f"== debootstrap {SUITE}", flush=True)
    log = os.path.join(WORK, "debootstrap.log")
    more = ["--include=ca-certificates"] if "https:" in lists else []
    with open(log, "w", encoding="utf-8") as file:
        answer = in_namespaces(
            ["debootstrap", "--variant=minbase", *more, SUITE, base, sources[0][0]],
            1800,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if answer.returncode != 0:
        sys.exit(f"container_test: debootstrap ended with {answer.returncode}; {log} ends with\n{read(log)[-2000:]}")
    write(lists, base, "etc/apt/sources.list")
    write(apt_settings(), base, "etc/apt/apt.conf.d/80machine")
    write(SLIM, base, "etc/dpkg/dpkg.cfg.d/slim")
    write(wanted, stamp)
    return base


class Root:
    """The root directory of a stage, and the state that later instructions see: working directory and environment."""

    def __init__(self, folder, cache):
        self.folder, self.cache, self.workdir = folder, cache, "/"
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}

    def path(self, inside):
        return os.path.join(self.folder, os.path.normpath(os.path.join(self.workdir, inside)).lstrip("/"))

    def run(self, command, seconds=3600):
        """The output of a command by /bin/sh; ends the test if it fails."""
        environment = dict(self.environment)
        if self.cache:
            environment["CCACHE_DIR"] = CACHE
        if "CMAKE_BUILD_PARALLEL_LEVEL" in os.environ:
            environment["CMAKE_BUILD_PARALLEL_LEVEL"] = os.environ["CMAKE_BUILD_PARALLEL_LEVEL"]
        answer = in_namespaces(
            ["sh", "-c", ENTER, "sh", self.folder, self.cache, self.workdir, command],
            seconds,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            sys.exit(f"container_test: {command} ended with {answer.returncode}:\n{answer.stdout[-6000:]}")
        return answer.stdout

    def copy(self, sources, destination, top, ignored):
        """As engines do: a folder stands for what it contains; several sources, or a destination with a slash at its end, go
        into a folder."""
        into = len(sources) > 1 or destination.endswith(("/", "."))
        target = self.path(destination)
        for source in sources:
            found = os.path.normpath(os.path.join(top, source.lstrip("/")))
            if os.path.isdir(found):
                skip = (lambda folder, names: [name for name in names if folder == top and name in ignored])
                shutil.copytree(found, target, symlinks=True, dirs_exist_ok=True, ignore=skip)
            else:
                file = os.path.join(target, os.path.basename(found)) if into else target
                os.makedirs(os.path.dirname(file), exist_ok=True)
                shutil.copy2(found, file)


def new_root(base, name, cache):
    folder = os.path.join(WORK, name)
    delete(folder)
    subprocess.run(["cp", "-a", "--reflink=auto", base, folder], check=True, timeout=300)
    for path in ("etc/resolv.conf", "etc/hosts"):  # engines provide these
        if os.path.exists("/" + path):
            shutil.copyfile("/" + path, os.path.join(folder, path))
    root = Root(folder, cache)
    if cache:
        root.run("apt-get update -qq && apt-get install -y -qq --no-install-recommends ccache")
    return root


def execute(step, root, roots):
    if step.name == "RUN":
        root.run(step.parts["command"])
    elif step.name == "WORKDIR":
        root.workdir = step.parts["path"]
        os.makedirs(root.path("."), exist_ok=True)
    elif step.name == "ENV":
        root.environment[step.parts["name"]] = step.parts["value"]
    elif step.parts["stage"]:
        root.copy(step.parts["sources"].split(), step.parts["destination"], roots[step.parts["stage"]].folder, [])
    else:
        root.copy(step.parts["sources"].split(), step.parts["destination"], ROOT, ignored_names(read(".dockerignore")))


def check_image(root, entrypoint):
    version = re.search(r'UNISONO_VERSION "([0-9.]+)"', read("include/unisono/version.h")).group(1)
    for words, wanted in (
        (["--version"], rf"^unisono {re.escape(version)} \("),
        (["bench", "all-reduce", "-n", "2"], r"all_reduce"),
        (["lab", "--version"], rf"^unisono-lab {re.escape(version)} \("),
    ):
        command = shlex.join([*entrypoint, *words])
        printed = root.run(command, 300)
        print(f"$ {command}\n{printed}", end="")
        if not re.search(wanted, printed):
            sys.exit(f"container_test: {command} does not say {wanted}")
    if "libunisono.so.0" not in root.run("ldconfig -p"):
        sys.exit("container_test: the image has no libunisono.so.0")


def megabytes(folder):
    return int(output("du", "-sm", "--one-file-system", folder).split()[0])


def run_instructions(stages, keep):
    sources = sources_or_skip()
    started = time.monotonic()
    base = make_base(sources)
    cache = output("ccache", "--get-config", "cache_dir").strip() if shutil.which("ccache") else ""
    if cache:
        os.makedirs(cache, exist_ok=True)
    roots = {}
    folders = [f"stage-{number}" for number in range(1, len(stages) + 1)]
    try:
        for folder, stage in zip(folders, stages):
            print(f"== {folder} of {len(stages)} ({time.monotonic() - started:.0f} s)", flush=True)
            root = roots[stage.name] = new_root(base, folder, "" if stage is stages[-1] else cache)
            for step in stage.steps:
                print(f"{step} ({time.monotonic() - started:.0f} s)", flush=True)
                execute(step, root, roots)
        check_image(root, stages[-1].entrypoint)
        print(f"the image adds {megabytes(root.folder) - megabytes(base)} MB to its base; {time.monotonic() - started:.0f} s")
    finally:
        for folder in folders if not keep else []:
            delete(os.path.join(WORK, folder))
    if mounts_below(WORK):
        sys.exit(f"container_test: still mounted: {mounts_below(WORK)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only read the Containerfile")
    parser.add_argument("--keep", action="store_true", help="leave the stages in build/container")
    options = parser.parse_args()
    if not check():
        return 1
    if options.check:
        return 0
    try:
        run_instructions(parse(read("packaging/Containerfile")), options.keep)
    except Skipped as reason:
        print(f"container_test: skipped: {reason}")
        return SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
