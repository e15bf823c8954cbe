"""Shared by the checks of Unisono's methods, which need the backend unisono."""

import os

from . import common

try:
    import unisono.torch as ut
except ImportError:  # then the tests are skipped
    ut = None


def check(**options):
    """Like common.check if the backend is unisono. Otherwise the function becomes no check."""
    if os.environ.get("BACKEND", "unisono") != "unisono":
        return lambda function: function
    return common.check(**options)


__all__ = ["check", "ut"]
