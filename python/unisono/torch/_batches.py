"""Batches of calls that end even if there is an error: batch_isend_irecv(), and the coalescing manager under it.

torch leaves a batch open if an error comes out of it. It then adds all later collectives of the group to the batch. They
return at once, do nothing, and keep their tensors. Errors come from torch's own checks, from the backend, or from the caller.
"""

import contextlib
import functools
from typing import Any, Callable, ContextManager, Iterator, Optional

import torch
import torch.distributed as dist

from unisono import _torch


def _abandon(group: Any, device: Optional[torch.device]) -> None:
    """Ends the batch of a group with the backend unisono. Messages of the batch have not begun, and do not begin."""
    try:
        backend = group._get_backend(torch.device("cpu") if device is None else device)
    except (AttributeError, RuntimeError):  # this process is not in the group, or the group has no such backend
        return
    if isinstance(backend, _torch.Backend):
        dist.distributed_c10d._world.pg_coalesce_state.pop(group, None)
        backend._abandon_batch()


def _ending(manager: Callable[..., ContextManager[Any]]) -> Callable[..., ContextManager[Any]]:
    @functools.wraps(manager)
    @contextlib.contextmanager
    def ends(
        group: Optional[dist.ProcessGroup] = None, device: Optional[torch.device] = None, async_ops: bool = False
    ) -> Iterator[Any]:
        whole = group or dist.group.WORLD
        is_inner = whole in dist.distributed_c10d._world.pg_coalesce_state  # then the batch around this one goes on
        try:
            with manager(group, device, async_ops) as batch:
                yield batch
        except BaseException:
            if not is_inner:
                _abandon(whole, device)
            raise

    return ends


def install() -> None:
    """Replaces torch's coalescing manager. Does nothing if it has been replaced already, or if torch has none."""
    manager = getattr(dist.distributed_c10d, "_coalescing_manager", None)
    if manager is None or getattr(manager, "_ends", False):
        return
    ends = _ending(manager)
    ends._ends = True  # type: ignore[attr-defined]
    dist.distributed_c10d._coalescing_manager = dist._coalescing_manager = ends
