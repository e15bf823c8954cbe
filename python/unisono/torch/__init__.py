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
import threading
import weakref
from typing import Any, Iterator, Optional

import torch.distributed as dist

try:
    from unisono import _torch
except ImportError as error:
    raise ImportError("this build of unisono has no backend for torch: it was built where torch was not installed, or for another version of torch; run `pip install --no-build-isolation .` again") from error

from unisono._torch import Options

__all__ = ["Options", "TimeoutError", "call_options", "backend_of", "report"]


class TimeoutError(dist.DistBackendError, builtins.TimeoutError):  # noqa: A001  # both names are what users catch
    """An operation passed its deadline. The text names the ranks that are late and what is missing."""


_torch._set_timed_out_class(TimeoutError)

# Backends that are alive, to be ended before the interpreter is; the default group's, and that of each group name (one for all devices).
_backends: "weakref.WeakSet[Any]" = weakref.WeakSet()
_by_name: "weakref.WeakValueDictionary[str, Any]" = weakref.WeakValueDictionary()
_default: Optional["weakref.ref[Any]"] = None


def _create(about: Any, options: Optional[Options]) -> Any:
    global _default
    ranks = list(about.global_ranks_in_group)
    known = _by_name.get(about.group_id)
    if known is not None and known.size() == about.group_size and known.rank() == about.group_rank:
        return known
    own = Options() if options is None else options._copy()
    own._timeout = about.timeout
    parent = _default() if _default is not None else None
    if ranks and parent is not None and not own._joins_alone:
        # Processes that are linked already need no new links.
        backend = parent._split(ranks, own)
    else:
        backend = _torch._join(about.store, about.group_rank, about.group_size, own)
        if not ranks:
            _default = weakref.ref(backend)
    _backends.add(backend)
    _by_name[about.group_id] = backend
    return backend


@atexit.register
def _end_all() -> None:
    for backend in list(_backends):
        backend.shutdown()


if "UNISONO" not in dist.Backend._plugins:
    dist.Backend.register_backend("unisono", _create, extended_api=True, devices=["cpu", "cuda"])


def backend_of(group: Optional[dist.ProcessGroup] = None) -> Any:
    """The Unisono backend behind a process group; of the default one if none is given. ValueError: it has another one."""
    import torch

    group = dist.group.WORLD if group is None else group
    backend = group._get_backend(torch.device("cpu"))
    if not isinstance(backend, _torch.Backend):
        raise ValueError(f"this process group has the backend {backend.name()}, not unisono")
    return backend


def report(group: Optional[dist.ProcessGroup] = None) -> dict:
    """What the last operation of a group that ended did: bytes, times, the schedule and codec that were used, who was last."""
    return backend_of(group).last_report()


_settings = threading.local()  # what call_options() of this thread says, as the C++ side has it


@contextlib.contextmanager
def call_options(*, codec: str = "", schedule: str = "", order: str = "", delivery: str = "") -> Iterator[None]:
    """Collectives that this thread starts inside go so, instead of as the group's Options say.

    codec: "int8", "int4:group=64", "bf16", ... (docs/codecs.md); schedule: "ring", "two_step", ...; order: "rank" for the same bits whatever
    the schedule; delivery: "lossy:loss_budget=0.1" for all_reduce over the transport udp (docs/packet_loss.md). All ranks alike.
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
from unisono.torch.hooks import ArcTopKState, LossyState, LowBitState, arc_top_k_hook, bf16_hook, fp16_hook, lossy_hook, low_bit_hook  # noqa: E402
from unisono.torch.moshpit import MoshpitOptimizer  # noqa: E402
from unisono.torch.sharded import ShardedOptimizer  # noqa: E402

__all__ += ["ArcTopKState", "DropCompute", "LossyState", "LowBitAllGather", "LowBitReduceScatter", "LowBitState", "MoshpitOptimizer", "ShardedOptimizer", "arc_top_k_hook",
            "bf16_hook", "fp16_hook", "lossy_hook", "low_bit_hook"]
