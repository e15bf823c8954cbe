"""Long runs must not use more and more resources. UNISONO_CHECKS_ITERATIONS sets their length: 2000 by default; 10000 take some
minutes."""

import gc
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .common import check, rank, same, world
from .ddp import SMALL, batch, loss_of, model, my_part

ITERATIONS = int(os.environ.get("UNISONO_CHECKS_ITERATIONS", "2000"))
LIMIT_S = max(180, ITERATIONS // 8)
GROWTH_BYTES_MAX = 6 << 20


def held():
    """Returns the resident bytes, descriptors and threads of this process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGESIZE"), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def does_not_grow(step):
    """Calls step(iteration) many times. Compares the resources after the first fifth of the calls with those at the end."""
    for iteration in range(ITERATIONS // 5):
        step(iteration)
    before = held()
    for iteration in range(ITERATIONS // 5, ITERATIONS):
        step(iteration)
    after = held()
    print(f"{ITERATIONS} iterations: {before} then {after}")
    assert after[0] - before[0] < GROWTH_BYTES_MAX, (before, after)
    # The pool has as many threads as callbacks ever ran at once, so a few threads may be added.
    assert after[1] <= before[1] and after[2] <= before[2] + 4, (before, after)


@check(ranks=(2,), timeout_s=LIMIT_S)
def collectives():
    def step(iteration):
        tensor = torch.full((1000,), float(rank() + iteration % 7))
        work = dist.all_reduce(tensor, async_op=True)
        future = work.get_future().then(lambda done: done.value()[0].sum())
        gathered = torch.empty(64 * world())
        dist.all_gather_into_tensor(gathered, torch.ones(64))
        future.wait()
        same(tensor, torch.full((1000,), float(sum(of + iteration % 7 for of in range(world())))))
        if iteration % 10 == 0:
            dist.barrier()
            dist.broadcast(torch.ones(10), src=iteration // 10 % world())
            dist.reduce_scatter_tensor(torch.empty(5), torch.ones(5 * world()))

    does_not_grow(step)


@check(ranks=(2,), timeout_s=LIMIT_S)
def messages():
    def step(iteration):
        tensor = torch.empty(100)
        works = [
            dist.irecv(tensor, 1 - rank(), tag=iteration),
            dist.isend(torch.full((100,), float(rank())), 1 - rank(), tag=iteration),
        ]
        for work in works:
            work.wait()
        assert tensor[0] == 1 - rank()

    does_not_grow(step)


@check(ranks=(2,), timeout_s=LIMIT_S)
def training():
    network = DistributedDataParallel(model(), bucket_cap_mb=SMALL)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def step(iteration):
        optimizer.zero_grad()
        loss_of(network, *map(my_part, batch(iteration % 10))).backward()
        optimizer.step()

    does_not_grow(step)
