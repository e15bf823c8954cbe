"""Shared by all checks: the decorator that makes a function a check, the check's group, and the operations that Gloo lacks."""

import contextlib
import datetime
import importlib
import os
import pathlib
import re
import sys
import time

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from torch_suite import MODULES  # noqa: E402

# What Gloo cannot do, found by experiment with torch 2.13.0. With UNISONO_CHECKS_TRY=1 the checks try it again.
GLOO_CANNOT = {
    "int16": "Invalid scalar type",
    "uint16": "Invalid scalar type",
    "uint32": "Invalid scalar type",
    "uint64": "Invalid scalar type",
    "float8_e4m3fn": "Invalid scalar type",
    "float8_e5m2": "Invalid scalar type",
    "gather and scatter complex64": "Invalid scalar type",
    "gather and scatter complex128": "Invalid scalar type",
    "bool SUM": "adds bytes: the result has bytes that are neither 0 nor 1",
    "non-contiguous all_reduce": "reduces the wrong elements, and says nothing",
    "stacked reduce_scatter_tensor": "Check failed: outputShape[0] * worldSize == inputShape[0]",
    "stacked all_gather_into_tensor": "invalid tensor size at index 0",
    "all_gather_into_tensor of 0-d": "invalid tensor size at index 0",
    "uneven all_gather": "invalid tensor size at index 1",
    "uneven all_to_all of lists": "invalid tensor size at index 1",
    "message of another size": "ends the process: terminate called after throwing gloo::EnforceNotMet",
    "future of all_gather": (
        "its value is the list of tensors, not a list with that list, which torch's hooks that quantize expect"
    ),
    "future of reduce_scatter_tensor": "its Work has none: getFuture raises",
    "order of collectives from callbacks": (
        "the order differs between ranks: terminate called after throwing gloo::EnforceNotMet"
    ),
    "name the lost rank": (
        "names an address, or nobody: Connection reset by peer; Timed out waiting 4000ms for recv operation to complete"
    ),
    "name the operation": "Timed out waiting 2000ms for recv operation to complete",
    "abort": "the collective goes on waiting",
    "startCoalescing": "Backend gloo does not implement startCoalescing",
}

CHECKS = {}  # (module, function) -> arguments of `check`


def check(ranks=(3,), timeout_s=60, lost=(), fresh=False, group=True, group_timeout_s=30, env=None):
    """Makes a function a check. All ranks of a job call it; there is one job for each number in `ranks`.

    lost: ranks that may end in any way. fresh: starts new processes, which end as Python programs do, instead of
    forking them.
    group: initialises torch.distributed before the check, and destroys the group afterwards.
    """

    def mark(function):
        options = {
            "ranks": ranks,
            "timeout_s": timeout_s,
            "lost": lost,
            "fresh": fresh,
            "group": group,
            "group_timeout_s": group_timeout_s,
        }
        CHECKS[function.__module__.rpartition(".")[2], function.__name__] = options | {"env": env or {}}
        return function

    return mark


def backend():
    return os.environ["BACKEND"]


def is_gloo():
    """True for Gloo, also under its other name (torch_suite_disguise.py)."""
    return backend() in ("gloo", "disguised")


def rank():
    return int(os.environ["RANK"])


def world():
    return int(os.environ["WORLD_SIZE"])


def cannot(what):
    """Whether to skip this part, because the backend is Gloo."""
    return is_gloo() and what in GLOO_CANNOT and not os.environ.get("UNISONO_CHECKS_TRY")


def init(timeout_s=30, **options):
    """Calls init_process_group with a TCPStore of rank 0. The system chooses its port, and a file tells the other ranks the
    port."""
    if backend() in MODULES:
        for module in MODULES[backend()]:
            importlib.import_module(module)
    path = os.environ["CHECK_DIRECTORY"] + "/store"
    wait = datetime.timedelta(seconds=60)
    port_store = dist.FileStore(path, world())
    if rank() == 0:
        store = dist.TCPStore("127.0.0.1", 0, world(), True, wait, wait_for_workers=False)
        port_store.set("port", str(store.port))
    else:
        port_store.set_timeout(wait)
        store = dist.TCPStore("127.0.0.1", int(port_store.get("port")), world(), False, wait)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port))
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group(backend(), store=store, rank=rank(), world_size=world(), timeout=timeout, **options)


