"""One rank of bench/torch_collectives: all arms of a work in turn, in blocks of calls, in the same processes, on the same
memory.

  collectives_rank.py PLAN.json       with RANK and WORLD_SIZE

The plan: {"folder": ..., "rounds": R, "seconds": S, "works": [{"key": ..., "arms": [{"name", "library", "collective", "dtype",
"bytes", "api"}]}]}. Rank 0 writes a line of JSON per block and per probe of the machine. A wrong result ends it with status 1.
"""

import json
import os
import pathlib
import statistics
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from torch_lib.processes import end_with_parent  # noqa: E402

end_with_parent()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.testing._internal.distributed.fake_pg  # noqa: E402, F401  # a backend that does nothing

import unisono  # noqa: E402
import unisono.torch  # noqa: E402
from torch_lib.board import SAMPLES_MAX, Board  # noqa: E402
from versus_lib import machine  # noqa: E402

WARM_CALLS = 3
CALLS_MIN = 5
BATCH_MAX = 200
CALLS_MAX = 4000
assert CALLS_MAX <= SAMPLES_MAX


def all_gather(output, block, group):
    function = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # torch 2.13 renamed the function
    return function(output, block, group=group)


def reduce_scatter(output, whole, group):
    function = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    return function(output, whole, group=group)


class Groups:
    """One group for each library, joined on first use; all of them have the same ranks."""

    def __init__(self, folder, rank, world):
        self.folder, self.rank, self.world, self.made = folder, rank, world, {}
        store = dist.FileStore(os.path.join(folder, "store"), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)

    def get(self, library):
        if library not in self.made:
            self.made[library] = self.make(library)
        return self.made[library]

    def make(self, library):
        if library == "core":
            return unisono.join(rank=self.rank, world_size=self.world, rendezvous=f"file://{self.folder}/core", interface="lo")
        if library in ("gloo", "fake"):
            return dist.new_group(backend=library)
        return dist.new_group(
            backend="unisono",
            pg_options=unisono.torch.Options(transport={"unisono": "auto", "tcp": "tcp"}[library], interface="lo"),
        )


