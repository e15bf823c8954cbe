"""Communication hooks of DistributedDataParallel: low-bit gradients, ARC-Top-K, PowerSGD, and lossy links.

    network = DistributedDataParallel(model)
    network.register_comm_hook(unisono.torch.LowBitState(codec="int8"), unisono.torch.low_bit_hook)

No hook waits: the backward pass continues while buckets are sent. Operations start in the order of the hooks' calls, on the
thread that calls them. After an error (DistBackendError, TimeoutError) backward() raises it on every affected rank.
"""

import collections
import concurrent.futures
import threading
from typing import Any, Deque, Dict, List, Optional, Tuple, Union

import torch
import torch.distributed as dist

import unisono
from unisono.torch import _shared
from unisono.torch._shared import (
    bytes_tensor,
    chained,
    check_rank,
    core_group,
    encoded_calls,
    in_memory_order,
    keep_numbers,
    names_of,
    parts,
    plain_model,
    tensor_bytes,
)

__all__ = [
    "ArcTopKState",
    "LossyState",
    "LowBitState",
    "PowerSgdState",
    "arc_top_k_hook",
    "bf16_hook",
    "fp16_hook",
    "lossy_hook",
    "low_bit_hook",
    "power_sgd_hook",
]

HALVES = (torch.float16, torch.bfloat16)


class _Residuals:
    """Residuals of all parameters' gradients, in one buffer per bucket, as long as buckets stay the same."""

    def __init__(self) -> None:
        self._whole: Dict[Tuple[str, ...], torch.Tensor] = {}
        self.parts: Dict[str, torch.Tensor] = {}

    def of(self, names: List[str], sizes: List[int]) -> torch.Tensor:
        """Returns a float32 tensor with as many elements as the bucket. The caller writes the residual to it."""
        key = tuple(names)
        whole = self._whole.get(key)
        if whole is None or whole.numel() != sum(sizes):
            kept = [self.parts.get(name) for name in names]
            whole = torch.cat(
                [torch.zeros(size) if part is None or part.numel() != size else part for part, size in zip(kept, sizes)]
            )
            moved = set(names)
            self._whole = {each: memory for each, memory in self._whole.items() if moved.isdisjoint(each)}
            self._whole[key] = whole
            self.parts.update({name: whole[begin:end] for name, (begin, end) in zip(names, parts(sizes))})
        return whole

    def load(self, kept: Dict[str, torch.Tensor]) -> None:
        self._whole = {}
        self.parts = {name: values.detach().clone().float().reshape(-1) for name, values in kept.items()}


