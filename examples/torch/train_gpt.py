"""A small GPT learns a text, byte by byte, on several processes: DistributedDataParallel with the backend gloo or unisono.

  examples/language_model/prepare_text.sh text.txt           # the King James Bible, of Debian's bible-kjv; any other text will do
  torchrun --nproc-per-node 4 examples/torch/train_gpt.py --text text.txt --backend unisono --hook low_bit:int8 --out run.json

Ends with status 1 if parameters are not the same on all ranks.
"""

import argparse
import json
import math
import os
import pathlib
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gpt  # noqa: E402
import gradient_hooks  # noqa: E402

HELD_OUT_SEQUENCES = 64


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__ + "\nHooks:\n" + gradient_hooks.HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, required=True, help="what is learnt; examples/language_model/prepare_text.sh writes one")
    parser.add_argument("--backend", choices=("gloo", "unisono"), default="unisono", help="default: %(default)s")
    parser.add_argument("--hook", default="none", help="how gradients travel, see below (default: %(default)s)")
    parser.add_argument("--hook-start", type=int, default=20, help="step from which powersgd and arc compress (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of parameters and of what is read (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank and step (default: %(default)s)")
    parser.add_argument("--context", type=int, default=128, help="bytes of a sequence (default: %(default)s)")
    for name, usual in (("layers", 6), ("width", 384), ("heads", 6)):
        parser.add_argument("--" + name, type=int, default=usual, help="of the model (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of AdamW at its highest (default: %(default)s)")
    parser.add_argument("--bucket-mb", type=float, help="of DistributedDataParallel (default: its own, 25, and 1 for the first bucket)")
    parser.add_argument("--out", type=pathlib.Path, help="JSON with the loss and the time of every step")
    return parser.parse_args()


def rate_at(step: int, options: argparse.Namespace) -> float:
    """Up for a twentieth of the steps, then down along a cosine to a tenth."""
    warm = max(1, options.steps // 20)
    if step < warm:
        return options.rate * (step + 1) / warm
    return options.rate * (0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(1, options.steps - warm)))


class Progress:
    """On standard error: a bar on a terminal, else a line for every twentieth of the way."""

    def __init__(self, steps: int) -> None:
        self.steps, self.terminal, self.began = steps, sys.stderr.isatty(), time.monotonic()

    def tell(self, done: int, loss: float) -> None:
        words = f"step {done} of {self.steps}, loss {loss:.4f}, {(time.monotonic() - self.began) / done * 1000:.0f} ms per step"
        if self.terminal:
            filled = 30 * done // self.steps
            print(f"\r[{'#' * filled}{'.' * (30 - filled)}] {words}", end="\n" if done == self.steps else "", file=sys.stderr, flush=True)
        elif done == self.steps or done % max(1, self.steps // 20) == 0:
            print(words, file=sys.stderr, flush=True)


def mean_of_ranks(value: float) -> float:
    total = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def held_out_loss(model: torch.nn.Module, text: gpt.Text) -> float:
    """Over the same sequences whatever the seed; each rank takes a part of them."""
    batches = range(dist.get_rank(), HELD_OUT_SEQUENCES // 8, dist.get_world_size())
    with torch.no_grad():
        total = sum(gpt.loss_of(model, *text.held_out_batch(number, 8)).item() for number in batches)
    return mean_of_ranks(total) * dist.get_world_size() / (HELD_OUT_SEQUENCES // 8)


def same_on_all_ranks(model: torch.nn.Module) -> bool:
    bits = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).view(torch.int32).long()
    mine = torch.stack([bits.sum(), (bits * (torch.arange(len(bits)) % 65521)).sum()])
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return all(torch.equal(one, mine) for one in every)


def train(options: argparse.Namespace) -> dict[str, Any]:
    rank = dist.get_rank()
    text = gpt.Text(options.text, options.context)
    torch.manual_seed(options.seed)
    model = gpt.GPT(options.layers, options.width, options.heads, options.context)
    network = DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb)
    gradient_hooks.register(network, options.hook, options.backend, start=options.hook_start)
    optimizer = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.95), fused=True)
    progress = Progress(options.steps)
    losses, seconds = [], []
    for step in range(options.steps):
        began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, options)
        optimizer.zero_grad()
        loss = gpt.loss_of(network, *text.batch(options.seed, step, rank, options.batch))
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
        losses.append(mean_of_ranks(loss.item()))
        if rank == 0:
            progress.tell(step + 1, losses[-1])
    told = {name: str(value) if isinstance(value, pathlib.Path) else value for name, value in vars(options).items() if name not in ("out", "text")}
    return {"options": told, "world_size": dist.get_world_size(), "parameters": sum(parameter.numel() for parameter in model.parameters()), "torch": torch.__version__,
            "held_out_loss": held_out_loss(model, text), "same_on_all_ranks": same_on_all_ranks(model), "loss": losses, "step_s": seconds}


def main() -> int:
    options = parse_arguments()
    if not options.text.exists():
        sys.exit(f"{options.text} is not there; examples/language_model/prepare_text.sh {options.text} writes one, of Debian's bible-kjv")
    if options.backend == "unisono":
        import unisono.torch  # noqa: F401  # makes the backend known

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group(options.backend)
    try:
        result = train(options)
        if dist.get_rank() == 0:
            usual = sorted(result["step_s"])[options.steps // 2]
            print(f"{result['parameters']:,} parameters, {options.backend}, {options.hook}: loss {result['loss'][0]:.4f} -> {result['loss'][-1]:.4f}, held out {result['held_out_loss']:.4f} nats per byte, {1000 * usual:.0f} ms per step")
            if options.out:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(result) + "\n")
    except (gradient_hooks.NotThere, ValueError) as problem:
        print(f"train_gpt.py: {problem}", file=sys.stderr)
        return 2
    finally:
        dist.destroy_process_group()
    if not result["same_on_all_ranks"]:
        print("train_gpt.py: parameters are not the same on all ranks", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
