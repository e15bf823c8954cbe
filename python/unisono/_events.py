"""Hands the library's events on: to the function that was passed as on_event, or else to the logger "unisono"."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from typing import Any, Callable

from unisono import _core

logger = logging.getLogger("unisono")
_LOGGER = 0  # the number of the receiver that logs
_lock = threading.Lock()
_functions: dict[int, Callable[[Any], None]] = {}
_numbers = itertools.count(_LOGGER + 1)
_thread: threading.Thread | None = None


def receiver(function: Callable[[Any], None] | None) -> int | None:
    """Returns the number of the receiver for this function. None stands for the logger.

    Returns None if nobody in Python is to receive the events: UNISONO_LOG is set, so the library itself writes them.
    """
    if function is None and os.environ.get("UNISONO_LOG"):
        return None
    with _lock:
        _start()
        if function is None:
            return _LOGGER
        number = next(_numbers)
        _functions[number] = function
        return number


def _start() -> None:
    global _thread
    if _thread is None:
        _thread = threading.Thread(target=_run, name="unisono-events", daemon=True)
        _thread.start()


def end() -> None:
    """Ends the thread before Python ends, because a thread that still runs then would be killed inside the library.

    unisono._core calls this after it has waited for operations in flight, so events of this time are handed on, too.
    """
    if _thread is not None:
        _core._close_events()
        _thread.join(timeout=10)


def _renew() -> None:
    """Makes a forked child ready for groups of its own. The thread has not survived the fork, and other threads may have held
    locks then."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _core._renew_events()


os.register_at_fork(after_in_child=_renew)


def _run() -> None:
    while (entries := _core._next_events()) is not None:
        for number, event in entries:
            if event is None:
                _functions.pop(number, None)
            else:
                _hand_on(number, event)


def _hand_on(number: int, event: Any) -> None:
    try:
        if number == _LOGGER:
            level = logging.WARNING if event.level == "warning" else logging.INFO
            logger.log(level, "%s (%s; %s)", event.text, event.kind, event.source, extra={"unisono_event": event})
        else:
            _functions[number](event)
    except Exception:  # the next event must still be handed on
        logger.exception("on_event raised an exception")
