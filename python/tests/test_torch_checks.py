"""The checks of torch_checks/ with the backend "unisono".

UNISONO_CHECKS_BACKEND=gloo          with another backend
UNISONO_CHECKS_ITERATIONS=10000      iterations of endurance.py's checks; default 2000
"""

import os
import pathlib
import sys

import pytest

pytest.importorskip("torch")
os.environ["BACKEND"] = os.environ.get("UNISONO_CHECKS_BACKEND", "unisono")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from torch_checks import common, launcher  # noqa: E402

common.import_checks()
CASES = [(module, function, ranks) for (module, function), options in common.CHECKS.items() for ranks in options["ranks"]]


@pytest.fixture(scope="module", autouse=True)
def backend():
    if os.environ["BACKEND"] == "unisono":
        pytest.importorskip("unisono.torch", reason="the backend for torch is not installed", exc_type=ImportError)
    yield
    launcher.stop()


@pytest.mark.parametrize("module,function,ranks", CASES, ids=lambda value: str(value))
def test_check(module, function, ranks):
    launcher.run_check(module, function, ranks)


def test_a_rank_that_fails_is_named():
    """The launcher itself: a function that is not a check fails on all ranks."""
    run = launcher.run_ranks("collectives", "no_such_function", 2)
    assert run.failed_ranks() == [0, 1]
    with pytest.raises(AssertionError, match="rank [01]: code 10"):
        run.raise_if_failed()
