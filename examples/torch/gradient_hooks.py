"""How gradients travel, by words: communication hooks of DistributedDataParallel, those of torch and those of unisono.torch.

  none                  the average of float32, as DistributedDataParallel does it by itself
  fp16, bf16            as numbers of 16 bits; with the backend unisono sums are those of float32
  powersgd, powersgd:8  PowerSGD of that rank (4), of torch
  low_bit:int8          with a codec of Unisono; low_bit:int4+ef with error feedback
  arc:0.2               ARC-Top-K with that share of the rows (error feedback is part of it), or with options: arc:ratio=0.1,rank=8
  ...+always            low_bit and arc: even where it does not pay, as inside one host
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

HELP = __doc__


class NotThere(Exception):
    """This backend, or this build, has no such hook."""


def under_another_name(hook: Any) -> Any:
    """torch refuses its bf16 hooks by their names where there is no GPU."""
    return lambda state, bucket: hook(state, bucket)


def of_unisono(name: str) -> Any:
    import unisono.torch

    found = getattr(unisono.torch, name, None)
    if found is None:
        raise NotThere(f"unisono.torch has no {name}")
    return found


def halves(words: str, backend: str, group: Any) -> tuple[Any, Any]:
    if backend == "unisono":
        return group, of_unisono(f"{words}_hook")
    return group, under_another_name({"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}[words])


def hook_of(words: str, backend: str, model: torch.nn.Module, group: Any, start: int) -> tuple[Any, Any]:
    """(state, hook). NotThere. ValueError: no such words."""
    name, *more = words.split("+")
    kind, _, value = name.partition(":")
    always, feedback = "always" in more, "ef" in more
    if not set(more) <= {"always", "ef"}:
        raise ValueError(f"--hook {words}: after + come ef, always")
    if kind in ("fp16", "bf16") and not value and not more:
        return halves(kind, backend, group)
    if kind == "powersgd" and not more:
        # It needs a step or two before it, in which buckets take their final form.
        return powerSGD_hook.PowerSGDState(process_group=group, matrix_approximation_rank=int(value or 4), start_powerSGD_iter=max(2, start)), powerSGD_hook.powerSGD_hook
    if kind in ("low_bit", "arc") and backend != "unisono":
        raise NotThere(f"{words} is for the backend unisono")
    if kind == "low_bit":
        state = of_unisono("LowBitState")(group, value or "int8", feedback, model=model, schedule="two_step" if always else "")
        return state, of_unisono("low_bit_hook")
    if kind == "arc":
        options = value if "=" in value else f"ratio={value or 0.2},rank=4"
        options += ("" if "start=" in options else f",start={start}") + (",auto_off=off" if always else "")
        return of_unisono("ArcTopKState")(model, f"arc:{options}", group), of_unisono("arc_top_k_hook")
    raise ValueError(f"--hook {words}: {HELP}")


def register(network: torch.nn.parallel.DistributedDataParallel, words: str, backend: str, group: Any = None, start: int = 20) -> Any:
    """Its state, or None. start: the step from which powersgd and arc compress."""
    if words == "none":
        return None
    state, hook = hook_of(words, backend, network, group or dist.group.WORLD, start)
    network.register_comm_hook(state, hook)
    return state
