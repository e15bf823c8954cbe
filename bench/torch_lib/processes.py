"""Starts the ranks of one job, hands on what rank 0 says while they run, and ends all of them, and no others, whatever
happens."""

import ctypes
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

from versus_lib import child


ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def usual_environment():
    """The environment of ranks: one thread for torch's own arithmetic; this project's module where PYTHONPATH has it, else
    beside the sources if it was built there."""
    built = [str(ROOT / "python")] if list((ROOT / "python/unisono").glob("_torch*.so")) else []
    return {"PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *built]), "OMP_NUM_THREADS": "1"}


def has_backend():
    """Whether ranks can run here, found out in a process of its own."""
    if importlib.util.find_spec("torch") is None:
        return False
    return (
        subprocess.run(
            [sys.executable, "-c", "import unisono.torch"],
            env={**os.environ, **usual_environment()},
            capture_output=True,
        ).returncode
        == 0
    )


class JobFailed(Exception):
    """A rank failed or the time was over; the text has the ranks' last words."""


def end_with_parent():
    """A rank calls this as early as it can. The kernel then kills it when its parent ends, however that ends."""
    parent_dies = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(parent_dies, signal.SIGKILL)


def on_hosts(hosts, argv, variables=None):
    """argv on every host of a network (versus_lib), as the ranks of one job: commands of run_job. variables: of the
    environment, beside those that every rank has."""
    usual = {
        **usual_environment(),
        "WORLD_SIZE": str(hosts.n),
        "GLOO_SOCKET_IFNAME": "eth0",
        "UNISONO_INTERFACE": "eth0",
        **(variables or {}),
    }
    return [(hosts.inside(rank, argv), {**usual, "RANK": str(rank)}) for rank in range(hosts.n)]


def read_lines(stream, take):
    with stream:
        for text in stream:
            if text.startswith("{"):
                take(json.loads(text))


def run_job(commands, limit_s, take):
    """commands: (argv, environment) by rank. take(line) is called, by a thread, with each line of JSON on rank 0's standard
    output. JobFailed."""
    ranks, reader = [], None
    with tempfile.TemporaryFile(mode="w+") as output:
        try:
            for rank, (argv, environment) in enumerate(commands):
                stdout = subprocess.PIPE if rank == 0 else output
                ranks.append(
                    subprocess.Popen(
                        argv,
                        env={**os.environ, **environment},
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=output,
                        text=True,
                        start_new_session=True,
                    )
                )
            reader = threading.Thread(target=read_lines, args=(ranks[0].stdout, take))
            reader.start()
            status = child.wait(ranks, time.monotonic() + limit_s, limit_s)
        finally:
            for rank in ranks:
                child.end(rank)
            if reader:
                reader.join()
        if status != "ok":
            output.seek(0)
            words = output.read()
            raise JobFailed(f"{status}\n{words[-8000:]}\n{status}: {child.last_words(words, 300)}")
