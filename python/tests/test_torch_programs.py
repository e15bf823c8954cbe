"""Runs the tests of the programs that compare methods in torch, with the installed package. The tests are in the programs'
folders. They are short, and are skipped where network namespaces cannot be made.

UNISONO_LONG_TESTS=1    also runs the tests that train on several hosts, which take three minutes
"""

import importlib
import os
import pathlib
import sys
import unittest

import pytest

pytest.importorskip("torch")
pytest.importorskip("unisono.torch", reason="the backend for torch is not installed", exc_type=ImportError)

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = {"torch_collectives_test": "bench", "torch_training_test": "bench", "compare_methods_test": "research/torch"}

LONG = {
    "test_hosts_train_and_are_gone_afterwards",
    "test_the_long_run_compares_what_there_is",
    "test_over_links_that_lose_packets_all_end_with_the_same_parameters",
    "test_over_thin_links_codecs_send_less",
    "test_ended_from_outside_it_removes_its_hosts",
    "test_killed_it_leaves_no_ranks",
    "test_a_short_run_is_right_and_writes_its_results",
}

for _module, _folder in MODULES.items():
    # The module is imported under its own name, so that its child processes can import it, too.
    sys.path.append(str(ROOT / _folder))
    for _name, _each in vars(importlib.import_module(_module)).items():
        # The module's name is added, because test classes of several modules may have equal names.
        if isinstance(_each, type) and issubclass(_each, unittest.TestCase):
            for _test in LONG & set(vars(_each)) if not os.environ.get("UNISONO_LONG_TESTS") else ():
                setattr(
                    _each,
                    _test,
                    unittest.skip("trains on several hosts, which takes long: UNISONO_LONG_TESTS=1")(getattr(_each, _test)),
                )
            globals()[f"{_module}_{_name}"] = _each
del _each
