"""Several threads on one group, and optimizers that run while gradients are sent.

Messages are distinguished by tags, whatever thread sends them. Collectives are matched by their order, so threads that share a
group must call them in an agreed order, for example in turns. A thread need not wait until the collectives of other threads
have ended.
"""

import concurrent.futures
import threading

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .common import check, rank, same, same_on_all_ranks, world
from .ddp import SMALL, batch, loss_of, model, my_part, train_alone

TURNS = 100


def in_threads(work, count):
    """Calls work(0) to work(count - 1) in threads at once. Raises an exception that a thread raised."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work, number) for number in range(count)]:
            done.result()


@check(ranks=(2, 3))
def messages_of_several_threads_beside_collectives():
    def work(number):
        for turn in range(TURNS):
            if number == 0:
                tensor = torch.full((33,), float(rank() + turn))
                dist.all_reduce(tensor)
                same(tensor, torch.full((33,), float(sum(of + turn for of in range(world())))))
                continue
            received = torch.empty(20 * number)
            sent = dist.isend(torch.full((20 * number,), float(1000 * number + turn)), (rank() + 1) % world(), tag=number)
            dist.recv(received, (rank() - 1) % world(), tag=number)
            sent.wait()
            same(received, torch.full((20 * number,), float(1000 * number + turn)))

    in_threads(work, 4)


class Turns:
    """Lets the threads 0, 1, … call something in turn, again and again."""

    def __init__(self, count):
        self.count, self.next, self.changed = count, 0, threading.Condition()

    def take(self, number, call):
        with self.changed:
            self.changed.wait_for(lambda: self.next == number)
            result = call()
            self.next = (self.next + 1) % self.count
            self.changed.notify_all()
        return result


@check(ranks=(2, 3))
def collectives_of_several_threads_in_turn():
    """Each thread waits for its own operation while others start theirs."""
    turns = Turns(4)

    def work(number):
        for turn in range(TURNS):
            tensor = torch.full((number * 500 + 1,), float(rank() * number + turn))
            turns.take(number, lambda tensor=tensor: dist.all_reduce(tensor, async_op=True)).wait()
            same(tensor, torch.full_like(tensor, float(sum(of * number + turn for of in range(world())))))

    in_threads(work, 4)


@check(ranks=(2,))
def one_work_that_several_threads_wait_for():
    for turn in range(TURNS):
        tensor = torch.full((5000,), float(rank() + turn))
        work = dist.all_reduce(tensor, async_op=True)

        def wait(number, work=work, tensor=tensor, turn=turn):
            if number == 0:
                work.get_future().wait()
            else:
                work.wait()
            same(tensor, torch.full((5000,), float(1 + 2 * turn)))

        in_threads(wait, 3)


@check(ranks=(2,))
def options_of_calls_are_of_one_thread():
    try:
        from unisono.torch import Options, call_options, report
    except ImportError:
        return
    groups = [dist.new_group(pg_options=Options(schedule="ring" if number else "two_step")) for number in range(2)]

    def work(number):
        for _ in range(TURNS):
            dist.all_reduce(torch.ones(5000), group=groups[number])
            assert report(groups[number])["schedule"] == ("ring" if number else "two_step")
            with call_options(schedule="one_shot" if number else "halving_doubling"):
                dist.all_reduce(torch.ones(5000), group=groups[number])
            assert report(groups[number])["schedule"] == ("one_shot" if number else "halving_doubling")

    in_threads(work, 2)


@check(ranks=(2, 3), timeout_s=90)
def zero_steps_in_the_hook():
    """ZeroRedundancyOptimizer updates its part while later gradients are sent. (hook_with_zero_step_interleaved is not tested:
    it requires callbacks that run one after the other, as with NCCL. Here callbacks run when their operations end.)
    """
    network = DistributedDataParallel(model(), bucket_cap_mb=SMALL, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(network.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1)
    network.register_comm_hook(None, hook_with_zero_step(allreduce_hook, network, optimizer))
    warm_up = 2  # in the first two steps, buckets change and their owners are determined
    for step in [*range(warm_up), *range(10)]:
        optimizer.zero_grad()
        loss_of(network, *map(my_part, batch(step))).backward()
        optimizer.step()
    alone, _ = train_alone(10)
    loss_of(network, *map(my_part, batch(0)))  # the forward pass waits for operations in flight
    for parameter, right in zip(network.parameters(), alone.parameters(), strict=True):
        same_on_all_ranks(parameter)
        same(parameter.detach(), right.detach(), 1e-5)
