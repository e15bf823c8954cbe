"""Methods to train a model by several processes, selected by a word: every method of unisono.torch in a few lines, and torch's
methods for comparison.

exact                   averages of float32 gradients, DistributedDataParallel's default
fp16, bf16              gradients are sent as numbers of 16 bits; the backend unisono adds them in float32
powersgd, powersgd:8    torch's PowerSGD with rank 4, or 8
low_bit:int8            gradients with a codec of Unisono; low_bit:int4+ef with error feedback
arc:0.2                 ARC-Top-K with this share of the rows, or with options: arc:ratio=0.1,feedback=ef21m
                        (use feedback=ef21m with --optimizer sgd --momentum 0, because it has its own running mean)
...+always              low_bit and arc: compress even where it does not pay, as inside one host
lossy                   gradients are sent by datagrams; an unbiased estimate replaces late data. Options: lossy:loss_budget=0.1
sharded                 every rank owns a shard of the parameters and sends its values by datagrams. Options:
                        sharded:loss_budget=0.2, sharded:delivery=reliable
drop_compute            a late rank drops micro-batches. Options: drop_compute:auto:max_drop=0.2
moshpit, moshpit:16     local steps; after every 8, or 16, of them the present peers average their parameters
"""

import argparse
import contextlib
from typing import Any, Callable, Dict

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

try:
    import unisono.torch as ut
except ImportError:  # methods that need only gloo work without it
    ut = None

HELP = __doc__
LOSSY, SHARDED = "loss_budget=0.1", "loss_budget=0.2"
DROP = "auto:calibration=20,max_drop=0.3"  # short, because these runs are short
Batches = Callable[[int], Any]  # position in this rank's data, from 0 -> micro-batch


class NotThere(Exception):
    """Raised if this backend, or this build, does not have the method."""


def split(words: str) -> tuple[str, str]:
    kind, _, value = words.partition(":")
    return kind, value


def needs_datagrams(words: str) -> bool:
    """Returns whether the process group's links must be UDP."""
    kind, value = split(words)
    return kind == "lossy" or (kind == "sharded" and "delivery=reliable" not in value)


# --- hooks of DistributedDataParallel: how gradients are sent ---------------------------------------------------------

def under_another_name(hook: Any) -> Any:
    """Renames the hook: torch refuses its bf16 hooks by their names if there is no GPU."""
    return lambda state, bucket: hook(state, bucket)


def low_bit(model: torch.nn.Module, group: Any, value: str, more: list[str]) -> tuple[Any, Any]:
    schedule = "two_step" if "always" in more else ""
    return ut.LowBitState(group, value or "int8", "ef" in more, model=model, schedule=schedule), ut.low_bit_hook


def arc(model: torch.nn.Module, group: Any, value: str, more: list[str], start: int) -> tuple[Any, Any]:
    options = value if "=" in value else f"ratio={value or 0.2},rank=4"
    options += ("" if "start=" in options else f",start={start}") + (",auto_off=off" if "always" in more else "")
    return ut.ArcTopKState(model, f"arc:{options}", group), ut.arc_top_k_hook


def hook_of(words: str, backend: str, model: torch.nn.Module, group: Any, start: int) -> tuple[Any, Any]:
    """Returns (state, hook) of a method. NotThere: the method is not available. ValueError: there is no such method."""
    name, *more = words.split("+")
    kind, value = split(name)
    if not set(more) <= {"always", "ef"} or (more and kind not in ("low_bit", "arc")) or (kind in ("fp16", "bf16") and value):
        raise ValueError(f"--method {words}: {HELP}")
    if kind == "powersgd":
        # The hook must begin after the first two steps, in which buckets take their final form.
        return (
            powerSGD_hook.PowerSGDState(
                process_group=group, matrix_approximation_rank=int(value or 4), start_powerSGD_iter=max(2, start)
            ),
            powerSGD_hook.powerSGD_hook,
        )
    if kind in ("fp16", "bf16") and backend != "unisono":
        return group, under_another_name(getattr(default_hooks, kind + "_compress_hook"))
    if kind in ("fp16", "bf16"):
        return group, getattr(ut, kind + "_hook")
    if kind == "low_bit":
        return low_bit(model, group, value, more)
    if kind == "arc":
        return arc(model, group, value, more, start)
    if kind == "lossy":
        return ut.LossyState(group, "lossy:" + (value or LOSSY)), ut.lossy_hook
    raise ValueError(f"--method {words}: {HELP}")


def check_backend(words: str, backend: str) -> None:
    if (
        split(words.split("+")[0])[0] in ("low_bit", "arc", "lossy", "sharded", "drop_compute", "moshpit")
        and backend != "unisono"
    ):
        raise NotThere(f"{words} is for the backend unisono")
    if backend == "unisono" and ut is None:
        raise NotThere("this Python has no unisono.torch")


def register(network: DistributedDataParallel, words: str, backend: str, group: Any = None, start: int = 20) -> Any:
    """Registers the hook of a method. Returns the hook's state, or None. start: the step from which powersgd and arc
    compress."""
    if words == "exact":
        return None
    check_backend(words, backend)
    state, hook = hook_of(words, backend, network, group or dist.group.WORLD, start)
    network.register_comm_hook(state, hook)
    return state