def import_checks():
    """Imports all modules with checks, so that CHECKS is complete; except those with a device, which test_torch_device.py
    runs."""
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        if path.stem not in ("__init__", "common", "device", "launcher", "template"):
            importlib.import_module(f"torch_checks.{path.stem}")


def run(module, function):
    """Runs one check in this process, which is one of the ranks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = importlib.import_module(f"torch_checks.{module}")
    options = CHECKS[module.__name__.rpartition(".")[2], function]
    if options["group"]:
        init(options["group_timeout_s"])
    getattr(module, function)()
    if options["group"] and dist.is_initialized():
        dist.barrier()  # no rank leaves while another still connects to it or needs it
        dist.destroy_process_group()


def same(actual, expected, tolerance=0.0):
    """Raises unless both tensors have equal types, shapes and elements, within `tolerance` if one is given (NaNs are equal)."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        raise AssertionError(f"{actual.dtype}{tuple(actual.shape)} instead of {expected.dtype}{tuple(expected.shape)}")
    if tolerance == 0.0:
        equal = as_bits(actual).equal(as_bits(expected))
    else:
        equal = torch.allclose(
            actual.to(torch.float64), expected.to(torch.float64), rtol=tolerance, atol=tolerance, equal_nan=True
        )
    if not equal:
        raise AssertionError(f"{actual} instead of {expected}")


def as_bits(tensor):
    tensor = tensor.detach().contiguous()
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor


def same_on_all_ranks(tensor, group=None):
    """Raises unless the tensor has equal bits on all ranks."""
    mine = tensor.detach().clone().contiguous()
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyones, mine, group=group)
    for other, theirs in enumerate(everyones):
        if not as_bits(theirs).equal(as_bits(mine)):
            raise AssertionError(f"rank {other} has other bits than rank {dist.get_rank(group)}")


@contextlib.contextmanager
def fails(pattern, *, within_s, kinds=(RuntimeError, TimeoutError)):
    """A context manager whose block must raise one of `kinds` within `within_s` seconds. `pattern` must be found in the error's
    text (None: any text)."""
    started = time.monotonic()
    try:
        yield
    except kinds as error:
        took = time.monotonic() - started
        print(f"after {took:.2f} s, {type(error).__name__}: {error}", flush=True)
        if pattern is not None and not re.search(pattern, str(error), re.IGNORECASE | re.DOTALL):
            raise AssertionError(f"not /{pattern}/: {type(error).__name__}: {error}") from error
        if took > within_s:
            raise AssertionError(f"{took:.1f} s instead of at most {within_s} s") from error
    else:
        raise AssertionError("nothing was raised")


def kinds():
    """The exceptions that a call may raise if a rank is lost."""
    return (RuntimeError, TimeoutError) if is_gloo() else (dist.DistError, TimeoutError)


def names(lost):
    """A pattern for the text of an error, which must name the lost rank. Gloo names no rank, so for Gloo the pattern matches
    any text."""
    return None if cannot("name the lost rank") else rf"rank {lost}\b"


def leave():
    """Destroys the group, which must end soon even if peers are lost."""
    started = time.monotonic()
    try:
        dist.destroy_process_group()
    except RuntimeError as error:
        print("destroy_process_group:", error)
    assert time.monotonic() - started < 20


def store_barrier(name="end", wait_s=60, store=None):
    """A barrier without a collective. Rank 0, which has the store, leaves last. store: by default that of the default group."""
    store, wait = store or dist.distributed_c10d._get_default_store(), datetime.timedelta(seconds=wait_s)
    everyone = [f"{name} {of}" for of in range(world())]
    store.set(everyone[rank()], "1")
    store.wait(everyone, wait)
    if rank() > 0:
        store.set(f"{name} seen by {rank()}", "1")
    else:
        store.wait([f"{name} seen by {of}" for of in range(1, world())], wait)
