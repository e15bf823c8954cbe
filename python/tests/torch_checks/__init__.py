"""Checks of everything that PyTorch's suite does not test on the CPU. A check is a program that every rank runs.

The environment variable BACKEND selects the backend.

  python/tests/test_torch_checks.py        runs them all with pytest
  python python/tests/torch_checks/launcher.py gloo collectives:reduce_scatter_list 3       runs one, with three ranks

A check is a function with the decorator `check` of common.py, which says with how many ranks it is run. Operations that Gloo
lacks are in GLOO_CANNOT there: with BACKEND=gloo those parts are left out, and everything passes.
"""
