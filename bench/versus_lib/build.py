"""Finds the peers, says how to install those that are missing, and builds all programs of the comparison."""

import os
import shutil
import subprocess
import sys

PACKAGES = {"openmpi": ["openmpi-bin", "libopenmpi-dev"], "mpich": ["mpich", "libmpich-dev"], "gloo": ["libgloo-dev"]}
# Part of the other libraries' arithmetic is in their headers, so they are compiled with every optimization for this machine.
FLAGS = ["-std=c++20", "-O3", "-march=native"]


def is_installed(package):
    answer = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status}", package], capture_output=True, text=True)
    return answer.returncode == 0 and answer.stdout == "installed"


def missing_packages(libraries):
    return [package for library in libraries for package in PACKAGES.get(library, []) if not is_installed(package)]


def install_command(packages):
    prefix = [] if os.geteuid() == 0 else ["sudo"]
    return prefix + ["apt-get", "install", "-y", "--no-install-recommends", *packages]


def is_newer(target, sources):
    if not os.path.exists(target):
        return False
    built = os.path.getmtime(target)
    return all(os.path.getmtime(source) <= built for source in sources)


def find_torch():
    """(interpreter, version) of the first Python that can import torch with Gloo, or nothing."""
    question = "import torch, torch.distributed as d; d.ProcessGroupGloo; print(torch.__version__)"
    for interpreter in dict.fromkeys((sys.executable, "/usr/bin/python3")):
        answer = subprocess.run([interpreter, "-c", question], capture_output=True, text=True)
        if answer.returncode == 0:
            return interpreter, answer.stdout.strip()
    return None


def compile_program(compiler, sources, target, root, libraries=(), flags=FLAGS):
    """The path of the program, or raises with the compiler's words."""
    headers = [os.path.join(root, "bench", "harness.h"), os.path.join(root, "bench", "job.h"),
               os.path.join(root, "include", "unisono", "status.h")]
    if is_newer(target, [*sources, *headers]):
        return target
    launcher = ["ccache"] if shutil.which("ccache") else []
    argv = [*launcher, *compiler, *flags, "-I" + os.path.join(root, "include"), *sources, "-o", target, *libraries]
    answer = subprocess.run(argv, capture_output=True, text=True)
    if answer.returncode != 0:
        raise RuntimeError(f"building {os.path.basename(target)} failed:\n{answer.stderr[-2000:]}")
    return target


def build_peer(library, root, out):
    """The start of its command line."""
    bench = os.path.join(root, "bench")
    loop = [os.path.join(bench, "harness.cc"), os.path.join(bench, "job.cc")]
    if library == "torch":
        source = os.path.join(bench, "peers", "callback_loop.cc")
        target, flags = os.path.join(out, "callback_loop.so"), [*FLAGS, "-shared", "-fPIC"]
        compile_program(["g++"], [*loop, source], target, root, (), flags)
        return [find_torch()[0], os.path.join(bench, "peers", "torch_bench.py"), "--loop", target]
    if library == "gloo":
        source = os.path.join(bench, "peers", "gloo_bench.cc")
        return [compile_program(["g++"], [*loop, source], os.path.join(out, "gloo_bench"), root, ["-lgloo", "-lpthread"])]
    source = os.path.join(bench, "peers", "mpi_bench.cc")
    return [compile_program([f"mpicxx.{library}"], [*loop, source], os.path.join(out, f"mpi_bench_{library}"), root)]


def build_tool(name, root, out):
    """A small program that measures the machine: machine_probe, stream_probe."""
    source = os.path.join(root, "bench", name + ".cc")
    return compile_program(["g++"], [source], os.path.join(out, name), root, ["-lpthread"], ["-std=c++20", "-O2"])


def build_ours(root, build_dir):
    """Configures the release preset if need be, and builds the one program that is ours."""
    def checked(argv):
        answer = subprocess.run(argv, cwd=root, capture_output=True, text=True)
        if answer.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)} failed:\n{(answer.stdout + answer.stderr)[-3000:]}")
    if not os.path.exists(os.path.join(build_dir, "build.ninja")):
        checked(["cmake", "--preset", "release", "-B", build_dir])
    checked(["ninja", "-C", build_dir, "collective_bench"])
    return [os.path.join(build_dir, "bench", "collective_bench")]
