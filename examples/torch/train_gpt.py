"""Several processes train a small GPT on the bytes of a text, exactly or with any method of unisono.torch. For comparison, gloo
can be used.

  examples/language_model/prepare_text.sh text.txt           # the King James Bible; any text works
  torchrun --nproc-per-node 4 examples/torch/train_gpt.py --text text.txt --method low_bit:int8 --out run.json
  torchrun --nproc-per-node 4 examples/torch/train_gpt.py --text text.txt --method drop_compute --micro-batches 4 \\
           --slow 3:60:0.3

Exit status 1 if parameters differ between ranks at the end: in any bit, or with moshpit by more than 5 % of their norm.
"""

import argparse
import json
import math
import os
import pathlib
import random
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gpt  # noqa: E402
import methods  # noqa: E402

HELD_OUT_BATCH = 8  # in sequences


def slowness(words: str) -> tuple[int, float, float]:
    rank, milliseconds, share = (words + ":1").split(":")[:3]
    return int(rank), float(milliseconds) / 1000, float(share)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__ + "\nMethods:\n" + methods.HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--text", type=pathlib.Path, required=True, help="what is learnt; examples/language_model/prepare_text.sh writes one"
    )
    parser.add_argument("--backend", choices=("gloo", "unisono"), default="unisono", help="default: %(default)s")
    parser.add_argument(
        "--method",
        default="exact",
        metavar="WORDS",
        help="how ranks come to the same parameters, see below (default: %(default)s)",
    )
    parser.add_argument(
        "--method-start", type=int, default=20, help="step from which powersgd and arc compress (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of parameters and of what is read (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank and micro-batch (default: %(default)s)")
    parser.add_argument(
        "--held-out",
        type=int,
        default=64,
        help="sequences that the loss at the end is of; more say it more exactly (default: %(default)s)",
    )
    parser.add_argument(
        "--micro-batches", type=int, default=1, help="per rank and step; their gradients are added (default: %(default)s)"
    )
    parser.add_argument(
        "--slow",
        type=slowness,
        metavar="RANK:MS[:SHARE]",
        help="that rank pauses so many milliseconds in each micro-batch of a share of the steps (all)",
    )
    parser.add_argument("--context", type=int, default=128, help="bytes of a sequence (default: %(default)s)")
    for name, usual in (("layers", 6), ("width", 384), ("heads", 6)):
        parser.add_argument("--" + name, type=int, default=usual, help="of the model (default: %(default)s)")
    parser.add_argument(
        "--optimizer",
        choices=("adamw", "muon", "sgd"),
        default="adamw",
        help="default: %(default)s; muon: for the matrices of the blocks, AdamW for the others",
    )
    parser.add_argument("--momentum", type=float, default=0.9, help="of sgd (default: %(default)s)")
    parser.add_argument(
        "--rate", type=float, help="learning rate at its highest (default: 1e-3 of adamw, 0.02 of muon, 0.1 of sgd)"
    )
    parser.add_argument(
        "--last-rate", type=float, default=0.1, help="learning rate at the end, as a part of the highest (default: %(default)s)"
    )
    parser.add_argument("--clip", type=float, default=0, help="averaged gradients are cut to this norm (default: not)")
    parser.add_argument(
        "--bucket-mb", type=float, help="of DistributedDataParallel (default: its own, 25, and 1 for the first bucket)"
    )
    parser.add_argument(
        "--interface",
        default=os.environ.get("UNISONO_INTERFACE", ""),
        help="of moshpit: name or address (default: $UNISONO_INTERFACE, else any)",
    )
    parser.add_argument(
        "--out", type=pathlib.Path, help="JSON with the loss and the time of every step, and the method's report"
    )
    options = parser.parse_args()
    options.rate = options.rate or {"adamw": 1e-3, "muon": 0.02, "sgd": 0.1}[options.optimizer]
    return options


def share_of_rate(step: int, options: argparse.Namespace) -> float:
    """Returns the share of the highest learning rate: it rises for a twentieth of the steps, then falls along a cosine to
    --last-rate."""
    warm = max(1, options.steps // 20)
    if step < warm:
        return (step + 1) / warm
    down = (1 - math.cos(math.pi * (step - warm) / max(1, options.steps - warm))) / 2
    return 1 - (1 - options.last_rate) * down


class Progress:
    """Shows progress on standard error: a bar on a terminal, else a line after every twentieth of the steps."""

    def __init__(self, steps: int) -> None:
        self.steps, self.terminal, self.began = steps, sys.stderr.isatty(), time.monotonic()

    def tell(self, done: int, loss: float) -> None:
        words = f"step {done} of {self.steps}, loss {loss:.4f}, {(time.monotonic() - self.began) / done * 1000:.0f} ms per step"
        if self.terminal:
            filled = 30 * done // self.steps
            print(
                f"\r[{'#' * filled}{'.' * (30 - filled)}] {words}",
                end="\n" if done == self.steps else "",
                file=sys.stderr,
                flush=True,
            )
        elif done == self.steps or done % max(1, self.steps // 20) == 0:
            print(words, file=sys.stderr, flush=True)


def means_of_ranks(values: list[float]) -> list[float]:
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    return (total / dist.get_world_size()).tolist()


def means_of_steps(values: dict[int, float], steps: int) -> list[float]:
    """Returns the mean of each step over the ranks that have a value for it."""
    sums = means_of_ranks([values.get(step, 0.0) for step in range(steps)])
    shares = means_of_ranks([float(step in values) for step in range(steps)])
    return [total / share for total, share in zip(sums, shares)]


def sent_bytes() -> float:
    """Returns the bytes that this rank has sent over all network interfaces. Ranks of one host each get an equal part of the
    host's bytes."""
    lines = pathlib.Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.partition(":")[2].split()[8]) for line in lines) / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def held_out_loss(model: torch.nn.Module, text: gpt.Text, sequences: int) -> float:
    """Returns the mean loss over held-out sequences, which do not depend on the seed. Each rank computes a part of them."""
    batches = max(1, sequences // HELD_OUT_BATCH)
    with torch.no_grad():
        total = sum(
            gpt.loss_of(model, *text.held_out_batch(number, HELD_OUT_BATCH)).item()
            for number in range(dist.get_rank(), batches, dist.get_world_size())
        )
    return means_of_ranks([total])[0] * dist.get_world_size() / batches


def same_on_all_ranks(model: torch.nn.Module) -> bool:
    bits = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).view(torch.int32).long()
    mine = torch.stack([bits.sum(), (bits * (torch.arange(len(bits)) % 65521)).sum()])
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return all(torch.equal(one, mine) for one in every)


