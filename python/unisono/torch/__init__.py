"""The backend `unisono` of torch.distributed.

    import torch.distributed as dist
    import unisono.torch

    dist.init_process_group("unisono")          # as any other backend: torchrun's variables, or init_method

Importing it registers the backend. Everything that torch.distributed, DistributedDataParallel, FSDP, DTensor and ZeroRedundancyOptimizer do with a
backend for CPU tensors works; `Options` and `call_options` choose transport, codec and schedule.
"""

import atexit
import builtins
import contextlib
import datetime
import functools
import os
import threading
import time
from typing import Any, Callable, Iterator, List, Optional, Tuple

import torch
import torch.distributed as dist

try:
    from unisono import _torch
except ImportError as error:
    raise ImportError("this build of unisono has no backend for torch: it was built where torch was not installed, or for another version of torch; run `pip install --no-build-isolation .` again") from error

from unisono._torch import Options
from unisono.torch._future import to_come

__all__ = ["Options", "TimeoutError", "call_options", "backend_of", "monitored_barrier", "report"]


class TimeoutError(dist.DistBackendError, builtins.TimeoutError):  # noqa: A001  # both names are what users catch
    """An operation passed its deadline. The text names the late ranks and the missing data."""


_torch._set_timed_out_class(TimeoutError)

# Backends that have not been shut down, by their groups' names; they must end before the interpreter does. torch keeps the C++ objects, not these
# Python objects, so weak references would soon be dead.
_backends: List[Tuple[str, Any]] = []
EXIT_WAIT_S = 10.0  # for running operations with callbacks, when a program ends


def _keep(name: str, backend: Any) -> None:
    _backends[:] = [each for each in _backends if not each[1]._over]
    _backends.append((name, backend))


def _timeout_of(given: datetime.timedelta) -> datetime.timedelta:
    """UNISONO_TIMEOUT_MS, if the script keeps torch's default. ValueError: it is not a positive number."""
    text = os.environ.get("UNISONO_TIMEOUT_MS", "")
    if not text or given != dist.constants.default_pg_timeout:
        return given
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"UNISONO_TIMEOUT_MS is '{text}'; needed: milliseconds, from 1")
    return datetime.timedelta(milliseconds=int(text))


def _create(about: Any, options: Optional[Options]) -> Any:
    ranks = list(about.global_ranks_in_group)
    for name, known in _backends:  # one for all devices
        if name == about.group_id and known.size() == about.group_size and known.rank() == about.group_rank and not known._over:
            return known
    own = Options() if options is None else options._copy()
    own._timeout = _timeout_of(about.timeout)
    own.global_ranks_in_group = ranks or list(range(about.group_size))  # for torch's records of each group's operations
    backend = _torch._join(about.store, about.group_rank, about.group_size, own)
    _keep(about.group_id, backend)
    return backend


def _shrunk(make: Callable[..., dist.ProcessGroup]) -> Callable[..., dist.ProcessGroup]:
    """The backend that torch makes after dist.shrink_group(). torch treats every group of CPU tensors as a Gloo group, so DistributedDataParallel
    would then read invalid memory; this names the right backend."""

    @functools.wraps(make)
    def made(backend: Any, ranks: Any, metadata: Any, is_default: bool) -> dist.ProcessGroup:
        group = make(backend, ranks, metadata, is_default)
        if isinstance(backend, _torch.Backend):
            group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, backend)
            group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
            _keep(metadata["new_group_name"], backend)
        return group

    return made


if hasattr(dist.distributed_c10d, "_create_shrunk_process_group"):
    dist.distributed_c10d._create_shrunk_process_group = _shrunk(dist.distributed_c10d._create_shrunk_process_group)


@atexit.register
def _end_all() -> None:
    end, pause = time.monotonic() + EXIT_WAIT_S, threading.Event()
    while to_come and time.monotonic() < end:
        pause.wait(0.005)
    for _, backend in _backends:
        if to_come:
            backend.abort()
        backend.shutdown()


def _leave_to_the_parent() -> None:
    """In a forked child: the child must not end its parent's backends."""
    for _, backend in _backends:
        backend._abandon()
    _backends.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)


if "UNISONO" not in dist.Backend._plugins:
    dist.Backend.register_backend("unisono", _create, extended_api=True, devices=["cpu", "cuda"])


def backend_of(group: Optional[dist.ProcessGroup] = None) -> Any:
    """The Unisono backend of a process group; by default of the default group. ValueError: it has another backend."""
    group = dist.group.WORLD if group is None else group
    backend = group._get_backend(torch.device("cpu"))
    if not isinstance(backend, _torch.Backend):
        raise ValueError(f"this process group has the backend {backend.name()}, not unisono")
    return backend


def report(group: Optional[dist.ProcessGroup] = None) -> dict:
    """Report of the last operation of a group that ended: bytes, times, the schedule and codec used, the last rank."""
    return backend_of(group).last_report()


def monitored_barrier(group: Optional[dist.ProcessGroup] = None, timeout: Optional[datetime.timedelta] = None, wait_all_ranks: bool = False) -> None:
    """A barrier that names the missing ranks. (torch.distributed.monitored_barrier takes Gloo groups only.)

    On all ranks that reached it, TimeoutError names a rank that did not within the timeout (default: the group's); with wait_all_ranks
    every such rank. If rank 0 of the group is missing, the others report that it does not answer.
    """
    group = dist.group.WORLD if group is None else group
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        return
    backend_of(group)  # ValueError: it has another backend
    group.monitored_barrier(wait_all_ranks=wait_all_ranks, **({} if timeout is None else {"timeout": timeout}))


_settings = threading.local()  # call_options() of this thread, in the C++ side's form


@contextlib.contextmanager
def call_options(*, codec: str = "", schedule: str = "", order: str = "", delivery: str = "") -> Iterator[None]:
    """Collectives that this thread starts inside use these settings instead of the group's Options.

    codec: "int8", "int4:group=64", "bf16", ... (docs/guides/thin_links.md); schedule: "ring", "two_step", ...; order: "rank" for equal bits with every
    schedule; delivery: "lossy:loss_budget=0.1" for all_reduce over the transport udp (docs/guides/packet_loss.md). Equal on all ranks. A setting not given is the
    default, whatever the Options or the environment say. Integers, broadcasts, messages and barriers use no codec.
    """
    outer = getattr(_settings, "now", None)
    _settings.now = (codec, schedule, order, delivery)
    _torch._set_call_settings(*_settings.now)
    try:
        yield
    finally:
        _settings.now = outer
        if outer is None:
            _torch._clear_call_settings()
        else:
            _torch._set_call_settings(*outer)


from unisono.torch.drop_compute import DropCompute  # noqa: E402
from unisono.torch.fsdp import LowBitAllGather, LowBitReduceScatter  # noqa: E402
from unisono.torch.hooks import ArcTopKState, LossyState, LowBitState, PowerSgdState, arc_top_k_hook, bf16_hook, fp16_hook, lossy_hook, low_bit_hook, power_sgd_hook  # noqa: E402
from unisono.torch.moshpit import MoshpitOptimizer  # noqa: E402
from unisono.torch.sharded import ShardedOptimizer  # noqa: E402

__all__ += ["ArcTopKState", "DropCompute", "LossyState", "LowBitAllGather", "LowBitReduceScatter", "LowBitState", "MoshpitOptimizer", "PowerSgdState", "ShardedOptimizer",
            "arc_top_k_hook", "bf16_hook", "fp16_hook", "lossy_hook", "low_bit_hook", "power_sgd_hook"]
