"""FSDP2 with low-bit communication: gathered parameters and scattered gradients use a codec (docs/guides/thin_links.md).

    fully_shard(layer)
    layer.set_custom_reduce_scatter(unisono.torch.LowBitReduceScatter("int8"))       # gradients
    layer.set_custom_all_gather(unisono.torch.LowBitAllGather("int8"))               # parameters

Source: Flash Communication (arXiv:2412.04964).
"""

from typing import Any, Dict, Optional, Sequence, Union

import torch
import torch.distributed as dist

import unisono
from unisono.torch._shared import encoded_calls, keep_numbers

__all__ = ["LowBitAllGather", "LowBitReduceScatter"]

ENCODED = (torch.float32, torch.float16, torch.bfloat16)
# torch 2.13 renamed these functions.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _Allocates:
    def allocate(self, size: Sequence[Union[int, torch.SymInt]], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class LowBitAllGather(_Allocates):
    """Sends parameters with a codec. A rank also computes with the decoded values of its own shard; the shards themselves stay
    exact.

    codec: "int8", "bf16", ...; equal on all ranks. schedule: "" uses the codec where it pays, "direct" wherever it is possible.
    For FSDPModule.set_custom_all_gather. ValueError: no such codec.
    """

    def __init__(self, codec: str = "int8", *, schedule: str = "") -> None:
        self.codec = str(unisono.Codec.parse(codec))
        self.schedule = schedule

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> Optional[dist.Work]:
        encoded = output_tensor.dtype in ENCODED
        with encoded_calls(group, input_tensor, self.codec if encoded else "", self.schedule if encoded else ""):
            return _all_gather(output_tensor, input_tensor, group=group, async_op=async_op)


class LowBitReduceScatter(_Allocates):
    """Sends gradients with a codec, and adds them in float32. For FSDPModule.set_custom_reduce_scatter; one per module with
    error feedback.

    codec: "int8", "int4:group=64", ...; equal on all ranks. schedule: "" uses the codec where it pays, "direct" wherever it is
    possible. error_feedback: keeps this rank's encoding error (4 bytes per parameter of the whole module), and adds it to its
    next gradient. For float32 gradients, sums and averages.

    ValueError: no such codec; with error feedback, gradients of another type or of another size than before, or another
    operation.
    """

    def __init__(self, codec: str = "int8", error_feedback: bool = False, *, schedule: str = "") -> None:
        self.codec = str(unisono.Codec.parse(codec))
        self.error_feedback = error_feedback
        self.schedule = schedule
        self.residual: Optional[torch.Tensor] = None
        """The residual: float32, as many elements as the module's gradients, padded, on all ranks together."""
        self._last: Optional[dist.Work] = None

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> Optional[dist.Work]:
        from unisono.torch import backend_of

        if not self.error_feedback:
            encoded = input_tensor.dtype in ENCODED
            with encoded_calls(group, input_tensor, self.codec if encoded else "", self.schedule if encoded else ""):
                return _reduce_scatter(output=output_tensor, input=input_tensor, group=group, op=op, async_op=async_op)
        operation = {dist.ReduceOp.SUM: "sum", dist.ReduceOp.AVG: "avg"}.get(op)
        if operation is None or input_tensor.dtype != torch.float32:
            raise ValueError(
                f"LowBitReduceScatter with error feedback: {op} of {input_tensor.dtype}; sums and averages of float32 are possible"
            )
        if self.residual is None:
            self.residual = torch.zeros(input_tensor.numel())
        if self.residual.numel() != input_tensor.numel():
            raise ValueError(
                f"LowBitReduceScatter with error feedback: {input_tensor.numel()} elements after {self.residual.numel()}: each module needs one of its own"
            )
        self._residual_of_last()
        with encoded_calls(group, input_tensor, "", self.schedule):
            self._last = work = backend_of(group)._reduce_scatter_with_feedback(
                output_tensor, input_tensor, self.residual, self.codec, operation == "avg"
            )
        if async_op:
            return work
        self._residual_of_last()
        return None

    def _residual_of_last(self) -> torch.Tensor:
        """The residual of the last operation, after it has ended."""
        assert self.residual is not None
        last, self._last = self._last, None
        if last is not None:
            last.wait()
            keep_numbers(self.residual, last.report())
        return self.residual

    def state_dict(self) -> Dict[str, Any]:
        """This rank's state."""
        return {"codec": self.codec, "residual": None if self.residual is None else self._residual_of_last().clone()}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """ValueError: saved with another codec."""
        if state["codec"] != self.codec:
            raise ValueError(f"LowBitReduceScatter: a state of codec {state['codec']}, and this is {self.codec}")
        self._last = None
        self.residual = None if state["residual"] is None else state["residual"].clone()
