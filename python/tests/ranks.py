"""Runs a function of a test module in several processes, one per rank, which meet through a file.

  results = ranks.run(function, 3, tmp_path)      # results by rank; fails if a process failed
  ended = ranks.run(function, 3, tmp_path, may_fail=True)   # by rank: result, code and text

The function gets `arguments`. It runs in a fresh interpreter that has imported only its module.
"""

import contextlib
import dataclasses
import importlib
import os
import pickle
import subprocess
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))


@dataclasses.dataclass
class Ended:
    result: object
    code: int
    text: str


def environment(rank, world_size, folder, extra=None):
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("UNISONO_", "MASTER_", "SLURM_", "OMPI_"))
    }
    variables |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "UNISONO_RENDEZVOUS": f"file://{folder}/rendezvous",
        "UNISONO_JOB": os.path.basename(folder),
    }
    return variables | {"PYTHONPATH": FOLDER, "PYTHONFAULTHANDLER": "1", "OMP_NUM_THREADS": "1"} | (extra or {})


def start(function, rank, world_size, folder, arguments=(), extra=None):
    """Starts a process that calls the function and writes the result to a file in the folder."""
    argv = [
        sys.executable,
        "-c",
        "import ranks, sys; ranks.child(*sys.argv[1:])",
        function.__module__,
        function.__name__,
        os.path.join(folder, f"result-{rank}"),
        pickle.dumps(arguments).hex(),
    ]
    return subprocess.Popen(
        argv, env=environment(rank, world_size, folder, extra), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def child(module, name, path, arguments):
    result = getattr(importlib.import_module(module), name)(*pickle.loads(bytes.fromhex(arguments)))
    with open(path + ".new", "wb") as file:
        pickle.dump(result, file)
    os.rename(path + ".new", path)


def result_of(folder, rank):
    path = os.path.join(folder, f"result-{rank}")
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        return pickle.load(file)


def run(function, world_size, folder, arguments=(), extra=None, timeout=90, may_fail=False):
    folder = str(folder)
    processes = [start(function, rank, world_size, folder, arguments, extra) for rank in range(world_size)]
    ended = []
    try:
        for rank, process in enumerate(processes):
            text, _ = process.communicate(timeout=timeout)
            ended.append(Ended(result_of(folder, rank), process.returncode, text))
    finally:
        for process in processes:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()
    if may_fail:
        return ended
    for rank, end in enumerate(ended):
        assert end.code == 0, f"rank {rank} ended with {end.code}:\n{end.text}\n" + "\n".join(
            f"rank {other}: {e.code}: {e.text}" for other, e in enumerate(ended)
        )
    return [end.result for end in ended]
