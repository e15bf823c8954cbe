"""Shared helpers of the methods: the core's group of a process group, memory as NumPy arrays, torch's error classes, values of
futures."""

import builtins
import contextlib
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NoReturn, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

import unisono
from unisono import _core, _torch

if TYPE_CHECKING:
    import numpy


def core_group(group: Optional[dist.ProcessGroup]) -> unisono.Group:
    """The core's group of a process group with the backend unisono; by default of the default group. ValueError: the group has
    another backend."""
    from unisono.torch import backend_of

    return _core.group_from_capsule(backend_of(group)._group_capsule())


def own_group(group: Optional[dist.ProcessGroup]) -> unisono.Group:
    """A separate group of the same ranks, so that its calls are never mixed with torch's. All ranks call it; it sends
    nothing."""
    whole = core_group(group)
    return whole.split(list(range(whole.world_size)))


@contextlib.contextmanager
def encoded_calls(group: Optional[dist.ProcessGroup], like: torch.Tensor, codec: str, schedule: str) -> Iterator[None]:
    """Collectives on tensors like this one, which this thread starts inside the with block, use this codec and this schedule.
    Order and delivery are those of the call_options() around it, or of the group: a hook must not change what the user has set
    for them. Has no effect on another backend."""
    backend = (dist.group.WORLD if group is None else group)._get_backend(like.device)
    if not isinstance(backend, _torch.Backend):
        yield
        return
    outer = backend._enter_codec(codec, schedule)
    try:
        yield
    finally:
        _torch._leave_call_settings(outer)


def torch_error(error: BaseException) -> BaseException:
    """Converts the core's error to the one that torch's users catch."""
    from unisono.torch import TimeoutError

    if isinstance(error, unisono.Late):
        return TimeoutError(str(error))
    if isinstance(error, unisono.Invalid):
        return builtins.ValueError(str(error))
    if isinstance(error, unisono.Error):
        return dist.DistBackendError(str(error))
    return error


def raise_torch_error(error: unisono.Error) -> NoReturn:
    raise torch_error(error) from error


def fail(future: torch.futures.Future, error: BaseException) -> None:
    """Completes the future with an error object, whose class reaches the caller of backward(); Future.set_exception would keep
    only its text."""
    _torch._fail_future(future, torch_error(error))


def keep_numbers(error: torch.Tensor, report: Dict[str, Any]) -> None:
    """Removes values that are not finite from a residual, so that they are not sent again. Quantizing codecs count such groups;
    16-bit codecs do not."""
    if report["nonfinite_groups"] > 0 or not report["codec"].startswith("int"):
        torch.nan_to_num_(error, 0.0, 0.0, 0.0)


def chained(future: torch.futures.Future, finish: Callable[[torch.Tensor], torch.Tensor]) -> torch.futures.Future:
    """The future that a hook returns: it completes with finish(result) when an operation on one tensor has ended."""
    result: torch.futures.Future = torch.futures.Future()
    pending = [
        finish
    ]  # released when called: a reference cycle of work, future and callback would keep the group's links alive
    del finish

    def done(ended: torch.futures.Future) -> None:
        try:
            value = pending.pop()(ended.value()[0])
        except BaseException as error:  # backward() raises it
            fail(result, error)
        else:
            result.set_result(value)

    future.add_done_callback(done)
    return result


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous view of a dense tensor with its dimensions in memory order: (n, h, w, c) for channels_last. ValueError: it
    has gaps."""
    order = sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride()[axis], axis))
    view = tensor.detach().permute(order)
    if not view.is_contiguous():
        raise ValueError(f"a tensor of the shape {tuple(tensor.shape)} and strides {tensor.stride()} has holes")
    return view


def array_of(tensor: torch.Tensor) -> "numpy.ndarray[Any, Any]":
    """A dense tensor's memory as a flat array, in memory order."""
    return in_memory_order(tensor).reshape(-1).numpy()


def plain_model(model: torch.nn.Module) -> torch.nn.Module:
    return model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model


def names_of(model: torch.nn.Module) -> Dict[int, str]:
    """Names of the parameters by id(), as in the module inside DistributedDataParallel."""
    return {id(parameter): name for name, parameter in plain_model(model).named_parameters()}


def parts(sizes: Sequence[int]) -> Iterator[Tuple[int, int]]:
    """Yields (begin, end) of consecutive parts that have these sizes."""
    begin = 0
    for size in sizes:
        yield begin, begin + size
        begin += size


def bytes_tensor(data: bytes) -> torch.Tensor:
    """Bytes that torch.save and torch.load(weights_only=True) accept."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def check_rank(state: Dict[str, Any], rank: int, world_size: int, what: str) -> None:
    """Raises ValueError if the state belongs to another rank, or to another number of ranks."""
    if (state["rank"], state["world_size"]) != (rank, world_size):
        raise ValueError(
            f"{what}: this state is of rank {state['rank']} of {state['world_size']}, and this is rank {rank} of {world_size}"
        )


def parameters_of_groups(groups: List[Dict[str, Any]]) -> List[torch.Tensor]:
    return [parameter for group in groups for parameter in group["params"]]
