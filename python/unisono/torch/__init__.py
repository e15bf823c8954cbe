"""The backend `unisono` of torch.distributed.

    import torch.distributed as dist
    import unisono.torch

    dist.init_process_group("unisono")          # as any other backend: torchrun's variables, or init_method

Importing it registers the backend. Everything that torch.distributed, DistributedDataParallel, FSDP, DTensor and
ZeroRedundancyOptimizer do with a backend for CPU tensors works; `Options` and `call_options` choose transport, codec and
schedule.
"""

import atexit
import builtins
import contextlib
import datetime
import functools
import importlib
import os
import sys
import threading
from typing import Any, Callable, Iterator, List, Optional, Tuple

import torch
import torch.distributed as dist

try:
    from unisono import _core, _torch
except ImportError as error:
    raise ImportError(
        "this build of unisono has no backend for torch: it was built where torch was not installed, or for another version of torch; run `pip install --no-build-isolation .` again"
    ) from error

from unisono._torch import Options
from unisono.torch import _batches

__all__ = ["Options", "TimeoutError", "call_options", "backend_of", "monitored_barrier", "report"]


class TimeoutError(dist.DistBackendError, builtins.TimeoutError):  # noqa: A001  # both names are what users catch
    """An operation passed its deadline. The text names the late ranks and the missing data."""


_torch._set_timed_out_class(TimeoutError)

# Names of groups, and their backends that have not been shut down: backends must end before the interpreter does, because a
# thread that frees a tensor or calls back while Python ends crashes the process. torch keeps the C++ objects, not these Python
# objects, so weak references to the Python objects would soon be dead.
_backends: List[Tuple[str, Any]] = []


def _keep(name: str, backend: Any) -> None:
    _backends[:] = [each for each in _backends if not each[1]._all_over()]
    _backends.append((name, backend))


def _timeout_of(given: datetime.timedelta) -> datetime.timedelta:
    """Returns UNISONO_TIMEOUT_MS if the script keeps torch's default timeout. ValueError: the variable is not a positive
    number."""
    text = os.environ.get("UNISONO_TIMEOUT_MS", "")
    if not text or given != dist.constants.default_pg_timeout:
        return given
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"UNISONO_TIMEOUT_MS is '{text}'; needed: milliseconds, from 1")
    return datetime.timedelta(milliseconds=int(text))


def _create(about: Any, options: Optional[Options]) -> Any:
    ranks = list(about.global_ranks_in_group)
    for name, known in _backends:  # one backend serves all devices
        if name == about.group_id and known.size() == about.group_size and known.rank() == about.group_rank and not known._over:
            return known
    own = Options() if options is None else options._copy()
    # Each group of torch joins by itself. A sub-group of the default group would take fewer descriptors and threads, but an
    # abort or a lost member of one group would then end all of them.
    own._timeout = _timeout_of(about.timeout)
    own.global_ranks_in_group = ranks or list(range(about.group_size))  # for torch's records of each group's operations
    _torch._set_event_handler(_core._event_handler_capsule(None))
    backend = _torch._join(about.store, about.group_rank, about.group_size, own)
    _keep(about.group_id, backend)
    return backend


def _shrunk(make: Callable[..., dist.ProcessGroup]) -> Callable[..., dist.ProcessGroup]:
    """Wraps the function with which dist.shrink_group() makes its group. torch registers every backend for CPU tensors as Gloo
    there, so DistributedDataParallel would read invalid memory; the wrapper registers the right backend."""

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


_batches.install()


def _interruptible(wait_all: Callable[..., List[Any]]) -> Callable[..., List[Any]]:
    """Wraps torch.futures.wait_all(), which waits in code of torch, so that Python's handlers of signals run meanwhile."""

    @functools.wraps(wait_all)
    def waited(futures: List[torch.futures.Future]) -> List[Any]:
        _torch._wait_for(torch.futures.collect_all(futures))
        return wait_all(futures)

    return waited


torch.futures.wait_all = _interruptible(torch.futures.wait_all)


def _with_signals(make: Callable[..., dist.Store]) -> Callable[..., dist.Store]:
    """Wraps the function with which init_process_group() makes its store. It blocks until the other ranks come, for half an
    hour by default, and Python's handlers of signals run in the main thread only. So another thread calls it."""

    @functools.wraps(make)
    def made(*args: Any, **words: Any) -> dist.Store:
        if threading.current_thread() is not threading.main_thread():
            return make(*args, **words)
        stores: List[dist.Store] = []
        errors: List[BaseException] = []
        ended = threading.Event()

        def run() -> None:
            try:
                stores.append(make(*args, **words))
            except BaseException as error:
                errors.append(error)
            finally:
                ended.set()

        threading.Thread(target=run, name="unisono-store", daemon=True).start()
        ended.wait()  # handlers of signals run meanwhile
        if errors:
            raise errors[0]
        return stores[0]

    return made


