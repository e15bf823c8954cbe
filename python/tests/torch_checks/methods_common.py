"""Shared by the checks of Unisono's methods, which run with no other backend."""

import os

from . import common

try:
    import unisono.torch as ut
except ImportError:  # the tests are skipped then
    ut = None


def check(**told):
    """As common.check, if the backend is unisono; no check otherwise."""
    if os.environ.get("BACKEND", "unisono") != "unisono":
        return lambda function: function
    return common.check(**told)


__all__ = ["check", "ut"]
