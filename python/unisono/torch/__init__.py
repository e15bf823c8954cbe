"""The backend `unisono` of torch.distributed.

    import torch.distributed as dist
    import unisono.torch

    dist.init_process_group("unisono")          # as any other backend: torchrun's variables, or init_method

Importing it registers the backend. Everything that torch.distributed, DistributedDataParallel, FSDP, DTensor and ZeroRedundancyOptimizer do with a
backend for CPU tensors works; `Options` and `call_options` say how bytes travel.
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
    """An operation passed its deadline. The text names the ranks that are late and what is missing."""


_torch._set_timed_out_class(TimeoutError)

# Backends that have not been shut down, by their groups' names, to be ended before the interpreter is. torch keeps what is behind these objects, not these:
# a weak reference would be none soon.
_backends: List[Tuple[str, Any]] = []
EXIT_WAIT_S = 10.0  # for operations under way whose callbacks are to be called, when a program ends


def _keep(name: str, backend: Any) -> None:
    _backends[:] = [each for each in _backends if not each[1]._over]
    _backends.append((name, backend))


def _timeout_of(given: datetime.timedelta) -> datetime.timedelta:
    """UNISONO_TIMEOUT_MS, where the script has left torch's default as it is. ValueError: it is no number from 1 on."""
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
    own.global_ranks_in_group = ranks or list(range(about.group_size))  # for torch's records of what each group did
    backend = _torch._join(about.store, about.group_rank, about.group_size, own)
    _keep(about.group_id, backend)
    return backend


def _shrunk(make: Callable[..., dist.ProcessGroup]) -> Callable[..., dist.ProcessGroup]:
    """What torch makes of a backend that dist.shrink_group() has shrunk. It takes all groups of CPU tensors for those of Gloo, as what DistributedDataParallel
    then reads memory that is not there: this says whose group it is."""

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
    """In a forked child: what its parent has is not the child's to end."""
    for _, backend in _backends:
        backend._abandon()
    _backends.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)


if "UNISONO" not in dist.Backend._plugins:
    dist.Backend.register_backend("unisono", _create, extended_api=True, devices=["cpu", "cuda"])


def backend_of(group: Optional[dist.ProcessGroup] = None) -> Any:
    """The Unisono backend behind a process group; of the default one if none is given. ValueError: it has another one."""
    group = dist.group.WORLD if group is None else group
    backend = group._get_backend(torch.device("cpu"))
    if not isinstance(backend, _torch.Backend):
        raise ValueError(f"this process group has the backend {backend.name()}, not unisono")
    return backend


def report(group: Optional[dist.ProcessGroup] = None) -> dict:
    """What the last operation of a group that ended did: bytes, times, the schedule and codec that were used, who was last."""
    return backend_of(group).last_report()


def monitored_barrier(group: Optional[dist.ProcessGroup] = None, timeout: Optional[datetime.timedelta] = None, wait_all_ranks: bool = False) -> None:
    """A barrier that tells who did not come. (torch.distributed.monitored_barrier takes groups of Gloo only.)

    TimeoutError names a rank that did not reach it within the time, that of the group if none is given, at all ranks that did; with wait_all_ranks
    every such rank. Where rank 0 of the group is missing, the others say that they have no answer from it.
    """
    group = dist.group.WORLD if group is None else group
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        return
    backend_of(group)  # ValueError: of another backend
    group.monitored_barrier(wait_all_ranks=wait_all_ranks, **({} if timeout is None else {"timeout": timeout}))


_settings = threading.local()  # what call_options() of this thread says, as the C++ side has it


@contextlib.contextmanager
def call_options(*, codec: str = "", schedule: str = "", order: str = "", delivery: str = "") -> Iterator[None]:
    """Collectives that this thread starts inside go so, instead of as the group's Options say.

    codec: "int8", "int4:group=64", "bf16", ... (docs/guides/thin_links.md); schedule: "ring", "two_step", ...; order: "rank" for the same bits whatever
    the schedule; delivery: "lossy:loss_budget=0.1" for all_reduce over the transport udp (docs/guides/packet_loss.md). All ranks alike. What is not named is the
    default, whatever the Options or the environment say. Integers, broadcasts, messages and barriers go without a codec.
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
