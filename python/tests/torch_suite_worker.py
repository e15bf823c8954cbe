"""Runs bodies of PyTorch's own suite for one backend and one number of ranks.

The suite is torch.testing._internal.distributed.distributed_test.

This is a separate process, because the suite reads BACKEND and WORLD_SIZE while it is imported. It reads names of bodies from
standard input, one per line, forks the ranks of each body, and answers with one line of JSON: {name, status, reason, seconds,
output}. Its first line of output lists all bodies, and those that it would skip, with reasons:
{"skipped": {name: reason}, "opened": {name: reason}, "names": [...]}.

A backend that the suite does not know is accepted wherever Gloo is: the suite's decorators are evaluated with BACKEND=gloo,
and what runs later sees the backend's own name. All backends also get the bodies of all_to_all on the CPU, which the suite
opens for MPI only.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import unittest

import torch_ranks

OPENED = "Only MPI supports"  # begin of the reason with which the suite skips some CPU bodies for all backends but MPI


class Reached(Exception):
    """Raised by the stub that replaces a body: it shows that none of the body's decorators skips the body."""


class Suite:
    """The suite's bodies, bound to one backend and number of ranks. There is one per process."""

    def __init__(self, backend, ranks, modules):
        os.environ.update(BACKEND="gloo", WORLD_SIZE=str(ranks), INIT_METHOD="file:///set-for-each-body", OMP_NUM_THREADS="1")
        self.ranks = ranks
        for module in modules:
            importlib.import_module(module)
        self._open_gates()
        self.module = importlib.import_module("torch.testing._internal.distributed.distributed_test")
        self._let_in(backend)
        base = (self.module.TestDistBackend, self.module.DistributedTest._DistTestBase)
        self.case = type("Bodies", base, {"__module__": __name__})
        self.names = unittest.TestLoader().getTestCaseNames(self.case)

    def _open_gates(self):
        """Replaces the suite's decorator before the suite is imported."""
        from torch.testing._internal import common_utils

        original = common_utils.skip_but_pass_in_sandcastle_if

        def skip_if(condition, reason):
            if condition and reason.startswith(OPENED):
                return lambda body: body.__dict__.update(opened_by_unisono=reason) or body
            return original(condition, reason)

        common_utils.skip_but_pass_in_sandcastle_if = skip_if

    def _let_in(self, backend):
        """Settings that bodies read while they run; applied after the import."""
        module = self.module
        os.environ["BACKEND"] = module.BACKEND = backend
        if backend == "gloo":
            return
        for feature in module.DistTestCases.backend_feature.values():
            if "gloo" in feature:
                feature.add(backend)
        module.DistTestCases.backend_feature["plugin"].add(backend)
        if (
            os.environ.get("UNISONO_TORCH_SUITE_NO_PROFILING") is None
        ):  # the backend's profiling events have names such as unisono:all_reduce
            for known in (module.PROFILING_SUPPORTED_BACKENDS, module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
                known.append(backend)
        base = module.DistributedTest._DistTestBase
        base._test_accumulate_gradients_no_sync = as_gloo(module, base._test_accumulate_gradients_no_sync)

    def skip_reason(self, name):
        """Returns the reason for which the suite skips a body; None if the suite runs it. Runs no body: the body's decorators
        are called around a stub.
        """
        from torch.testing._internal.common_distributed import TEST_SKIPS

        function = getattr(self.case, name)
        if getattr(function, "__unittest_skip__", False):
            return function.__unittest_skip_why__
        cell, body = innermost(function)
        if cell is None:
            return None
        environment = dict(os.environ)
        cell.cell_contents = stub
        try:
            function(object())
        except Reached:
            return None
        except unittest.SkipTest as skip:
            return str(skip)
        except SystemExit as end:
            return next((skip.message for skip in TEST_SKIPS.values() if skip.exit_code == end.code), f"exit code {end.code}")
        finally:
            cell.cell_contents = body
            os.environ.clear()
            os.environ.update(environment)
            importlib.import_module("torch.distributed").set_debug_level_from_env()
        return None

    def run(self, name, timeout_s):
        started = time.monotonic()
        common = importlib.import_module("torch.testing._internal.common_distributed")
        common.initialize_temp_directories()
        directory = os.environ["TEMP_DIR"]
        self.module.INIT_METHOD = os.environ["INIT_METHOD"]
        barrier = multiprocessing.get_context("fork").Barrier(self.ranks)
        try:
            pids = torch_ranks.fork_ranks(self.ranks, lambda rank: self._run_rank(rank, name, directory, barrier), directory)
            codes, timed_out = torch_ranks.wait_for_all(pids, timeout_s)
            output = {rank: torch_ranks.read_output(directory, rank) for rank in range(self.ranks)}
        finally:
            common.cleanup_temp_dir()
        status, reason = judge(codes, timed_out, timeout_s, common.TEST_SKIPS)
        kept = {} if status in ("passed", "skipped") else {str(rank): text for rank, text in output.items()}
        return {
            "name": name,
            "status": status,
            "reason": reason,
            "seconds": round(time.monotonic() - started, 3),
            "output": kept,
        }

    def _run_rank(self, rank, name, directory, barrier):
        self._use_barrier(barrier)
        here, there = (
            multiprocessing.Pipe()
        )  # the suite sends causes of failures through a pipe; nobody reads it, because the output shows them
        self.case._run(rank, name, f"{directory}/rendezvous", there, fake_pg=False)
        here.close()

    def _use_barrier(self, barrier):
        """Replaces the suite's barrier, which polls files ten times a second, by one that wakes at once."""
        suites = self.module.Barrier.sync

        def sync(wait_for=None, timeout=10):
            if wait_for not in (None, self.ranks):
                return suites(wait_for, timeout)
            return barrier.wait(max(timeout, 30))

        self.module.Barrier.sync = sync


def stub(*_, **__):
    raise Reached


def as_gloo(module, function):
    """Wraps a helper of bodies so that it sees Gloo's name. The helper chooses a model on the CPU or on GPUs by the backend's
    name, and knows few names."""

    def chosen(*positional, **named):
        name, module.BACKEND = module.BACKEND, "gloo"
        try:
            return function(*positional, **named)
        finally:
            module.BACKEND = name

    return chosen


def innermost(function):
    """Returns the body below all decorators, and the closure's cell that holds it: (cell, body). Without decorators: (None,
    function)."""
    cell = None
    while hasattr(function, "__wrapped__"):
        inner = function.__wrapped__
        cells = [c for c in function.__closure__ or () if c.cell_contents is inner]
        if not cells:
            break
        cell, function = cells[0], inner
    return cell, function


def judge(codes, timed_out, timeout_s, skips):
    """Returns (status, reason). This is stricter than the suite, which checks only rank 0 if no rank ended with the exit code
    for an exception."""
    if timed_out:
        return "timed out", f"ended by force after {timeout_s:g} s"
    messages = {skip.exit_code: skip.message for skip in skips.values()}
    if all(code == 0 for code in codes):
        return "passed", ""
    if codes[0] in messages and all(code == 0 or code in messages for code in codes):
        return "skipped", messages[codes[0]]
    wrong = {rank: code for rank, code in enumerate(codes) if code}
    return "failed", ", ".join(
        f"rank {rank}: " + (f"signal {-code}" if code < 0 else f"exit code {code}") for rank, code in wrong.items()
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--import", dest="modules", action="append", default=[])
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output printed during imports must not be taken for an answer
    scratch = tempfile.mkdtemp(prefix="torch_suite.")  # bodies leave files in the temporary folder
    tempfile.tempdir = os.environ["TMPDIR"] = scratch
    try:
        suite = Suite(options.backend, options.ranks, options.modules)
        reasons = {name: suite.skip_reason(name) for name in suite.names}
        opened = {name: getattr(getattr(suite.case, name), "opened_by_unisono", None) for name in suite.names}
        contents = {
            "names": suite.names,
            "skipped": {n: r for n, r in reasons.items() if r},
            "opened": {n: r for n, r in opened.items() if r},
        }
        print(json.dumps(contents), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(suite.run(line.strip(), options.timeout)), file=answers, flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
