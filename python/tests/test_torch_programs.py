"""The tests of the programs that compare things in torch, which stand beside the programs, run with those of the package: with the package that is installed, short, and
skipped where namespaces cannot be made.
"""

import importlib
import pathlib
import sys
import unittest

import pytest

pytest.importorskip("torch")
pytest.importorskip("unisono.torch", reason="the backend for torch is not installed", exc_type=ImportError)

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = {"torch_collectives_test": "bench", "torch_training_test": "bench", "compare_methods_test": "examples/torch"}

for _module, _folder in MODULES.items():
    # By its own name, which processes that it starts can import, too.
    sys.path.append(str(ROOT / _folder))
    for _name, _each in vars(importlib.import_module(_module)).items():
        # Under names that differ between the modules.
        if isinstance(_each, type) and issubclass(_each, unittest.TestCase):
            globals()[f"{_module}_{_name}"] = _each
del _each
