"""A sharded optimizer over links that lose packets: every rank owns a part of the parameters, updates it, and sends its values
to all (docs/guides/packet_loss.md).

    optimizer = unisono.torch.ShardedOptimizer(model.parameters(), lr=3e-4, options="loss_budget=0.2,clip=1")
    while optimizer.current_step < steps:                        # a rank that was away for some steps runs fewer steps
        optimizer.zero_grad()
        loss_of(model, next(batches)).backward()                 # a plain module: the optimizer averages the gradients
        optimizer.step()

Source: "Distributed Training under Packet Loss" (arXiv:2507.07114).
"""

import collections
import itertools
import weakref
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, Iterable, List, Optional, Union

import torch
import torch.distributed as dist

import unisono
from unisono.torch._shared import bytes_tensor, check_rank, core_group, in_memory_order, parts, raise_torch_error, tensor_bytes

if TYPE_CHECKING:
    import numpy

__all__ = ["ShardedOptimizer"]

DEFAULTS: Dict[str, Dict[str, Any]] = {
    "adamw": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01},
    "sgd": {"momentum": 0.0, "weight_decay": 0.0, "nesterov": False},
}


_numbers = itertools.count()
_living: "weakref.WeakValueDictionary[int, ShardedOptimizer]" = weakref.WeakValueDictionary()  # in the order of their making


def averaging_optimizers() -> Dict[int, "ShardedOptimizer"]:
    """The newest ShardedOptimizer of each parameter that has one, by id() of the parameter. It averages the parameter's
    gradients."""
    return {id(each): optimizer for _, optimizer in sorted(_living.items()) for each in optimizer._parameters}


