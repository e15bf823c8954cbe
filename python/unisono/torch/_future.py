"""Futures of operations that identify their callbacks.

A callback runs when its operation ends: on one rank before, on another after the main thread has started its next collective. So ranks
match its calls by identity (which operation, which callback, which call), not by call order.
"""

from typing import Any, Callable, Sequence, Set

import torch

from unisono import _torch

_MASK = (1 << 64) - 1

to_come: Set[Any] = set()
"""Callbacks that have not ended. The program's end waits for them: a library thread that calls one later would crash the process."""


def _mixed(a: int, b: int) -> int:
    x = (a * 0x9E3779B97F4A7C15 + b + 1) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return (x ^ (x >> 31)) or 1


class Future(torch.futures.Future):
    """Like torch.futures.Future; `then` and `add_done_callback` identify their callbacks, so that ranks can match the callbacks' calls."""

    def __init__(self, number: int, devices: Sequence[torch.device]) -> None:
        super().__init__(devices=list(devices))
        self._devices = devices
        self._place = _mixed(number, 0)
        self._callbacks = 0

    def _next_place(self) -> int:
        self._callbacks += 1
        return _mixed(self._place, self._callbacks)

    def then(self, callback: Callable[["Future"], Any]) -> "Future":
        place = self._next_place()
        child = Future(place, self._devices)

        def run(future: Any) -> Any:
            before = _torch._enter_place(place)
            try:
                return callback(self)
            finally:
                _torch._leave_place(before)
                to_come.discard(run)

        to_come.add(run)
        _torch._pass_on(super().then(run), child)
        return child

    def add_done_callback(self, callback: Callable[["Future"], None]) -> None:
        place = self._next_place()

        def run(future: "Future") -> None:
            before = _torch._enter_place(place)
            try:
                callback(self)
            finally:
                _torch._leave_place(before)
                to_come.discard(run)

        to_come.add(run)
        super().add_done_callback(run)
