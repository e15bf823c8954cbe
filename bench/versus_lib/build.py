"""Finds the peers, says how to install those that are missing, and builds all programs of the comparison."""

import os
import shutil
import subprocess

PACKAGES = {"openmpi": ["openmpi-bin", "libopenmpi-dev"], "mpich": ["mpich", "libmpich-dev"], "gloo": ["libgloo-dev"]}
# The peers' arithmetic is partly in their headers: it gets every optimisation that this machine allows.
FLAGS = ["-std=c++20", "-O3", "-march=native"]


def is_installed(package):
    answer = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status}", package], capture_output=True, text=True)
    return answer.returncode == 0 and answer.stdout == "installed"


def missing_packages(peers):
    return [package for peer in peers for package in PACKAGES.get(peer, []) if not is_installed(package)]


def install_command(packages):
    prefix = [] if os.geteuid() == 0 else ["sudo"]
    return prefix + ["apt-get", "install", "-y", "--no-install-recommends", *packages]


def is_newer(target, sources):
    if not os.path.exists(target):
        return False
    built = os.path.getmtime(target)
    return all(os.path.getmtime(source) <= built for source in sources)


def compile_program(compiler, sources, target, root, libraries=(), flags=FLAGS):
    """The path of the program, or raises with the compiler's words."""
    headers = [os.path.join(root, "bench", "harness.h"), os.path.join(root, "include", "unisono", "status.h")]
    if is_newer(target, [*sources, *headers]):
        return target
    launcher = ["ccache"] if shutil.which("ccache") else []
    argv = [*launcher, *compiler, *flags, "-I" + os.path.join(root, "include"), *sources, "-o", target, *libraries]
    answer = subprocess.run(argv, capture_output=True, text=True)
    if answer.returncode != 0:
        raise RuntimeError(f"building {os.path.basename(target)} failed:\n{answer.stderr[-2000:]}")
    return target


def build_peer(peer, root, out):
    bench = os.path.join(root, "bench")
    harness = os.path.join(bench, "harness.cc")
    mpi = os.path.join(bench, "peers", "mpi_bench.cc")
    if peer == "gloo":
        source = os.path.join(bench, "peers", "gloo_bench.cc")
        return compile_program(["g++"], [harness, source], os.path.join(out, "gloo_bench"), root, ["-lgloo", "-lpthread"])
    return compile_program([f"mpicxx.{peer}"], [harness, mpi], os.path.join(out, f"mpi_bench_{peer}"), root)


def build_probe(root, out):
    source = os.path.join(root, "bench", "machine_probe.cc")
    return compile_program(["g++"], [source], os.path.join(out, "machine_probe"), root, ["-lpthread"], ["-std=c++20", "-O2"])


def build_ours(root, build_dir):
    """Configures the release preset if need be, and builds the one program that is ours."""
    def checked(argv):
        answer = subprocess.run(argv, cwd=root, capture_output=True, text=True)
        if answer.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)} failed:\n{(answer.stdout + answer.stderr)[-3000:]}")
    if not os.path.exists(os.path.join(build_dir, "build.ninja")):
        checked(["cmake", "--preset", "release", "-B", build_dir])
    checked(["ninja", "-C", build_dir, "all_reduce_bench"])
    return os.path.join(build_dir, "bench", "all_reduce_bench")
