"""The tests of the programs that compare things in torch, which stand beside the programs, run with those of the package: with the package that is installed, short, and
skipped where namespaces cannot be made.
"""

import importlib.util
import pathlib
import unittest

import pytest

pytest.importorskip("torch")
pytest.importorskip("unisono.torch", reason="the backend for torch is not installed", exc_type=ImportError)

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = ("bench/torch_collectives_test.py", "bench/torch_training_test.py", "examples/torch/compare_methods_test.py")


def cases_of(path):
    """Its classes of tests, by names that differ between the modules."""
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = {name: each for name, each in vars(module).items() if isinstance(each, type) and issubclass(each, unittest.TestCase)}
    return {f"{spec.name}_{name}": each for name, each in found.items()}


for _path in MODULES:
    globals().update(cases_of(_path))