# --- ways of training -------------------------------------------------------------------------------------------------

class MuonAndAdamW:
    """Muon for the matrices of the blocks, and AdamW with a twentieth of the rate for all other parameters: embeddings, the
    last layer, vectors."""

    def __init__(self, model: torch.nn.Module, rate: float) -> None:
        matrices = [each for name, each in model.named_parameters() if ".blocks." in f".{name}" and each.dim() == 2]
        chosen = {id(each) for each in matrices}
        others = [each for each in model.parameters() if id(each) not in chosen]
        self.parts = (
            torch.optim.Muon(matrices, lr=rate),
            torch.optim.AdamW(others, lr=rate / 20, betas=(0.9, 0.95), fused=True),
        )
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        for part in self.parts:
            part.step()


def optimizer_of(model: torch.nn.Module, options: argparse.Namespace) -> Any:
    if options.optimizer == "muon":
        return MuonAndAdamW(model, options.rate)
    if options.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=options.rate, momentum=options.momentum)
    return torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.95), fused=True)


def clip(model: torch.nn.Module, options: argparse.Namespace) -> None:
    """Clips averaged gradients. Gradients of one rank are not clipped, because a hook's residuals would be clipped twice."""
    if options.clip > 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)


class Hooked:
    """DistributedDataParallel averages gradients, with a hook or without."""

    spread_max = 0.0  # at the end, parameters of all ranks must be equal to the bit

    def __init__(self, model: torch.nn.Module, options: argparse.Namespace, loss_of: Callable[..., torch.Tensor]) -> None:
        self.network = DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb)
        self.state = register(self.network, options.method, options.backend, start=options.method_start)
        self.optimizer = optimizer_of(model, options)
        self.options, self.micro_batches, self.loss_of, self.done, self.skipped = options, options.micro_batches, loss_of, 0, 0

    def step(self, batches: Batches) -> float:
        """Makes one optimizer step. Returns the loss of this rank's batches."""
        self.optimizer.zero_grad()
        total = 0.0
        for number in range(self.micro_batches):
            last = number == self.micro_batches - 1
            with contextlib.nullcontext() if last else self.network.no_sync():
                loss = self.loss_of(self.network, *batches(self.done + number)) / self.micro_batches
                loss.backward()
            total += loss.item()
        self.done += self.micro_batches
        if getattr(self.state, "applied", True):  # False for ARC-Top-K if some rank's gradients were not finite
            clip(self.network, self.options)
            self.optimizer.step()
        else:
            self.skipped += 1
        return total

    def finish(self) -> None:
        """Call on all ranks before reading the parameters."""

    def report(self) -> Dict[str, Any]:
        """The method's own report. The entry "words" is a text for people."""
        if ut is None or not isinstance(self.state, (ut.LowBitState, ut.ArcTopKState, ut.LossyState)):
            return {"words": ""}
        report = self.state.report()
        if isinstance(self.state, ut.LowBitState):
            note = f"; {report['codec_note']}" if report["codec_note"] else ""
            return {**report, "words": f"{report['bits_per_element']:.2f} bits per element{note}"}
        if isinstance(self.state, ut.LossyState):
            worth = min(each["effective_contributors"] for each in self.state.reports)
            return {
                **report,
                "effective_contributors_min": worth,
                "words": f"{report['missing']:.2%} did not come; sums of at least {worth:.2f} ranks' worth",
            }
        off = f"; {report.off}" if report.off else ""
        return {
            "skipped_steps": self.skipped,
            "payload_ratio": report.payload_ratio(),
            "off": report.off,
            "warnings": list(report.warnings),
            "all": str(report),
            "words": f"{report.payload_ratio():.0%} of all values were sent, in all steps{off}",
        }


class DropCompute:
    """Like Hooked, but a late rank drops its remaining micro-batches."""

    spread_max = 0.0

    def __init__(self, model: torch.nn.Module, options: argparse.Namespace, loss_of: Callable[..., torch.Tensor]) -> None:
        self.network = DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb)
        self.drop = ut.DropCompute(options.micro_batches, split(options.method)[1] or DROP)
        self.optimizer = optimizer_of(model, options)
        self.options, self.loss_of = options, loss_of

    def step(self, batches: Batches) -> float:
        self.optimizer.zero_grad()
        losses = []
        for batch in self.drop.micro_batches(batches, self.network):
            loss = self.loss_of(self.network, *batch)
            (loss / self.drop.planned).backward()
            losses.append(loss.item())
        if self.drop.step.applied:
            clip(self.network, self.options)
            self.optimizer.step()
        return sum(losses) / max(1, len(losses))

    def finish(self) -> None:
        self.drop_report = self.drop.finish()

    def report(self) -> Dict[str, Any]:
        report = self.drop_report
        how = (
            f"off: {report.off}"
            if report.off
            else f"{report.state}, threshold {1000 * report.threshold:.0f} ms" if report.threshold > 0 else report.state
        )
        return {
            "drop": report.drop,
            "drop_most": report.drop_most,
            "drop_most_rank": report.drop_most_rank,
            "all": str(report),
            "words": f"{report.drop:.1%} of micro-batches left out, of rank {report.drop_most_rank}'s {report.drop_most:.0%} ({how})",
        }