class ShardedOptimizer(torch.optim.Optimizer):
    """As torch.optim.AdamW or SGD, in float32, for a model with local gradients: not for DistributedDataParallel.

    params: of floating types, in one group; lr may change between steps (schedulers). method: "adamw" (betas, eps,
    weight_decay) or "sgd" (momentum, weight_decay, nesterov), with torch's defaults. options: as unisono.ShardedOptions reads
    them; "delivery=reliable" for links without datagrams. All ranks take rank 0's parameters. All make it with equal arguments,
    on the thread that makes collectives.

    Replicas of the parameters may differ by updates that did not arrive; resync() makes them equal to the bit. A model's
    buffers stay local. ValueError: options make no sense, or differ between ranks. DistBackendError: links carry no datagrams.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        lr: float = 1e-3,
        method: str = "adamw",
        options: Union[str, unisono.ShardedOptions] = "",
        process_group: Optional[dist.ProcessGroup] = None,
        *,
        reports: int = 1000,
        **hyper: Any,
    ) -> None:
        if method not in DEFAULTS:
            raise ValueError(f"ShardedOptimizer: method {method!r}: adamw or sgd")
        unknown = set(hyper) - set(DEFAULTS[method])
        if unknown:
            raise TypeError(
                f"ShardedOptimizer: {method} has no {', '.join(sorted(unknown))}; it has {', '.join(DEFAULTS[method])}"
            )
        hyper = DEFAULTS[method] | hyper
        super().__init__(params, {"lr": lr, **hyper})
        if len(self.param_groups) != 1:
            raise ValueError(f"ShardedOptimizer: {len(self.param_groups)} groups of parameters; one is possible")
        self._parameters: List[torch.Tensor] = [each for each in self.param_groups[0]["params"] if each.requires_grad]
        self._sizes = [each.numel() for each in self._parameters]
        self._views = [in_memory_order(each) for each in self._parameters]
        if method == "adamw":
            inner: Any = unisono.AdamW(
                rate=lr,
                beta1=hyper["betas"][0],
                beta2=hyper["betas"][1],
                epsilon=hyper["eps"],
                weight_decay=hyper["weight_decay"],
            )
        else:
            inner = unisono.SGD(rate=lr, **hyper)
        group = core_group(process_group)
        self._rank, self._world_size, self._rate = group.rank, group.world_size, lr
        self.ranks = dist.get_process_group_ranks(dist.group.WORLD if process_group is None else process_group)
        """The ranks over which step() averages gradients."""
        self.steps = 0
        """How often step() was called."""
        self._gradient = torch.zeros(sum(self._sizes))
        initial = torch.cat([view.reshape(-1).float() for view in self._views]).numpy()
        try:
            self._step = unisono.ShardedStep(group, initial, inner, unisono.ShardedOptions(options))
        except unisono.Error as error:
            raise_torch_error(error)
        self.reports: Deque[unisono.ShardedReport] = collections.deque(maxlen=reports)
        """Reports of the last steps, oldest first: missing ranges and their age, norms, bytes, times, drift."""
        self._take(self._step.parameters)
        _living[next(_numbers)] = self

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Averages gradients (missing ones are zeros), updates this rank's shard, and copies the values of other shards that
        arrive; see report(). A rank that was away for some steps continues with the step in which the others are. So count
        steps with current_step.

        DistBackendError: a rank is lost. The parameters have not changed.
        """
        self.steps += 1
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for each, (begin, end) in zip(self._parameters, parts(self._sizes)):
            part = self._gradient[begin:end]
            if each.grad is None:
                part.zero_()
            else:
                order = sorted(range(each.dim()), key=lambda axis: (-each.stride()[axis], axis))
                part.view([each.shape[axis] for axis in order]).copy_(each.grad.permute(order))
        rate = float(self.param_groups[0]["lr"])
        try:
            if rate != self._rate:
                self._step.set_rate(rate)
                self._rate = rate
            self.reports.append(self._step.run(self._gradient.numpy()))
        except unisono.Error as error:
            raise_torch_error(error)
        self._take(self._step.parameters)
        return loss

    @property
    def current_step(self) -> int:
        """How many steps the ranks have done, from 0. It includes those that this rank has missed."""
        return self._step.step

    def report(self) -> Optional[unisono.ShardedReport]:
        """Report of the last step. applied: False if the average was not finite; nothing has changed then."""
        return self.reports[-1] if self.reports else None

    def resync(self) -> None:
        """Sends all values reliably, after which replicas are equal to the bit, as before an evaluation. Call on all ranks."""
        try:
            self._step.resync()
        except unisono.Error as error:
            raise_torch_error(error)
        self._take(self._step.parameters)

    def owners_values(self) -> List[torch.Tensor]:
        """The owners' values of all parameters, float32: save these of a model. Replicas do not change. Call on all ranks."""
        values = torch.empty(sum(self._sizes))
        try:
            self._step.owners_values(values.numpy())
        except unisono.Error as error:
            raise_torch_error(error)
        result = [torch.empty_like(each, dtype=torch.float32) for each in self._parameters]
        for each, (begin, end) in zip(result, parts(self._sizes)):
            view = in_memory_order(each)
            view.copy_(values[begin:end].view(view.shape))
        return result

    def state_dict(self) -> Dict[str, Any]:  # type: ignore[override]
        """This rank's replica, shard and optimizer state, for a bit-exact continuation. All ranks save after the same step,
        each its own."""
        group = {key: value for key, value in self.param_groups[0].items() if key != "params"}
        return {"rank": self._rank, "world_size": self._world_size, "step": bytes_tensor(self._step.save()), "group": group}

    def load_state_dict(self, state: Dict[str, Any]) -> None:  # type: ignore[override]
        """Also restores the saved parameters. Call on all ranks. ValueError: saved by another rank, with another number of
        ranks, or by another optimizer."""
        check_rank(state, self._rank, self._world_size, "ShardedOptimizer")
        try:
            self._step.load(tensor_bytes(state["step"]))
            self.param_groups[0].update(state["group"])
            self._rate = float(self.param_groups[0]["lr"])
            self._step.set_rate(self._rate)
        except unisono.Error as error:
            raise ValueError(f"ShardedOptimizer: {error}") from error
        self._take(self._step.parameters)

    @torch.no_grad()
    def _take(self, values: "numpy.ndarray[Any, numpy.dtype[numpy.float32]]") -> None:
        """Copies values into the model. (torch has no read-only memory; nothing is written there.)"""
        for view, (begin, end) in zip(self._views, parts(self._sizes)):
            numpy_view = values[begin:end].reshape(view.shape)
            if view.dtype == torch.float32:
                view.numpy()[...] = numpy_view
            else:
                view.copy_(torch.from_numpy(numpy_view.copy()))
