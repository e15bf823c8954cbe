"""One rank of bench/torch_training: of each arm (a backend and a hook) a copy of the model, trained in turn, step by step, in
the same processes.

  training_rank.py PLAN.json       with RANK and WORLD_SIZE

The plan: {"folder", "text", "steps", "warm_steps", "batch", "context", "layers", "width", "heads", "bucket_mb", "bucket_view",
"arms": [{"name", "backend", "hook", perhaps "bucket_mb"}]}. Rank 0 writes a line of JSON per arm and step: forward and backward
with the exchange, and the same without it (no_sync), from when all ranks begin until the last one is done.
"""

import contextlib
import copy
import json
import os
import pathlib
import statistics
import sys
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "examples/torch")]

from torch_lib.processes import end_with_parent  # noqa: E402

end_with_parent()

import gpt  # noqa: E402
import methods  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import unisono.torch  # noqa: E402
from torch_lib.board import Board  # noqa: E402


def sent_bytes():
    """By this host's cable so far."""
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "eth0":
            return int(rest.split()[8])
    return 0


class Arm:
    """A model of its own, which learns by one way of exchanging gradients."""

    def __init__(self, settings, model, plan, groups):
        self.name = settings["name"]
        group = groups[settings["backend"]]
        self.network = DistributedDataParallel(
            copy.deepcopy(model),
            process_group=group,
            bucket_cap_mb=settings.get("bucket_mb", plan["bucket_mb"]),
            gradient_as_bucket_view=plan["bucket_view"],
        )
        self.state = methods.register(self.network, settings["hook"], settings["backend"], group, start=2)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=5e-4, betas=(0.9, 0.95), fused=True)

    def pass_over(self, batch, board, exchange):
        """(seconds until the last rank was done, loss, bytes sent) of forward and backward."""
        self.optimizer.zero_grad()
        board.rest(0.001)
        board.meet()
        before, began = sent_bytes(), time.perf_counter()
        with contextlib.nullcontext() if exchange else self.network.no_sync():
            loss = gpt.loss_of(self.network, *batch)
            loss.backward()
        took = time.perf_counter() - began
        every = board.every([took, loss.item()])
        # Count the bytes after all ranks are done: a rank's own step may end before all its bytes are sent.
        sent = board.every([float(sent_bytes() - before)])
        return max(row[0] for row in every), statistics.mean(row[1] for row in every), statistics.mean(row[0] for row in sent)

    def step(self, batch, board, exchange_first):
        """Makes a step and returns rank 0's line about it: both passes, then the optimizer's step with the gradients that were
        exchanged."""
        result = {}
        for exchange in (exchange_first, not exchange_first):
            seconds, loss, sent = self.pass_over(batch, board, exchange)
            if exchange:
                result.update(exchange_s=seconds, loss=loss, sent_bytes=sent)
                self.optimizer.step()
            else:
                result.update(alone_s=seconds)
        return result


def print_line(rank, **line):
    if rank == 0:
        print(json.dumps(line), flush=True)


def make_arms(plan, rank, groups):
    torch.manual_seed(1)
    model = gpt.GPT(plan["layers"], plan["width"], plan["heads"], plan["context"])
    print_line(rank, kind="model", parameters=sum(parameter.numel() for parameter in model.parameters()))
    arms = []
    for settings in plan["arms"]:
        try:
            arms.append(Arm(settings, model, plan, groups))
        except methods.NotThere as problem:
            print_line(rank, kind="missing", arm=settings["name"], why=str(problem))
    return arms


def main():
    plan = json.loads(pathlib.Path(sys.argv[1]).read_text())
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    board = Board(os.path.join(plan["folder"], "board"), rank, world)
    dist.init_process_group(
        "gloo", store=dist.FileStore(os.path.join(plan["folder"], "store"), world), rank=rank, world_size=world
    )
    groups = {
        "gloo": dist.new_group(backend="gloo"),
        "unisono": dist.new_group(
            backend="unisono", pg_options=unisono.torch.Options(transport="tcp", interface=os.environ["GLOO_SOCKET_IFNAME"])
        ),
    }
    text = gpt.Text(pathlib.Path(plan["text"]), plan["context"])
    arms = make_arms(plan, rank, groups)
    for step in range(-plan["warm_steps"], plan["steps"]):
        batch = text.batch(1, step + plan["warm_steps"], rank, plan["batch"])
        # Reverse the order in every other step, so that no arm always follows the same one.
        for arm in arms if step % 2 == 0 else reversed(arms):
            print_line(rank, kind="step", arm=arm.name, step=step, **arm.step(batch, board, step % 4 < 2))
    board.meet()
    for arm in arms:
        note = getattr(arm.state, "report", None)
        print_line(rank, kind="end", arm=arm.name, report=str(note()) if note else "")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