class LowBitState:
    """Low-bit gradients: sends them with a codec (docs/guides/thin_links.md). For low_bit_hook.

    process_group: of the model; None: the default one. codec: "int8", "int4:group=64", "int8/int4", ...; equal on all ranks.
    error_feedback: keeps this rank's encoding error (4 bytes per parameter), and adds it to its next gradient. Over all ranks,
    delivered values plus residuals equal the sum of all gradients; so delivery must be reliable. (EF14: Seide et al., 1-bit
    SGD, 2014; Karimireddy et al., arXiv:1901.09847.) model: names the parameters whose residuals state_dict() saves; needed
    only for that. schedule: "" uses the codec where it pays on these links; "two_step" wherever it is possible.

    Order and delivery are those of call_options() or of the group. Codecs: Flash Communication (arXiv:2412.04964). ValueError:
    no such codec or schedule; a group of another backend; error feedback and lossy delivery.
    """

    def __init__(self, process_group: Optional[dist.ProcessGroup] = None, codec: str = "int8", error_feedback: bool = False, *,
                 model: Optional[torch.nn.Module] = None, schedule: str = "") -> None:
        from unisono.torch import backend_of

        self.codec = str(unisono.Codec.parse(codec))
        self.error_feedback = error_feedback
        self.schedule = schedule
        self.process_group = process_group
        self._backend = backend_of(process_group)
        self._names = None if model is None else names_of(model)
        self._unnamed: Dict[int, str] = {}
        self._residuals = _Residuals()
        self._lock = threading.Lock()
        self.steps = 0
        self._sent = self._bits = self._elements = 0.0
        self._note = ""
        self._last: Dict[str, Any] = {}

    def residual(self, name: str) -> torch.Tensor:
        """The residual of one parameter's gradients: float32, flat, in the parameter's memory order. KeyError: there is
        none."""
        return self._residuals.parts[name]

    def report(self) -> Dict[str, Any]:
        """steps; the requested codec; bytes sent by this rank, and bits per element, in all steps; the last operation's report;
        and, with error feedback, the norm of this rank's residual."""
        with self._lock:
            bits = self._bits / self._elements if self._elements else 0.0
            report = {
                "steps": self.steps,
                "codec": self.codec,
                "sent_bytes": int(self._sent),
                "bits_per_element": bits,
                "codec_note": self._note,
                "last": dict(self._last),
            }
        if self.error_feedback:
            report["residual_norm"] = (
                float(sum(float(part.double().square().sum()) for part in self._residuals.parts.values())) ** 0.5
            )
        return report

    def state_dict(self) -> Dict[str, Any]:
        """This rank's state; each rank saves its own. ValueError: there are residuals, but no model that names them."""
        if self._residuals.parts and self._names is None:
            raise ValueError("LowBitState: the residuals have no names: give LowBitState(..., model=model)")
        kept = {name: part.clone() for name, part in self._residuals.parts.items()}
        return {
            "rank": self._backend.rank(),
            "world_size": self._backend.size(),
            "codec": self.codec,
            "error_feedback": self.error_feedback,
            "steps": self.steps,
            "residuals": kept,
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Continues from state_dict(); call between two steps. Bit-exact if buckets are the same (DistributedDataParallel makes
        them anew after its first step, unless it looks for unused parameters). ValueError: saved by another rank, with another
        number of ranks, or with another codec.
        """
        check_rank(state, self._backend.rank(), self._backend.size(), "LowBitState")
        if (state["codec"], state["error_feedback"]) != (self.codec, self.error_feedback):
            raise ValueError(
                f"LowBitState: this state has codec {state['codec']}, error_feedback {state['error_feedback']}; wanted: {self.codec}, {self.error_feedback}"
            )
        self.steps = state["steps"]
        self._residuals.load(state["residuals"])

    def _name(self, parameter: torch.Tensor) -> str:
        if self._names is None:
            return self._unnamed.setdefault(id(parameter), f"parameter {len(self._unnamed)}")
        return self._names[id(parameter)]

    def _record(self, work: Any, elements: int) -> Dict[str, Any]:
        report: Dict[str, Any] = work.report()
        with self._lock:
            self._sent += report["sent_bytes"]
            self._elements += elements
            self._bits += elements * report["bits_per_element"]
            self._last = report
            self._note = report["codec_note"]
        return report

    def _start(self, bucket: dist.GradBucket) -> torch.futures.Future:
        buffer = bucket.buffer()
        if self.error_feedback:
            self._backend._check_error_feedback()
        if bucket.is_last():
            self.steps += 1
        if not self.error_feedback or buffer.dtype not in (torch.float32, *HALVES):
            codec = self.codec if buffer.dtype in (torch.float32, *HALVES) else ""
            with encoded_calls(self.process_group, buffer, codec, self.schedule):
                work = dist.all_reduce(buffer, op=dist.ReduceOp.AVG, group=self.process_group, async_op=True)
            return self._ending(work, buffer, buffer, None)
        parameters = bucket.parameters()
        error = self._residuals.of([self._name(each) for each in parameters], [each.numel() for each in parameters])
        values = buffer.float()  # the bucket itself, if it is float32
        with encoded_calls(self.process_group, buffer, "", self.schedule):
            work = self._backend._all_reduce_with_feedback(values, error, self.codec, True)
        return self._ending(work, buffer, values, error)

    def _ending(
        self, work: Any, buffer: torch.Tensor, values: torch.Tensor, error: Optional[torch.Tensor]
    ) -> torch.futures.Future:
        def finish(_: torch.Tensor) -> torch.Tensor:
            report = self._record(work, buffer.numel())
            if error is not None:
                keep_numbers(error, report)
            return buffer if values is buffer else buffer.copy_(values)

        return chained(work.get_future(), finish)


def low_bit_hook(state: LowBitState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages with a codec, with or without error feedback: LowBitState. Without a codec ("plain") the average is exact."""
    return state._start(bucket)


def _as_halves(group: Optional[dist.ProcessGroup], bucket: dist.GradBucket, codec: str) -> torch.futures.Future[torch.Tensor]:
    buffer = bucket.buffer()
    encodes = buffer.dtype == torch.float32
    with encoded_calls(group, buffer, codec if encodes else "", "two_step" if encodes else ""):
        work = dist.all_reduce(buffer, op=dist.ReduceOp.AVG, group=group, async_op=True)
    return chained(work.get_future(), lambda _: buffer)


def fp16_hook(state: Optional[dist.ProcessGroup], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sends float32 gradients as float16, and adds them in float32; values above 65504 become infinite. state: the process
    group, or None."""
    return _as_halves(state, bucket, "f16")


def bf16_hook(state: Optional[dist.ProcessGroup], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sends float32 gradients as bfloat16, and adds them in float32. state: the process group, or None."""
    return _as_halves(state, bucket, "bf16")


class _CompressedState:
    """Gradients that a GradientReducer averages (docs/guides/thin_links.md). Base class of the states of its methods' hooks."""

    method = ""

    def __init__(
        self,
        model: torch.nn.Module,
        compression: Union[str, unisono.Compression] = "",
        process_group: Optional[dist.ProcessGroup] = None,
    ) -> None:
        from unisono.torch import backend_of

        compression = compression or self.method
        read = unisono.Compression(compression)
        self._feeds_back = read.method != "dense" and read.feedback != "none"
        self._backend = backend_of(process_group)
        self._names = names_of(model)
        self.compression = str(compression)
        trained = {name: each for name, each in plain_model(model).named_parameters() if each.requires_grad}
        shapes = {name: list(in_memory_order(each).shape) or [1] for name, each in trained.items()}
        group = core_group(process_group)
        self._rank, self._world_size = group.rank, group.world_size
        self.plan = unisono.CompressionPlan(shapes, compression)
        """How each parameter is sent, and why: str(state.plan) is a line for logs."""
        try:
            self._reducer = unisono.GradientReducer(group, shapes, compression)
        except unisono.Error as error:
            _shared.raise_torch_error(error)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "unisono-hook")
        self._open: List[Tuple[torch.Tensor, torch.Tensor, torch.futures.Future]] = []
        self.last_report: Optional[unisono.CompressionReport] = None
        """Report of the last step that ended: bytes, times, norms of residuals, and `applied`."""

    @property
    def applied(self) -> bool:
        """False: skip the last step (no rank takes an optimizer step), because some rank's gradients were not finite."""
        return self.last_report is None or self.last_report.applied

    def report(self) -> unisono.CompressionReport:
        """Report of all steps so far."""
        return self._reducer.total()

    def step_skipped(self) -> None:
        """Call after backward if no rank used the averages, as when a loss scaler skips a step. The sent part is kept and sent
        again."""
        self._reducer.step_skipped()

    def flush(self) -> None:
        """Sends the next step whole, so that no residual is left: before training ends."""
        self._reducer.flush()

    def state_dict(self) -> Dict[str, Any]:
        """This rank's state, for a bit-exact continuation; call between two steps. Each rank saves its own."""
        return {"rank": self._rank, "world_size": self._world_size, "reducer": bytes_tensor(self._reducer.save())}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """ValueError: the state was saved by another rank, or with another number of ranks, other options or other parameters.
        Nothing has changed then."""
        check_rank(state, self._rank, self._world_size, type(self).__name__)
        try:
            self._reducer.load(tensor_bytes(state["reducer"]))
        except unisono.Error as error:
            raise ValueError(f"{type(self).__name__}: {error}") from error

    def _start(self, bucket: dist.GradBucket) -> torch.futures.Future:
        buffer = bucket.buffer()
        parameters = bucket.parameters()
        if self._feeds_back:
            self._backend._check_error_feedback()
        if bucket.index() == 0 and self._open:
            raise dist.DistBackendError(
                f"{type(self).__name__}: the last backward pass ended amid its buckets, so ranks are no longer at the same step: make the process group and the state anew"
            )
        values = buffer.float()  # the bucket itself, if it is float32
        flat = values.numpy()
        gradients = {
            self._names[id(each)]: flat[begin:end]
            for each, (begin, end) in zip(parameters, parts([each.numel() for each in parameters]))
        }
        future: torch.futures.Future = torch.futures.Future()
        self._open.append((buffer, values, future))
        is_last = bucket.is_last()
        try:
            self._reducer.reduce(gradients)
        except unisono.Error as error:
            if isinstance(error, unisono.Invalid):
                self._open.pop()
                _shared.raise_torch_error(error)
            # The step's finish() raises the same error, on all ranks.
        if is_last:
            buckets, self._open = self._open, []
            self._thread.submit(self._finish, buckets)
        return future

    def _finish(self, buckets: List[Tuple[torch.Tensor, torch.Tensor, torch.futures.Future]]) -> None:
        """Runs in a separate thread once the last bucket was given: waits, and completes all futures."""
        try:
            report = self._reducer.finish()
        except BaseException as error:  # backward() raises it
            for _, _, future in buckets:
                _shared.fail(future, error)
            return
        self.last_report = report
        with torch.no_grad():
            for buffer, values, future in buckets:
                if not report.applied and "nonfinite=poison" not in self.compression:
                    values.zero_()
                future.set_result(buffer if values is buffer else buffer.copy_(values))


class ArcTopKState(_CompressedState):
    """A part of each gradient's rows is sent, the rest is kept and sent later (docs/guides/thin_links.md), for arc_top_k_hook.

    model: whose parameters' names are used; they may be in any buckets. Parameters of one dimension, and small ones, are
    averaged whole. compression: "arc:ratio=0.2,rank=4,feedback=ef14", feedback=ef21m for SGD, "random-k:...", "dense"; all
    ranks alike. Steps before `start` (1000) are averaged whole, and so are all where compression does not pay (auto_off=off:
    compress all the same).

    All ranks make it alike, on the thread that makes collectives. A step in which some rank's gradients were not finite is
    skipped by all: `applied` is False then, and gradients are zeros (nonfinite=poison: NaN, for a loss scaler).

    Source: ARC-Top-K (arXiv:2510.26709). ValueError: options or parameters make no sense, or differ between ranks; a group of
    another backend.
    """

    method = "arc"


class PowerSgdState(_CompressedState):
    """Each gradient's average is sent as two factors of a few columns (docs/guides/thin_links.md), for power_sgd_hook.

    A rank adds the difference between its gradient and the average to its next gradient. compression: "power_sgd:rank=4", where
    `rank` is the number of
    columns. Everything else is as in ArcTopKState.

    Source: PowerSGD (arXiv:1905.13727). ValueError: options or parameters make no sense, or differ between ranks; a group of
    another backend.
    """

    method = "power_sgd"


def arc_top_k_hook(state: ArcTopKState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages compressed gradients: ArcTopKState. The futures of all buckets complete together, when the step is done."""
    return state._start(bucket)


def power_sgd_hook(state: PowerSgdState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages gradients as two factors: PowerSgdState. The futures of all buckets complete together, when the step is done."""
    return state._start(bucket)


class LossyState:
    """Gradients over links that lose packets: an unbiased estimate replaces data that does not arrive in time
    (docs/guides/packet_loss.md), for lossy_hook.

    delivery: "lossy:loss_budget=0.1", "automatic", ...; codec: "int8", ... All ranks have equal averages to the bit. The
    group's links must carry datagrams: init_process_group("unisono", pg_options=unisono.torch.Options(transport="udp")), or
    UNISONO_TRANSPORT=udp.

    ValueError: no such delivery; a group of another backend, or whose links carry no datagrams.
    """

    def __init__(
        self,
        process_group: Optional[dist.ProcessGroup] = None,
        delivery: str = "lossy:loss_budget=0.05",
        *,
        codec: str = "",
        reports: int = 1000,
    ) -> None:
        from unisono.torch import call_options

        with call_options(delivery=delivery, codec=codec):  # ValueError: no such delivery or codec
            pass
        if core_group(process_group).datagram_bytes() == 0:
            raise ValueError(
                "LossyState: the links of this group carry no datagrams: it needs the transport udp (unisono.torch.Options(transport=\"udp\"), or UNISONO_TRANSPORT=udp)"
            )
        self.process_group, self.delivery, self.codec = process_group, delivery, codec
        self.reports: Deque[Dict[str, Any]] = collections.deque(maxlen=reports)
        """Reports of the last steps, oldest first: step, from 0; buckets; lossy, the number of lossy buckets; missing, the share of their bytes that is missing,
        mean over buckets by elements; effective_contributors, the smallest of any bucket."""
        self.steps = 0
        self._lock = threading.Lock()

    def report(self) -> Dict[str, Any]:
        """Returns the number of steps in `reports`, and their mean share of missing data."""
        with self._lock:
            shares = [each["missing"] for each in self.reports]
        return {
            "steps": self.steps,
            "told_of": len(shares),
            "missing": sum(shares) / len(shares) if shares else 0.0,
            "delivery": self.delivery,
        }

    def state_dict(self) -> Dict[str, Any]:
        """Holds only the number of steps, because there are no residuals."""
        return {"steps": self.steps, "delivery": self.delivery}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.steps = state["steps"]

    def _start(self, bucket: dist.GradBucket) -> torch.futures.Future:
        from unisono.torch import call_options

        buffer = bucket.buffer()
        if bucket.index() == 0:
            with self._lock:
                self.reports.append(
                    {
                        "step": self.steps,
                        "buckets": 0,
                        "lossy": 0,
                        "elements": 0,
                        "missing": 0.0,
                        "effective_contributors": float("inf"),
                    }
                )
        step_report = self.reports[-1]
        self.steps += bucket.is_last()
        with call_options(delivery=self.delivery, codec=self.codec):
            work = dist.all_reduce(buffer, op=dist.ReduceOp.AVG, group=self.process_group, async_op=True)

        def finish(_: torch.Tensor) -> torch.Tensor:
            report = work.report()
            with self._lock:
                elements = step_report["elements"] + buffer.numel()
                missing = report.get("missing", 0.0) - step_report["missing"]
                step_report["missing"] += missing * buffer.numel() / elements
                step_report["elements"] = elements
                step_report["buckets"] += 1
                step_report["lossy"] += bool(report.get("lossy", False))
                step_report["effective_contributors"] = min(
                    step_report["effective_contributors"], report.get("effective_contributors", float(report["contributors"]))
                )
            return buffer

        return chained(work.get_future(), finish)


def lossy_hook(state: LossyState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages over links that lose packets: LossyState."""
    return state._start(bucket)
