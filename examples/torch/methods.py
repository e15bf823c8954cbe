"""How a model is trained by several processes, by words: every method of unisono.torch in a few lines, and torch's own beside them.

  exact                   the average of float32, as DistributedDataParallel does it by itself
  fp16, bf16              gradients as numbers of 16 bits; with the backend unisono sums are those of float32
  powersgd, powersgd:8    PowerSGD of that rank (4), of torch
  low_bit:int8            gradients with a codec of Unisono; low_bit:int4+ef with error feedback
  arc:0.2                 ARC-Top-K with that share of the rows, or with options: arc:ratio=0.1,feedback=ef21m
                          (for --optimizer sgd --momentum 0: it has a running mean of its own)
  ...+always              low_bit and arc: even where it does not pay, as inside one host
  lossy                   gradients by datagrams; what does not come in time is replaced in expectation. Options: lossy:loss_budget=0.1
  sharded                 every rank owns a shard of the parameters and sends its values by datagrams. Options: sharded:loss_budget=0.2, sharded:delivery=reliable
  drop_compute            a rank that is late leaves out micro-batches. Options: drop_compute:auto:max_drop=0.2
  moshpit, moshpit:16     steps of one's own; every 8 (16) of them parameters are averaged among the peers present
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
except ImportError:  # gloo's methods work without it
    ut = None

HELP = __doc__
LOSSY, SHARDED = "loss_budget=0.1", "loss_budget=0.2"
DROP = "auto:calibration=20,max_drop=0.3"  # these runs are short
Batches = Callable[[int], Any]  # the micro-batch at a place of this rank's data, from 0


class NotThere(Exception):
    """This backend, or this build, has no such method."""


def split(words: str) -> tuple[str, str]:
    kind, _, value = words.partition(":")
    return kind, value


def needs_datagrams(words: str) -> bool:
    """Whether the process group's links have to be UDP."""
    kind, value = split(words)
    return kind == "lossy" or (kind == "sharded" and "delivery=reliable" not in value)


# --- hooks of DistributedDataParallel: how gradients travel -----------------------------------------------------------

def under_another_name(hook: Any) -> Any:
    """torch refuses its bf16 hooks by their names where there is no GPU."""
    return lambda state, bucket: hook(state, bucket)


def low_bit(model: torch.nn.Module, group: Any, value: str, more: list[str]) -> tuple[Any, Any]:
    schedule = "two_step" if "always" in more else ""
    return ut.LowBitState(group, value or "int8", "ef" in more, model=model, schedule=schedule), ut.low_bit_hook


def arc(model: torch.nn.Module, group: Any, value: str, more: list[str], start: int) -> tuple[Any, Any]:
    options = value if "=" in value else f"ratio={value or 0.2},rank=4"
    options += ("" if "start=" in options else f",start={start}") + (",auto_off=off" if "always" in more else "")
    return ut.ArcTopKState(model, f"arc:{options}", group), ut.arc_top_k_hook


def hook_of(words: str, backend: str, model: torch.nn.Module, group: Any, start: int) -> tuple[Any, Any]:
    """(state, hook). NotThere. ValueError: no such words."""
    name, *more = words.split("+")
    kind, value = split(name)
    if not set(more) <= {"always", "ef"} or (more and kind not in ("low_bit", "arc")) or (kind in ("fp16", "bf16") and value):
        raise ValueError(f"--method {words}: {HELP}")
    if kind == "powersgd":
        # It needs a step or two before it, in which buckets take their final form.
        return powerSGD_hook.PowerSGDState(process_group=group, matrix_approximation_rank=int(value or 4), start_powerSGD_iter=max(2, start)), powerSGD_hook.powerSGD_hook
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
    if split(words.split("+")[0])[0] in ("low_bit", "arc", "lossy", "sharded", "drop_compute", "moshpit") and backend != "unisono":
        raise NotThere(f"{words} is for the backend unisono")
    if backend == "unisono" and ut is None:
        raise NotThere("this Python has no unisono.torch")


