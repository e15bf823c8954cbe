"""A process that has torch imported and forks the ranks of checks.

A request is one line of JSON on standard input, and its answer is one line of JSON.

Request: {module, function, ranks, env, timeout_s, lost, fresh}. Answer: {codes, timed_out, outputs, seconds}.
"""

import importlib
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))
import torch_ranks  # noqa: E402


def run_job(job):
    started = time.monotonic()
    directory = tempfile.mkdtemp(prefix="torch_check.")

    def run_rank(rank):
        os.environ.update(job["env"])
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job["ranks"]), CHECK_DIRECTORY=directory, TMPDIR=directory
        )
        if job["fresh"]:
            program = "import sys; from torch_checks import common; common.run(*sys.argv[1:])"
            os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
            os.execv(sys.executable, [sys.executable, "-c", program, job["module"], job["function"]])
        tempfile.tempdir = None
        from torch_checks import common

        common.run(job["module"], job["function"])

    try:
        pids = torch_ranks.fork_ranks(job["ranks"], run_rank, directory)
        codes, timed_out = torch_ranks.wait_for_all(pids, job["timeout_s"], job["lost"])
        outputs = [torch_ranks.read_output(directory, rank) for rank in range(job["ranks"])]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {"codes": codes, "timed_out": timed_out, "outputs": outputs, "seconds": round(time.monotonic() - started, 2)}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ.update(OMP_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1")  # no thread must run when ranks are forked
    # Imports modules that DDP and others import on first use. Otherwise each rank would need seconds for them.
    for module in ("torch._dynamo", "torch._functorch.aot_autograd", "torch._inductor.compile_fx"):
        importlib.import_module(module)
    from torch_checks import common

    common.import_checks()
    for line in sys.stdin:
        print(json.dumps(run_job(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