class Tensors:
    """The tensors that all arms of a work with this type and size use."""

    def __init__(self, dtype, n_bytes, rank, world):
        dtype = getattr(torch, dtype)
        part = n_bytes // dtype.itemsize // world
        steps = torch.arange(part * world, dtype=torch.float32) % 13
        # Sums of such small integers are exact in every type.
        self.mine = (steps + rank).to(dtype)
        self.sum = (steps * world + world * (world - 1) // 2).to(dtype)
        self.own = slice(rank * part, (rank + 1) * part)
        self.whole, self.block = torch.empty_like(self.mine), torch.empty(part, dtype=dtype)


class Arm:
    """One way to do a work."""

    def __init__(self, settings, groups, tensors):
        self.name, self.collective = settings["name"], settings["collective"]
        self.stack, self.bytes = settings["library"], settings["bytes"]
        self.rank, self.world = groups.rank, groups.world
        self.group = groups.get(self.stack)
        key = settings["dtype"], self.bytes
        if key not in tensors:
            tensors[key] = Tensors(*key, self.rank, self.world)
        self.tensors = tensors[key]
        self.whole, self.block = self.tensors.whole, self.tensors.block
        self.call = getattr(self, f"{self.collective}_by_{settings['api']}")()

    def all_reduce_by_torch(self):
        tensor, group, function = self.whole, self.group, dist.all_reduce
        return lambda: function(tensor, group=group)

    def all_reduce_by_process_group(self):
        tensors, group = [self.whole], self.group
        return lambda: group.allreduce(tensors).wait()

    def all_reduce_by_core(self):
        array, function = self.whole.numpy(), self.group.all_reduce
        return lambda: function(array)

    def all_gather_by_torch(self):
        return lambda: all_gather(self.whole, self.block, self.group)

    def reduce_scatter_by_torch(self):
        return lambda: reduce_scatter(self.block, self.whole, self.group)

    def checked_call(self):
        tensors = self.tensors
        if self.collective == "all_gather":
            self.whole.zero_()
            self.block.copy_(tensors.sum[tensors.own])
        else:
            self.whole.copy_(tensors.mine)
            self.block.zero_()
        self.call()
        if self.stack == "fake":
            return
        got, wanted = (
            (self.block, tensors.sum[tensors.own]) if self.collective == "reduce_scatter" else (self.whole, tensors.sum)
        )
        if not torch.equal(got, wanted):
            wrong = int((got != wanted).sum())
            sys.exit(
                f"rank {self.rank}: {self.name}, {self.collective} of {self.bytes} bytes: {wrong} of {got.numel()} elements are wrong"
            )

    def crossing(self):
        """Bytes that must leave some rank for another, over all ranks together, per call."""
        return (2 if self.collective == "all_reduce" else 1) * (self.world - 1) * self.bytes


def timed(arm, board, calls):
    times, call, meet, clock = [0.0] * calls, arm.call, board.meet, time.perf_counter
    for index in range(calls):
        meet()
        began = clock()
        call()
        times[index] = clock() - began
    return times


def run_block(arm, board, seconds):
    """One block of calls: the first and the last result are looked at, those between are timed. On rank 0 the line that tells
    of it."""
    board.meet()
    arm.checked_call()
    # Zeros, because repeated in-place sums of other values would overflow the type.
    arm.whole.zero_()
    batch = board.agree(max(CALLS_MIN, min(BATCH_MAX, int(seconds / 4 / min(timed(arm, board, WARM_CALLS))))))
    before, bytes_before = machine.cpu_times(), machine.loopback_bytes()
    own, began = [], time.perf_counter()
    while not own or board.agree(len(own) + batch <= CALLS_MAX and time.perf_counter() - began < seconds):
        own += timed(arm, board, batch)
    times = board.mean_of_ranks(own)
    moved, steal = machine.loopback_bytes() - bytes_before, machine.shares(before, machine.cpu_times())["steal"]
    arm.checked_call()
    ordered = sorted(1e6 * value for value in times)
    result = {
        "p50_us": statistics.median(ordered),
        "p99_us": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        "min_us": ordered[0],
        "calls": len(times),
        "steal": steal,
        "loopback_bytes": moved,
    }
    if arm.stack in ("gloo", "tcp") and arm.world > 1 and moved < 0.9 * arm.crossing() * len(times):
        result["wrong_transport"] = f"{moved} bytes crossed loopback where {arm.crossing() * len(times)} must"
    return result


def probe():
    """How idle the machine is while all ranks sleep, and how fast it copies 64 MiB."""
    before = machine.cpu_times()
    time.sleep(0.3)
    result = machine.shares(before, machine.cpu_times())
    source, target = torch.ones(1 << 24), torch.ones(1 << 24)
    began = time.perf_counter()
    for _ in range(4):
        target.copy_(source)
    return {**result, "copy_gbs": round(4 * 64 / 1024 * 1.073741824 / (time.perf_counter() - began), 2)}


def print_line(rank, **line):
    if rank == 0:
        print(json.dumps(line), flush=True)


def main():
    plan = json.loads(pathlib.Path(sys.argv[1]).read_text())
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    board = Board(os.path.join(plan["folder"], "board"), rank, world)
    groups = Groups(plan["folder"], rank, world)
    for work in plan["works"]:
        tensors = {}
        arms = [Arm(settings, groups, tensors) for settings in work["arms"]]
        for number in range(plan["rounds"]):
            board.rest()
            if rank == 0:
                print_line(rank, kind="probe", work=work["key"], round=number, **probe())
            board.rest()
            # Reverse the order in every other round, so that no arm always follows the same one.
            for arm in arms if number % 2 == 0 else reversed(arms):
                print_line(rank, kind="block", work=work["key"], arm=arm.name, round=number, **run_block(arm, board, plan["seconds"]))
    board.meet()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
