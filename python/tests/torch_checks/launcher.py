"""Runs one check with some ranks on this host, and reports which rank failed.

python python/tests/torch_checks/launcher.py BACKEND MODULE:FUNCTION RANKS
"""

import atexit
import dataclasses
import json
import os
import pathlib
import subprocess
import sys

TEMPLATE = pathlib.Path(__file__).with_name("template.py")
template = None


@dataclasses.dataclass
class Run:
    """How a job ended: the exit code of each rank (negative: number of a signal, None: killed by the launcher), and each rank's
    output."""

    codes: list
    timed_out: bool
    outputs: list
    seconds: float
    lost: tuple = ()

    def failed_ranks(self):
        return [rank for rank, code in enumerate(self.codes) if rank not in self.lost and code != 0]

    def raise_if_failed(self):
        failed = self.failed_ranks()
        if failed or self.timed_out:
            ends = ", ".join(
                f"rank {rank}: " + ("ended by force" if self.codes[rank] is None else f"code {self.codes[rank]}")
                for rank in failed
            )
            texts = "".join(f"\n--- rank {rank}\n{text}" for rank, text in enumerate(self.outputs))
            raise AssertionError(f"{'time is up; ' if self.timed_out else ''}{ends} after {self.seconds} s{texts}")


def run_ranks(module, function, ranks, backend=None, timeout_s=60, env=None, lost=(), fresh=False):
    """Runs torch_checks/MODULE.py's FUNCTION in `ranks` processes; ends them after `timeout_s`. backend: default BACKEND,
    then unisono.
    """
    global template
    if template is None or template.poll() is not None:
        template = subprocess.Popen([sys.executable, str(TEMPLATE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(stop)
    environment = {"BACKEND": backend or os.environ.get("BACKEND", "unisono")} | (env or {})
    job = {
        "module": module,
        "function": function,
        "ranks": ranks,
        "env": environment,
        "timeout_s": timeout_s,
        "lost": list(lost),
        "fresh": fresh,
    }
    template.stdin.write(json.dumps(job) + "\n")
    template.stdin.flush()
    answer = template.stdout.readline()
    if not answer:
        raise RuntimeError(f"the template process ended with {template.wait()}")
    return Run(**json.loads(answer), lost=tuple(lost))


def stop():
    if template is not None and template.poll() is None:
        template.stdin.close()
        template.wait()


def run_check(module, function, ranks, backend=None):
    """Runs a check with the arguments of its decorator."""
    from torch_checks import common

    options = common.CHECKS[module, function]
    run = run_ranks(module, function, ranks, backend, options["timeout_s"], options["env"], options["lost"], options["fresh"])
    run.raise_if_failed()
    return run


if __name__ == "__main__":
    sys.path.insert(0, str(TEMPLATE.parent.parent))
    import importlib

    from torch_checks import launcher

    backend_name, check, count = sys.argv[1:]
    module_name, function_name = check.split(":")
    importlib.import_module(f"torch_checks.{module_name}")
    done = launcher.run_check(module_name, function_name, int(count), backend_name)
    for number, text in enumerate(done.outputs):
        print(f"--- rank {number}\n{text}", end="")
    print(f"passed in {done.seconds} s")