# The package has a function of this name, too, so the module is imported by its full name.
_rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
if hasattr(_rendezvous, "_create_c10d_store"):
    _rendezvous._create_c10d_store = _with_signals(_rendezvous._create_c10d_store)


@atexit.register
def _end_all() -> None:
    """Ends all groups as destroy_process_group() does. After an exception that nobody has caught, does not wait for operations
    in flight."""
    error = getattr(sys, "last_value", None)
    failure = "" if error is None else type(error).__name__
    interruption = None
    for _, backend in _backends:
        try:
            backend._end_all(failure)
        except BaseException as raised:  # a handler of a signal has raised it
            failure, interruption = type(raised).__name__, raised
    if interruption is not None:
        raise interruption


os.register_at_fork(after_in_child=_backends.clear)  # a child must not end its parent's backends


if "UNISONO" not in dist.Backend._plugins:
    dist.Backend.register_backend("unisono", _create, extended_api=True, devices=["cpu", "cuda"])


def backend_of(group: Optional[dist.ProcessGroup] = None) -> Any:
    """The Unisono backend of a process group; by default of the default group. ValueError: the group has another backend."""
    group = dist.group.WORLD if group is None else group
    backend = group._get_backend(torch.device("cpu"))
    if not isinstance(backend, _torch.Backend):
        raise ValueError(f"this process group has the backend {backend.name()}, not unisono")
    return backend


def report(group: Optional[dist.ProcessGroup] = None) -> dict:
    """Report of the last operation of a group that ended: bytes, times, the schedule and codec used, the last rank."""
    return backend_of(group).last_report()


def monitored_barrier(
    group: Optional[dist.ProcessGroup] = None, timeout: Optional[datetime.timedelta] = None, wait_all_ranks: bool = False
) -> None:
    """A barrier that names the missing ranks. (torch.distributed.monitored_barrier takes Gloo groups only.)

    On all ranks that reached it, TimeoutError names a rank that did not within the timeout (default: the group's); with
    wait_all_ranks every such rank. If rank 0 of the group is missing, the others report that it does not answer.
    """
    group = dist.group.WORLD if group is None else group
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        return
    backend_of(group)  # raises ValueError if the group has another backend
    group.monitored_barrier(wait_all_ranks=wait_all_ranks, **({} if timeout is None else {"timeout": timeout}))


@contextlib.contextmanager
def call_options(*, codec: str = "", schedule: str = "", order: str = "", delivery: str = "") -> Iterator[None]:
    """Collectives that this thread starts inside the with block use these settings instead of the group's Options.

    codec: "int8", "int4:group=64", "bf16", ... (docs/guides/thin_links.md); schedule: "ring", "two_step", ...; order: "rank"
    for equal bits with every schedule; delivery: "lossy:loss_budget=0.1" for all_reduce over the transport udp
    (docs/guides/packet_loss.md). Equal on all ranks. A setting not given is the default, whatever the Options or the
    environment say; so the innermost call_options() is the only one that counts. Integers, broadcasts, messages and barriers
    use no codec.

    ValueError: a setting makes no sense; nothing has changed then.
    """
    outer = _torch._enter_call_settings(codec, schedule, order, delivery)
    try:
        yield
    finally:
        _torch._leave_call_settings(outer)


from unisono.torch.drop_compute import DropCompute  # noqa: E402
from unisono.torch.fsdp import LowBitAllGather, LowBitReduceScatter  # noqa: E402
from unisono.torch.hooks import (
    ArcTopKState,
    LossyState,
    LowBitState,
    PowerSgdState,
    arc_top_k_hook,
    bf16_hook,
    fp16_hook,
    lossy_hook,
    low_bit_hook,
    power_sgd_hook,
)  # noqa: E402
from unisono.torch.moshpit import MoshpitOptimizer  # noqa: E402
from unisono.torch.sharded import ShardedOptimizer  # noqa: E402

__all__ += [
    "ArcTopKState",
    "DropCompute",
    "LossyState",
    "LowBitAllGather",
    "LowBitReduceScatter",
    "LowBitState",
    "MoshpitOptimizer",
    "PowerSgdState",
    "ShardedOptimizer",
    "arc_top_k_hook",
    "bf16_hook",
    "fp16_hook",
    "lossy_hook",
    "low_bit_hook",
    "power_sgd_hook",
]
