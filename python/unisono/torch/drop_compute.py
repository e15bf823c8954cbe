"""DropCompute: a late rank drops its remaining micro-batches, so that no rank waits long (docs/guides/stragglers.md).

    drop = unisono.torch.DropCompute(12)                         # micro-batches of each rank in a step
    for batch in drop.micro_batches(batches, network):           # network: DistributedDataParallel, or any module
        (loss_of(network, batch) / drop.planned).backward()
    optimizer.step()                                             # gradients are averages, whatever was dropped

Source: N. Giladi et al., DropCompute, NeurIPS 2023 (arXiv:2306.10598).
"""

import weakref
from typing import Any, Callable, Container, Dict, Generator, Iterable, Iterator, List, Optional, Tuple, TypeVar, Union

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import unisono
from unisono.torch._shared import bytes_tensor, own_group, raise_torch_error, tensor_bytes
from unisono.torch.sharded import ShardedOptimizer, averaging_optimizers

__all__ = ["DropCompute"]

Batch = TypeVar("Batch")
BUCKET_BYTES = 25 << 20


class _ZeroGradients(torch.autograd.Function):
    """A loss that adds zeros to the gradients of its parameters."""

    @staticmethod
    def forward(context: Any, *parameters: torch.Tensor) -> torch.Tensor:
        context.shapes = [(each.shape, each.dtype, each.device) for each in parameters]
        return torch.zeros((), device=parameters[0].device)

    @staticmethod
    def backward(context: Any, *_: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        return tuple(torch.zeros((), dtype=dtype, device=device).expand(shape) for shape, dtype, device in context.shapes)


class _ZeroLoss(torch.nn.Module):
    def __init__(self, parameters: List[torch.Tensor]) -> None:
        super().__init__()
        self.given = parameters

    def forward(self) -> torch.Tensor:
        return _ZeroGradients.apply(*self.given)


def _exchange_zeros(network: DistributedDataParallel) -> None:
    """Exchanges zero gradients: the same collectives, bucket by bucket, as on ranks that compute their last micro-batch."""
    trained = [each for each in network.module.parameters() if each.requires_grad]
    if network.find_unused_parameters:
        trained = [each for each in trained if each.grad is not None] or trained[:1]
    model = network.module
    network._modules["module"] = _ZeroLoss(trained)
    try:
        with torch.enable_grad():
            loss = network()
    finally:
        network._modules["module"] = model
    loss.backward()


def _exchange_all(model: torch.nn.Module, group: Optional[dist.ProcessGroup], left_out: Container[int]) -> None:
    """Averages the gradients of all parameters but those whose id() is in left_out; missing ones count as zeros."""
    by_dtype: Dict[torch.dtype, List[torch.Tensor]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad and id(parameter) not in left_out:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for dtype, trained in by_dtype.items():
        buckets: List[List[torch.Tensor]] = [[]]
        for each in trained:
            if sum(other.numel() for other in buckets[-1]) * dtype.itemsize > BUCKET_BYTES:
                buckets.append([])
            buckets[-1].append(each)
        waiting = []
        for bucket in buckets:
            flat = torch.cat(
                [
                    torch.zeros(each.numel(), dtype=each.dtype) if each.grad is None else each.grad.detach().reshape(-1)
                    for each in bucket
                ]
            )
            waiting.append((bucket, flat, dist.all_reduce(flat, op=dist.ReduceOp.AVG, group=group, async_op=True)))
        for bucket, flat, work in waiting:
            work.wait()
            for each, values in zip(bucket, flat.split([each.numel() for each in bucket])):
                if each.grad is None:
                    each.grad = torch.empty_like(each)
                each.grad.copy_(values.view(each.shape))


class _Computed:
    """Calls `done` when a backward pass has computed the gradients of these parameters, before DistributedDataParallel waits
    for their exchange."""

    def __init__(self, parameters: Iterable[torch.Tensor], done: Callable[[], None]) -> None:
        self._done, self._queued = done, False
        self._hooks = [each.register_post_accumulate_grad_hook(self._on_gradient) for each in parameters if each.requires_grad]

    def _on_gradient(self, _: torch.Tensor) -> None:
        # Callbacks run in the order in which they are queued. DistributedDataParallel queues its own with the last gradient.
        if not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._done)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


class DropCompute:
    """A compute threshold per step. All ranks make it with equal arguments, on the thread that makes collectives.

    micro_batches: of each rank in a step. options: "auto", a number of seconds, "off", then ":" and options, or
    unisono.DropOptions (whose `replay` repeats a run); the rule `at` is not possible here. process_group: of the model.
    replica: the processes that compute one replica together.

    ValueError: options make no sense, or differ between ranks; a group of another backend.
    """

    def __init__(
        self,
        micro_batches: int,
        options: Union[str, unisono.DropOptions] = "auto",
        process_group: Optional[dist.ProcessGroup] = None,
        *,
        replica: Optional[dist.ProcessGroup] = None,
    ) -> None:
        read = unisono.DropOptions(options)
        if read.rule == "at" and read.threshold != "off":
            raise ValueError(
                "DropCompute: rule=at interrupts a micro-batch, which backward() cannot do; use rule=after or rule=before"
            )
        self.planned = micro_batches
        """The divisor of each micro-batch's loss."""
        self.process_group = process_group
        self._replica = replica
        self.step: Optional[unisono.DropStep] = None
        """Result of the last step on this rank: computed, planned, applied (False: no rank computed anything), scale, warnings."""
        self._taken: Optional[int] = None
        self._more = False  # whether this step has another micro-batch to compute
        # Optimizers to which the last step has left its gradients, and how many steps each had taken then.
        self._left_to: "weakref.WeakKeyDictionary[ShardedOptimizer, int]" = weakref.WeakKeyDictionary()
        try:
            self._drop = unisono.DropCompute(
                own_group(process_group), micro_batches, read, None if replica is None else own_group(replica)
            )
        except unisono.Error as error:
            raise_torch_error(error)

    def micro_batches(
        self, batches: Union[Iterator[Batch], Callable[[int], Batch]], model: torch.nn.Module
    ) -> Generator[Batch, None, None]:
        """Yields the micro-batches to compute in one step; call backward() for each. When it ends, all gradients are averages
        over ranks.

        batches: an endless iterator that continues from step to step, or a function position -> batch. Dropped micro-batches
        come next (tail=defer) or are skipped (tail=discard). model: with DistributedDataParallel, communication hooks included,
        gradients are sent while the last micro-batch is computed; a rank that dropped some takes part with the gradients it
        has. For other modules, gradients are averaged after the last one, except those that a ShardedOptimizer over the same
        ranks averages: its step() exchanges them, and so each gradient is exchanged once. Zero the gradients before. With
        normalize=computed, gradients are already multiplied by `step.scale`.

        ValueError: static_graph=True, which torch does not allow here; DistributedDataParallel and a ShardedOptimizer, which
        would both average. RuntimeError: the iterator has ended, or the ShardedOptimizer has not taken the last step.
        DistBackendError and TimeoutError as from collectives: call resume() after them.
        """
        if not callable(batches) and not hasattr(batches, "__next__"):
            raise TypeError(
                "micro_batches: needs an iterator that continues from step to step, or a function of the position; for a DataLoader: iter(loader)"
            )
        if isinstance(model, DistributedDataParallel) and model.static_graph:
            raise ValueError(
                "micro_batches: DistributedDataParallel(static_graph=True) cannot add up gradients before its first exchange"
            )
        averaged = averaging_optimizers()
        if isinstance(model, DistributedDataParallel) and any(id(each) in averaged for each in model.parameters()):
            raise ValueError(
                "micro_batches: DistributedDataParallel and ShardedOptimizer would both average the gradients; give micro_batches the plain module"
            )
        return self._step(batches, model)

    def _averaged_by_optimizers(self, model: torch.nn.Module) -> Dict[int, ShardedOptimizer]:
        """By id() of the parameter: the optimizer that averages its gradients over the ranks of this object."""
        left_to, self._left_to = self._left_to, weakref.WeakKeyDictionary()
        if any(optimizer.steps == steps for optimizer, steps in left_to.items()):
            raise RuntimeError(
                "micro_batches: the gradients of the last step were left to ShardedOptimizer.step(), which averages them, but it was not called"
            )
        ranks = dist.get_process_group_ranks(dist.group.WORLD if self.process_group is None else self.process_group)
        every = averaging_optimizers()
        averaged = {id(each): every[id(each)] for each in model.parameters() if id(each) in every}
        return {number: optimizer for number, optimizer in averaged.items() if sorted(optimizer.ranks) == sorted(ranks)}

    def _step(
        self, batches: Union[Iterator[Batch], Callable[[int], Batch]], model: torch.nn.Module
    ) -> Generator[Batch, None, None]:
        network = model if isinstance(model, DistributedDataParallel) else None
        exchanged = False
        averaged = self._averaged_by_optimizers(model)
        try:
            self._drop.begin_step()
            self._more = self._drop.next()
            while self._more:
                exchanged = network is not None and self._drop.last
                if network is not None:
                    network.require_backward_grad_sync = exchanged
                if exchanged:
                    yield from self._last(batches, model)
                else:
                    yield self._batch(batches)
                    self._more = self._drop.next()
            if network is not None:
                network.require_backward_grad_sync = True
                if not exchanged:
                    _exchange_zeros(network)
            else:
                _exchange_all(model, self.process_group, averaged)
            self.step = self._drop.end_step()
        except unisono.Error as error:
            raise_torch_error(error)
        finally:
            if network is not None:
                network.require_backward_grad_sync = True
        if self.step.epoch_ended:
            self._taken = None
        if self.step.applied:
            self._left_to.update({optimizer: optimizer.steps for optimizer in averaged.values()})
        if self.step.scale != 1:
            gradients = [each.grad for each in model.parameters() if each.grad is not None]
            torch._foreach_mul_(gradients, self.step.scale)

    def _last(
        self, batches: Union[Iterator[Batch], Callable[[int], Batch]], model: torch.nn.Module
    ) -> Generator[Batch, None, None]:
        """Exchanges gradients in the last micro-batch. The micro-batch counts as computed before the exchange, because waiting
        for other ranks is not computing."""
        notified = False

        def computed() -> None:
            nonlocal notified
            if not notified:
                notified = True
                self._more = self._drop.next()

        computing = _Computed(model.parameters(), computed)
        try:
            yield self._batch(batches)
        finally:
            computing.remove()
        computed()

    def _batch(self, batches: Union[Iterator[Batch], Callable[[int], Batch]]) -> Batch:
        position = self._drop.position
        if not hasattr(batches, "__next__"):
            return batches(position)  # type: ignore[operator]
        if self._taken is None:  # the position is that of the iterator
            self._taken = position
        try:
            while self._taken < position:
                self._taken += 1
                next(batches)  # type: ignore[call-overload]
            self._taken += 1
            return next(batches)  # type: ignore[call-overload]
        except StopIteration:
            raise RuntimeError(
                f"micro_batches: the iterator ended before micro-batch {position}; give an endless iterator, or set DropOptions.shard"
            ) from None

    @property
    def position(self) -> int:
        """The position in this rank's data of the micro-batch being computed, in micro-batches from 0."""
        return self._drop.position

    def report(self) -> unisono.DropReport:
        """Report of the last window: threshold, dropped share and by rank, gain; equal on all ranks."""
        return self._drop.report()

    def total(self) -> unisono.DropReport:
        """Report of all windows so far."""
        return self._drop.total()

    def finish(self) -> unisono.DropReport:
        """Call at the end, on all ranks: returns total(), with the steps since the last window."""
        return self._drop.finish()

    def pause(self) -> None:
        """Call before work that belongs to no step, such as a validation."""
        self._drop.pause()

    def resume(self) -> None:
        """Call on all ranks after a step that failed."""
        try:
            self._drop.resume(own_group(self.process_group), None if self._replica is None else own_group(self._replica))
        except unisono.Error as error:
            raise_torch_error(error)

    def state_dict(self) -> Dict[str, Any]:
        """This rank's data position and step; call between two steps. Each rank saves its own."""
        return {"drop": bytes_tensor(self._drop.save()), "taken": self._taken}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Call on all ranks. The next iterator must begin at micro-batch `state["taken"]` of this rank's data. ValueError:
        saved with other options."""
        try:
            self._drop.load(tensor_bytes(state["drop"]))
        except unisono.Error as error:
            raise ValueError(f"DropCompute: {error}") from error
        self._taken = state["taken"]
        self._left_to.clear()
