"""Futures of operations that identify their callbacks.

A callback runs when its operation ends: on one rank before, on another after the main thread has started its next collective.
So ranks match the callback's calls by identity (which operation, which callback, which call), not by call order.
"""

import os
from typing import Any, Callable, Sequence

import torch

from unisono import _torch

_MASK = (1 << 64) - 1


def _mixed(a: int, b: int) -> int:
    x = (a * 0x9E3779B97F4A7C15 + b + 1) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return (x ^ (x >> 31)) or 1


class Future(torch.futures.Future):
    """Like torch.futures.Future; `then` and `add_done_callback` identify their callbacks, so that ranks can match the
    callbacks' calls."""

    def __init__(self, number: int, devices: Sequence[torch.device]) -> None:
        super().__init__(devices=list(devices))
        self._devices = devices
        self._process = os.getpid()
        self._callback_id = _mixed(number, 0)
        self._callbacks = 0

    def _next_callback_id(self) -> int:
        self._callbacks += 1
        return _mixed(self._callback_id, self._callbacks)

    def wait(self) -> Any:
        if os.getpid() != self._process and not self.done():
            raise RuntimeError(
                f"this process was forked from a member (pid {self._process}), where the future completes: wait for it there"
            )
        _torch._wait_for(self)  # runs the handlers of signals meanwhile
        return super().wait()

    def then(self, callback: Callable[["Future"], Any]) -> "Future":
        callback_id = self._next_callback_id()
        child = Future(callback_id, self._devices)

        def run(future: Any) -> Any:
            before = _torch._enter_callback(callback_id)
            try:
                return callback(self)
            finally:
                _torch._leave_callback(before)

        _torch._pass_on(super().then(run), child)
        _torch._wait_in_backward(child)
        return child

    def add_done_callback(self, callback: Callable[["Future"], None]) -> None:
        callback_id = self._next_callback_id()

        def run(future: "Future") -> None:
            before = _torch._enter_callback(callback_id)
            try:
                callback(self)
            finally:
                _torch._leave_callback(before)

        super().add_done_callback(run)