def missing_of(deliveries: list[Any]) -> float:
    """Returns the share of the datagrams for this rank that did not arrive."""
    streams = [
        stream
        for each in deliveries
        if each is not None
        for phase in (each.contribute, each.result)
        for stream in phase.streams
    ]
    return sum(stream.missing for stream in streams) / max(1, sum(stream.expected for stream in streams))


def accumulate(way: Any, batches: Batches) -> float:
    """Computes this rank's gradients of one step, without communication. Returns the loss."""
    way.optimizer.zero_grad()
    total = 0.0
    for number in range(way.micro_batches):
        loss = way.loss_of(way.model, *batches(way.done + number)) / way.micro_batches
        loss.backward()
        total += loss.item()
    way.done += way.micro_batches
    return total


class Sharded:
    """Does not use DistributedDataParallel. The optimizer averages gradients, updates this rank's shard of the parameters, and
    receives the other shards."""

    spread_max = 0.0

    def __init__(self, model: torch.nn.Module, options: argparse.Namespace, loss_of: Callable[..., torch.Tensor]) -> None:
        how = {"momentum": options.momentum} if options.optimizer == "sgd" else {"betas": (0.9, 0.95)}
        self.optimizer = ut.ShardedOptimizer(
            model.parameters(),
            options.rate,
            options.optimizer,
            split(options.method)[1] or SHARDED,
            reports=options.steps,
            **how,
        )
        self.model, self.micro_batches, self.loss_of, self.done = model, options.micro_batches, loss_of, 0

    def step(self, batches: Batches) -> float:
        total = accumulate(self, batches)
        self.optimizer.step()
        return total

    def finish(self) -> None:
        self.optimizer.resync()

    def report(self) -> Dict[str, Any]:
        reports = self.optimizer.reports
        gradients, values = missing_of([each.gradients for each in reports]), missing_of([each.values for each in reports])
        oldest = max(each.age_max for each in reports)
        return {
            "gradients_missing": gradients,
            "values_missing": values,
            "age_max": oldest,
            "words": f"{gradients:.2%} of gradients, {values:.2%} of values did not come; the oldest values were {oldest} steps old",
        }


class Moshpit:
    """A peer of an elastic run, which any process may join or leave. The process group is used only to send rank 0's address,
    and to compare at the end."""

    spread_max = (
        0.05  # share of the parameters' norm: peers that end at different times take part in different last averaging steps
    )

    def __init__(self, model: torch.nn.Module, options: argparse.Namespace, loss_of: Callable[..., torch.Tensor]) -> None:
        rank, every = dist.get_rank(), int(split(options.method)[1] or 8)
        inner = optimizer_of(model, options)
        more = {"run_id": "train_gpt", "every": every, "min_peers": dist.get_world_size(), "interface": options.interface}
        seeds = [""]
        if rank == 0:
            self.optimizer = ut.MoshpitOptimizer(inner, found=True, **more)
            seeds = self.optimizer.status().endpoints[:1]
        dist.broadcast_object_list(seeds)
        if rank != 0:
            self.optimizer = ut.MoshpitOptimizer(inner, seeds=seeds, **more)
        self.model, self.micro_batches, self.loss_of, self.done, self.samples = (
            model,
            options.micro_batches,
            loss_of,
            0,
            options.batch * options.micro_batches,
        )
        self.optimizer.run.ready(60)

    def step(self, batches: Batches) -> float:
        total = accumulate(self, batches)
        self.optimizer.step(samples=self.samples)
        return total

    def finish(self) -> None:
        self.optimizer.finish()

    def report(self) -> Dict[str, Any]:
        report = self.optimizer.report()
        return {
            "averaging_steps": report.averaging_steps,
            "exact": report.exact,
            "sent_bytes": self.optimizer.status().sent_bytes,
            "words": f"{report.averaging_steps} averaging steps, {report.exact} of them exact; waited {report.waited_s:.2f} of {report.total_s:.1f} s",
        }


WAYS = {"drop_compute": DropCompute, "sharded": Sharded, "moshpit": Moshpit}


def make(model: torch.nn.Module, options: argparse.Namespace, loss_of: Callable[..., torch.Tensor]) -> Any:
    """Returns the way of training for options.method. NotThere: the method is not available. ValueError: there is no such
    method, or its options are wrong."""
    check_backend(options.method, options.backend)
    way = WAYS.get(split(options.method)[0], Hooked)
    if way in (Sharded, Moshpit) and (options.optimizer == "muon" or options.clip > 0):
        raise ValueError(
            f"--method {options.method}: without --optimizer muon and --clip, as each process steps by what it has itself"
        )
    return way(model, options, loss_of)