def register(network: DistributedDataParallel, words: str, backend: str, group: Any = None, start: int = 20) -> Any:
    """The hook's state, or None. start: the step from which powersgd and arc compress."""
    if words == "exact":
        return None
    check_backend(words, backend)
    state, hook = hook_of(words, backend, network, group or dist.group.WORLD, start)
    network.register_comm_hook(state, hook)
    return state


# --- ways of training -------------------------------------------------------------------------------------------------

class MuonAndAdamW:
    """Muon for the matrices of the blocks, which is what it is made for, AdamW at a twentieth of the rate for all else: embeddings, the last layer, vectors."""

    def __init__(self, model: torch.nn.Module, rate: float) -> None:
        matrices = [each for name, each in model.named_parameters() if ".blocks." in f".{name}" and each.dim() == 2]
        chosen = {id(each) for each in matrices}
        others = [each for each in model.parameters() if id(each) not in chosen]
        self.parts = (torch.optim.Muon(matrices, lr=rate), torch.optim.AdamW(others, lr=rate / 20, betas=(0.9, 0.95), fused=True))
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
    """Averaged gradients, not those of one rank: what a hook has left over is not to be cut twice."""
    if options.clip > 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)


class Hooked:
    """DistributedDataParallel: the average of gradients, by a hook or without."""

    spread_max = 0.0  # ranks have the same parameters at the end, to the bit

    def __init__(self, model: torch.nn.Module, options: argparse.Namespace, loss_of: Callable[..., torch.Tensor]) -> None:
        self.network = DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb)
        self.state = register(self.network, options.method, options.backend, start=options.method_start)
        self.optimizer = optimizer_of(model, options)
        self.options, self.micro_batches, self.loss_of, self.done, self.skipped = options, options.micro_batches, loss_of, 0, 0

    def step(self, batches: Batches) -> float:
        """One optimizer's step; its loss at this rank."""
        self.optimizer.zero_grad()
        total = 0.0
        for number in range(self.micro_batches):
            last = number == self.micro_batches - 1
            with contextlib.nullcontext() if last else self.network.no_sync():
                loss = self.loss_of(self.network, *batches(self.done + number)) / self.micro_batches
                loss.backward()
            total += loss.item()
        self.done += self.micro_batches
        if getattr(self.state, "applied", True):  # ARC-Top-K: False where some rank's gradients were not finite
            clip(self.network, self.options)
            self.optimizer.step()
        else:
            self.skipped += 1
        return total

    def finish(self) -> None:
        """Before parameters are looked at. All ranks."""

    def report(self) -> Dict[str, Any]:
        """The method's own report; "words" is for people."""
        if ut is None or not isinstance(self.state, (ut.LowBitState, ut.ArcTopKState, ut.LossyState)):
            return {"words": ""}
        told = self.state.report()
        if isinstance(self.state, ut.LowBitState):
            note = f"; {told['codec_note']}" if told["codec_note"] else ""
            return {**told, "words": f"{told['bits_per_element']:.2f} bits per element{note}"}
        if isinstance(self.state, ut.LossyState):
            worth = min(each["effective_contributors"] for each in self.state.reports)
            return {**told, "effective_contributors_min": worth, "words": f"{told['missing']:.2%} did not come; sums of at least {worth:.2f} ranks' worth"}
        off = f"; {told.off}" if told.off else ""
        return {"skipped_steps": self.skipped, "payload_ratio": told.payload_ratio(), "off": told.off, "warnings": list(told.warnings), "all": str(told), "words": f"{told.payload_ratio():.0%} of all values were sent, in all steps{off}"}


class DropCompute:
    """As Hooked, but a rank that is late leaves out its remaining micro-batches."""

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
        self.told = self.drop.finish()

    def report(self) -> Dict[str, Any]:
        told = self.told
        how = f"off: {told.off}" if told.off else f"{told.state}, threshold {1000 * told.threshold:.0f} ms" if told.threshold > 0 else told.state
        return {"drop": told.drop, "drop_most": told.drop_most, "drop_most_rank": told.drop_most_rank, "all": str(told), "words": f"{told.drop:.1%} of micro-batches left out, of rank {told.drop_most_rank}'s {told.drop_most:.0%} ({how})"}


