"""Runs the test bodies of the installed PyTorch's torch.distributed suite with any backend, and with Gloo as the control.

  python python/tests/torch_suite.py --backends gloo,unisono --ranks 3,8        all bodies, and what differs; exit status 1
  if Gloo passes more
  python python/tests/torch_suite.py --backends gloo --ranks 3 --list           what is run and what the suite leaves out,
  and why
  python python/tests/torch_suite.py --regenerate                               writes anew torch_suite_bodies.txt: what
  Gloo passes here

The suite has about 315 bodies, most of which need GPUs. Each of the others runs in separate processes, forked from one that has
imported torch, and has a timeout.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import time

NUMBERS_OF_RANKS = (3, 4, 8)  # numbers in torch_suite_bodies.txt; a few bodies need exactly 4 ranks or at least 8
HERE = pathlib.Path(__file__).resolve().parent
BODIES = HERE / "torch_suite_bodies.txt"

# Bodies that check Gloo's name or the texts of its errors: no other backend can pass them.
TEXT_OF_TIMEOUT = (
    'expects Gloo\'s words: the error must match " (Timed out|closed|timeout) ", blanks included, within 0.1 s of the time-out'
)
BY_NAME = 'dist.monitored_barrier raises ValueError for every backend whose name is not "gloo"'
WORDS = 'expects Gloo\'s words: "Rank 0 timed out in monitoredBarrier"'
BUILT_IN = 'DDP\'s log must name the backend, and ProcessGroup::getBackendName() is "custom" for all that are not part of torch'
BOUND_TO_GLOO = {
    "test_barrier_timeout_full_group": TEXT_OF_TIMEOUT,
    "test_barrier_timeout_global": TEXT_OF_TIMEOUT,
    "test_barrier_timeout_group": TEXT_OF_TIMEOUT,
    "test_ddp_logging_data_cpu": BUILT_IN,
    "test_monitored_barrier_failure_order": BY_NAME,
    "test_monitored_barrier_gloo": BY_NAME,
    "test_monitored_barrier_gloo_rank_0_timeout": WORDS,
    "test_monitored_barrier_gloo_subgroup": BY_NAME,
    "test_monitored_barrier_wait_all_ranks": BY_NAME,
}

# Modules to import for a backend, in each of its processes.
MODULES = {"unisono": ["unisono.torch"], "disguised": ["torch_suite_disguise"]}


class Worker:
    """A process that runs bodies for one backend and number of ranks: torch_suite_worker.py. Its child processes end with
    it."""

    def __init__(self, backend, ranks, timeout_s=60, modules=()):
        command = [
            sys.executable,
            str(HERE / "torch_suite_worker.py"),
            "--backend",
            backend,
            "--ranks",
            str(ranks),
            "--timeout",
            str(timeout_s),
        ]
        for module in [*MODULES.get(backend, ()), *modules]:
            command += ["--import", module]
        self.backend, self.ranks = backend, ranks
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        answer = self._answer()
        self.names, self.skipped, self.opened = answer["names"], answer["skipped"], answer["opened"]

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker for {self.backend} with {self.ranks} ranks ended with {self.process.wait()}")
        return json.loads(line)

    def run(self, name):
        if name in self.skipped:
            return {"name": name, "status": "skipped", "reason": self.skipped[name], "seconds": 0, "output": {}}
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def listed_bodies(ranks):
    """Returns the bodies to run with this number of ranks, from the list that --regenerate writes. Those are the bodies that
    Gloo passes, and a few that only Gloo fails.
    """
    lines = [line.split() for line in BODIES.read_text().splitlines() if line and not line.startswith("#")]
    return [name for name, numbers in lines if str(ranks) in numbers.split(",")]


def run_all(backend, ranks, options):
    """Runs all bodies with one backend and one number of ranks. Returns {"backend", "ranks", "seconds", "results"}."""
    started = time.monotonic()
    results = []
    with Worker(backend, ranks, options.timeout, options.modules) as worker:
        for name in worker.names:
            if not re.search(options.tests, name):
                continue
            if backend != "gloo" and name in BOUND_TO_GLOO and not options.bound and name not in worker.skipped:
                result = {
                    "name": name,
                    "status": "skipped",
                    "reason": "bound to Gloo: " + BOUND_TO_GLOO[name],
                    "seconds": 0,
                    "output": {},
                }
            elif options.list:
                status = "skipped" if name in worker.skipped else "to run"
                result = {"name": name, "status": status, "reason": worker.skipped.get(name, ""), "seconds": 0, "output": {}}
            else:
                result = worker.run(name)
            results.append(result | {"opened": worker.opened.get(name, "")})
            tell(backend, ranks, result, options)
    return {"backend": backend, "ranks": ranks, "seconds": round(time.monotonic() - started, 1), "results": results}


def tell(backend, ranks, result, options):
    if result["status"] == "skipped" and not options.list:
        return
    reason = f"  ({result['reason']})" if result["reason"] else ""
    print(f"{backend:8} {ranks:2}  {result['status']:9} {result['seconds']:6.2f} s  {result['name']}{reason}", flush=True)
    for rank, text in result["output"].items():
        if not options.quiet:
            print(f"--- {result['name']}, rank {rank}\n{text.rstrip()}", flush=True)


def with_status(run, status):
    return {result["name"] for result in run["results"] if result["status"] == status}


def compare(control, other):
    """Returns the bodies that only the control passes, those that only the other backend passes, and {reason: bodies that the
    control passes and the other backend leaves out}.
    """
    passed, left_out = (
        with_status(control, "passed"),
        {r["name"]: r["reason"] for r in other["results"] if r["status"] == "skipped"},
    )
    excused = collections.defaultdict(list)
    for name in sorted(passed & left_out.keys()):
        if name in BOUND_TO_GLOO:
            excused[left_out[name]].append(name)
    worse = passed - with_status(other, "passed") - {name for names in excused.values() for name in names}
    return sorted(worse), sorted(with_status(other, "passed") - passed), dict(excused)


def print_summary(runs):
    """Prints results, reasons for skipped bodies, and differences to Gloo. Returns whether a backend passes fewer bodies than
    Gloo.
    """
    print("\nbackend  ranks  passed  failed  timed out  skipped  seconds")
    for run in runs:
        count = collections.Counter(result["status"] for result in run["results"])
        numbers = (
            f"{count['passed']:6}  {count['failed']:6}  {count['timed out']:9}  {count['skipped']:7}  {run['seconds']:7.1f}"
        )
        print(f"{run['backend']:8} {run['ranks']:5}  {numbers}")
    for run in runs:
        reasons = collections.Counter(result["reason"] for result in run["results"] if result["status"] == "skipped")
        print(f"\nskipped by {run['backend']} with {run['ranks']} ranks:")
        for reason, count in reasons.most_common():
            print(f"  {count:4}  {reason}")
    less = False
    for run in runs:
        control = next((r for r in runs if r["backend"] == "gloo" and r["ranks"] == run["ranks"]), None)
        if run is control or control is None:
            continue
        worse, better, excused = compare(control, run)
        less = less or bool(worse)
        print(f"\n{run['backend']} beside gloo, {run['ranks']} ranks")
        print("  gloo passes, it does not: " + (", ".join(worse) or "none"))
        print("  it passes, gloo does not: " + (", ".join(better) or "none"))
        for reason, names in excused.items():
            print(f"  left out: {', '.join(names)}: {reason}")
    return less


def to_list(results):
    """Returns the bodies that Gloo passes, and those with all_to_all of lists, which Gloo does not support."""
    return {
        result["name"]
        for result in results
        if result["status"] == "passed" or result["opened"] and result["status"] == "failed"
    }


def regenerate(options):
    passed = collections.defaultdict(list)
    for ranks in NUMBERS_OF_RANKS:
        for name in to_list(run_all("gloo", ranks, options)["results"]):
            passed[name].append(str(ranks))
    version = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    lines = [
        f"# Bodies of PyTorch's suite that Gloo passes on the CPU, or lacks the operation for; ranks; torch {version}.",
        "# Written by torch_suite.py --regenerate.",
    ]
    lines += [f"{name} {','.join(numbers)}" for name, numbers in sorted(passed.items())]
    BODIES.write_text("\n".join(lines) + "\n")
    print(f"{len(passed)} bodies written to {BODIES}")


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="gloo,unisono", help="separated by commas; gloo, if given, is the control")
    parser.add_argument("--ranks", default="3,8", help="separated by commas")
    parser.add_argument("--tests", default="", metavar="REGEX", help="only bodies in whose name this is found")
    parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS", help="per body")
    parser.add_argument(
        "--import", dest="modules", action="append", default=[], metavar="MODULE", help="import it in every process"
    )
    parser.add_argument("--bound", action="store_true", help="try the bodies that are bound to Gloo with other backends too")
    parser.add_argument(
        "--output", type=pathlib.Path, metavar="FILE", help="write all results as JSON, with the output of what failed"
    )
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--quiet", action="store_true", help="no output of failed bodies")
    parser.add_argument("--regenerate", action="store_true", help=f"run Gloo with 3, 4 and 8 ranks and write {BODIES.name}")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    if options.regenerate:
        regenerate(options)
        return 0
    runs = [
        run_all(backend, int(ranks), options) for ranks in options.ranks.split(",") for backend in options.backends.split(",")
    ]
    if options.output:
        options.output.write_text(json.dumps(runs, indent=1))
    less = print_summary(runs)
    return int(less)


if __name__ == "__main__":
    sys.exit(main())