def spread(model: torch.nn.Module) -> float:
    """Returns the largest distance of a rank's parameters from the mean of all ranks, divided by the mean's norm."""
    mine = torch.cat([parameter.detach().reshape(-1).double() for parameter in model.parameters()])
    mean = mine.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    distance = (mine - mean).norm() / mean.norm()
    dist.all_reduce(distance, op=dist.ReduceOp.MAX)
    return distance.item()


class Reader:
    """Reads the micro-batch at a position of this rank's data. On a slow rank, reading takes longer."""

    def __init__(self, text: gpt.Text, options: argparse.Namespace) -> None:
        self.text, self.options, self.rank, self.pause_s = text, options, dist.get_rank(), 0.0

    def begin_step(self, step: int) -> None:
        slow_rank, pause_s, share = self.options.slow or (-1, 0.0, 0.0)
        late = slow_rank == self.rank and random.Random(f"{self.options.seed} {step}").random() < share
        self.pause_s = pause_s if late else 0.0

    def __call__(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.pause_s)
        return self.text.batch(self.options.seed, position, self.rank, self.options.batch)


def train(options: argparse.Namespace) -> dict[str, Any]:
    text = gpt.Text(options.text, options.context)
    torch.manual_seed(options.seed)
    model = gpt.GPT(options.layers, options.width, options.heads, options.context)
    way, read = methods.make(model, options, gpt.loss_of), Reader(text, options)
    progress = Progress(options.steps)
    losses, seconds = {}, {}  # by step; a rank that was away has missed some
    rates = [group["lr"] for group in way.optimizer.param_groups]
    dist.barrier()
    sent = sent_bytes()
    step = 0
    while step < options.steps:
        began = time.perf_counter()
        for group, rate in zip(way.optimizer.param_groups, rates):
            group["lr"] = rate * share_of_rate(step, options)
        read.begin_step(step)
        losses[step] = way.step(read)
        seconds[step] = time.perf_counter() - began
        if dist.get_rank() == 0:
            progress.tell(step + 1, losses[step])
        # A rank whose sharded steps lose packets may have missed some of the others' steps.
        step = way.optimizer.current_step if isinstance(way, methods.Sharded) else step + 1
    dist.barrier()  # data of this rank may still be in flight to another rank
    sent = sent_bytes() - sent
    way.finish()
    apart = spread(model)
    return {
        "options": {
            name: str(value) if isinstance(value, pathlib.Path) else value
            for name, value in vars(options).items()
            if name not in ("out", "text")
        },
        "world_size": dist.get_world_size(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "torch": torch.__version__,
        "held_out_loss": held_out_loss(model, text, options.held_out),
        "spread": apart,
        "spread_max": way.spread_max,
        "same_on_all_ranks": same_on_all_ranks(model),
        "together": apart <= way.spread_max if way.spread_max else same_on_all_ranks(model),
        "sent_bytes_per_step": means_of_ranks([sent / options.steps])[0],
        "report": way.report(),
        "loss": means_of_steps(losses, options.steps),
        "step_s": means_of_steps(seconds, options.steps),
    }


def tell(result: dict[str, Any], options: argparse.Namespace) -> None:
    usual = sorted(result["step_s"])[options.steps // 2]
    print(
        f"{result['parameters']:,} parameters, {options.backend}, {options.method}: loss {result['loss'][0]:.4f} -> {result['loss'][-1]:.4f}, held out {result['held_out_loss']:.4f} nats per byte, "
        f"{1000 * usual:.0f} ms and {result['sent_bytes_per_step'] / 1e6:.2f} MB per step; {result['report']['words']}"
    )
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result) + "\n")


def main() -> int:
    options = parse_arguments()
    if not options.text.exists():
        sys.exit(
            f"{options.text} is not there; examples/language_model/prepare_text.sh {options.text} writes one, of Debian's bible-kjv"
        )
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        methods.check_backend(options.method, options.backend)
        datagrams = methods.ut.Options(transport="udp") if methods.needs_datagrams(options.method) else None
        dist.init_process_group(options.backend, pg_options=datagrams)
        result = train(options)
        if dist.get_rank() == 0:
            tell(result, options)
    except (methods.NotThere, ValueError) as problem:
        print(f"train_gpt.py: {problem}", file=sys.stderr)
        return 2
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return end(result, options)


def end(result: dict[str, Any], options: argparse.Namespace) -> int:
    """Returns the exit status. With gloo, ends the process at once."""
    code = exit_status(result)
    if options.backend == "gloo":
        # DistributedDataParallel keeps the process group, and gloo's threads may still hold tensors. If they release one while
        # Python ends, the process aborts (pull request 179291 of pytorch/pytorch).
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def exit_status(result: dict[str, Any]) -> int:
    if not result["together"]:
        print(
            f"train_gpt.py: parameters are not the same on all ranks; the farthest is {result['spread']:.2%} of their norm from the mean",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
