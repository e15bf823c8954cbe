"""PyTorch's own tests with the backend "unisono", with 3 ranks.

Every test body that Gloo passes on the CPU: torch_suite.py, torch_suite_bodies.txt.

UNISONO_TORCH_SUITE_RANKS=3,4,8    with these numbers of ranks
UNISONO_TORCH_SUITE_BACKEND=gloo   with another backend
UNISONO_TORCH_SUITE_LIST=1         compares the list with what Gloo passes at present
"""

import os
import sys
import pathlib

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import torch_suite  # noqa: E402

BACKEND = os.environ.get("UNISONO_TORCH_SUITE_BACKEND", "unisono")
RANKS = [int(ranks) for ranks in os.environ.get("UNISONO_TORCH_SUITE_RANKS", "3").split(",")]
CASES = [(ranks, name) for ranks in RANKS for name in torch_suite.listed_bodies(ranks)]


@pytest.fixture(scope="module")
def worker_of():
    """Keeps one worker process per number of ranks. A worker is started when its first body runs."""
    if BACKEND == "unisono":
        pytest.importorskip("unisono.torch", reason="the backend for torch is not installed", exc_type=ImportError)
    workers = {}

    def get(ranks):
        if ranks not in workers:
            workers[ranks] = torch_suite.Worker(BACKEND, ranks)
        return workers[ranks]

    yield get
    for worker in workers.values():
        worker.close()


@pytest.mark.parametrize("ranks,name", CASES, ids=lambda value: str(value))
def test_body_passes_as_with_gloo(worker_of, ranks, name):
    if BACKEND != "gloo" and name in torch_suite.BOUND_TO_GLOO:
        pytest.skip("bound to Gloo: " + torch_suite.BOUND_TO_GLOO[name])
    worker = worker_of(ranks)
    result = worker.run(name)
    if BACKEND == "gloo" and name in worker.opened and result["status"] == "failed":
        pytest.skip("Gloo has no all_to_all of lists whose tensors differ in size")
    output = "\n".join(f"--- rank {rank}\n{text}" for rank, text in result["output"].items())
    assert result["status"] == "passed", f"{result['status']}: {result['reason']}\n{output}"


# Runs on request only, because it checks Gloo and the installed torch, not this library, and takes six minutes. Run it for a
# new version of torch.
@pytest.mark.skipif(not os.environ.get("UNISONO_TORCH_SUITE_LIST"), reason="runs Gloo for minutes; UNISONO_TORCH_SUITE_LIST=1")
@pytest.mark.parametrize("ranks", torch_suite.NUMBERS_OF_RANKS)
def test_list_is_what_gloo_passes(ranks):
    listed = set(torch_suite.listed_bodies(ranks))
    with torch_suite.Worker("gloo", ranks) as worker:
        results = [worker.run(name) | {"opened": worker.opened.get(name)} for name in worker.names]
    assert torch_suite.to_list(results) == listed


def test_every_bound_body_is_one_that_gloo_passes():
    listed = {name for ranks in torch_suite.NUMBERS_OF_RANKS for name in torch_suite.listed_bodies(ranks)}
    assert torch_suite.BOUND_TO_GLOO.keys() <= listed