def missing_of(deliveries: list[Any]) -> float:
    """The share of the datagrams for this rank that did not come."""
    streams = [stream for each in deliveries if each is not None for phase in (each.contribute, each.result) for stream in phase.streams]
    return sum(stream.missing for stream in streams) / max(1, sum(stream.expected for stream in streams))


def accumulate(way: Any, batches: Batches) -> float:
    """This rank's own gradients of one step, without any exchange; their loss."""
    way.optimizer.zero_grad()
    total = 0.0
    for number in range(way.micro_batches):
        loss = way.loss_of(way.model, *batches(way.done + number)) / way.micro_batches
        loss.backward()
        total += loss.item()
    way.done += way.micro_batches
    return total


class Sharded:
    """No DistributedDataParallel: the optimizer averages gradients, updates this rank's shard of the parameters, and takes what comes of the others'."""

    spread_max = 0.0

    def __init__(self, model: torch.nn.Module, options: argparse.Namespace, loss_of: Callable[..., torch.Tensor]) -> None:
        how = {"momentum": options.momentum} if options.optimizer == "sgd" else {"betas": (0.9, 0.95)}
        self.optimizer = ut.ShardedOptimizer(model.parameters(), options.rate, options.optimizer, split(options.method)[1] or SHARDED, reports=options.steps, **how)
        self.model, self.micro_batches, self.loss_of, self.done = model, options.micro_batches, loss_of, 0

    def step(self, batches: Batches) -> float:
        total = accumulate(self, batches)
        self.optimizer.step()
        return total

    def finish(self) -> None:
        self.optimizer.resync()

    def report(self) -> Dict[str, Any]:
        told = self.optimizer.reports
        gradients, values = missing_of([each.gradients for each in told]), missing_of([each.values for each in told])
        oldest = max(each.age_max for each in told)
        return {"gradients_missing": gradients, "values_missing": values, "age_max": oldest,
                "words": f"{gradients:.2%} of gradients, {values:.2%} of values did not come; the oldest values were {oldest} steps old"}


class Moshpit:
    """A peer of an elastic run, which any process may join or leave. (The process group is there to tell rank 0's address, and to compare at the end.)"""

    spread_max = 0.05  # of the parameters' norm: peers that end at different times are in different last averaging steps

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
        self.model, self.micro_batches, self.loss_of, self.done, self.samples = model, options.micro_batches, loss_of, 0, options.batch * options.micro_batches
        self.optimizer.run.ready(60)

    def step(self, batches: Batches) -> float:
        total = accumulate(self, batches)
        self.optimizer.step(samples=self.samples)
        return total

    def finish(self) -> None:
        self.optimizer.finish()

    def report(self) -> Dict[str, Any]:
        told = self.optimizer.report()
        return {"averaging_steps": told.averaging_steps, "exact": told.exact, "sent_bytes": self.optimizer.status().sent_bytes, "words": f"{told.averaging_steps} averaging steps, {told.exact} of them exact; waited {told.waited_s:.2f} of {told.total_s:.1f} s"}


WAYS = {"drop_compute": DropCompute, "sharded": Sharded, "moshpit": Moshpit}


def make(model: torch.nn.Module, options: argparse.Namespace, loss_of: Callable[..., torch.Tensor]) -> Any:
    """The way of training that options.method says. NotThere. ValueError: no such words, or options that make no sense."""
    check_backend(options.method, options.backend)
    way = WAYS.get(split(options.method)[0], Hooked)
    if way in (Sharded, Moshpit) and (options.optimizer == "muon" or options.clip > 0):
        raise ValueError(f"--method {options.method}: without --optimizer muon and --clip, as each process steps by what it has itself")
    return way(model, options, loss_of)
