"""Failures: ranks that die, stop, are missing or make other calls; timeouts, abort. Errors name the rank.

If a process has died, the other ranks get errors well before the group's timeout; if a process has stopped, at the timeout.
"""

import datetime
import os
import re
import signal
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .common import cannot, check, fails, init, kinds, leave, names, rank, same, store_barrier, world
from .ddp import SMALL, batch, loss_of, model, my_part


def end_here(how):
    """Returns a hook for a backward pass: it kills this process, or stops the process until it is killed."""

    def hook(gradient):
        os.kill(os.getpid(), how)
        return gradient

    return hook


def lost_in_backward(lost, how, within_s):
    """Two good steps; then rank `lost` dies before its last gradients are sent."""
    network = DistributedDataParallel(model(), bucket_cap_mb=SMALL)
    for step in range(2):
        loss_of(network, *map(my_part, batch(step))).backward()
    if rank() == lost:
        network.module[0].weight.register_hook(end_here(how))
    with fails(names(lost), within_s=within_s, kinds=kinds()):
        for step in range(2, 5):
            loss_of(network, *map(my_part, batch(step))).backward()


@check(ranks=(3,), lost=(1,), group=False)
def killed_in_backward():
    init(timeout_s=20)
    lost_in_backward(1, signal.SIGKILL, within_s=15)
    leave()


@check(ranks=(3,), lost=(0,), group=False)
def rank_0_killed_in_backward():
    """Rank 0, which has the store, is killed."""
    init(timeout_s=20)
    lost_in_backward(0, signal.SIGKILL, within_s=15)
    leave()


@check(ranks=(3,), lost=(1,), group=False)
def stopped_in_backward():
    init(timeout_s=4)
    lost_in_backward(1, signal.SIGSTOP, within_s=15)
    leave()


def lost_in(call, within_s=15):
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with fails(names(1), within_s=within_s, kinds=kinds()):
        for _ in range(3):  # operations that need nothing from the lost rank may succeed
            call()


CALLS = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(1000)),
    "all_gather": lambda: dist.all_gather([torch.empty(10) for _ in range(world())], torch.ones(10)),
    "reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.empty(10), torch.ones(10 * world())),
    "all_to_all": lambda: dist.all_to_all_single(torch.empty(world()), torch.ones(world())),
    "barrier": lambda: dist.barrier(),
    "recv": lambda: dist.recv(torch.empty(4), 1),
    "broadcast": lambda: dist.broadcast(torch.ones(10), src=1),
}


@check(ranks=(3,), lost=(1,), group=False)
def killed_before_all_reduce():
    init(timeout_s=20)
    dist.barrier()
    lost_in(CALLS["all_reduce"])
    leave()


@check(ranks=(3,), lost=(1,), group=False)
def killed_before_all_gather():
    init(timeout_s=20)
    dist.barrier()
    lost_in(CALLS["all_gather"])
    leave()


@check(ranks=(3,), lost=(1,), group=False)
def killed_before_reduce_scatter():
    init(timeout_s=20)
    dist.barrier()
    lost_in(CALLS["reduce_scatter"])
    leave()


@check(ranks=(3,), lost=(1,), group=False)
def killed_before_all_to_all():
    init(timeout_s=20)
    dist.barrier()
    lost_in(CALLS["all_to_all"])
    leave()


@check(ranks=(3,), lost=(1,), group=False)
def killed_before_barrier():
    init(timeout_s=20)
    dist.barrier()
    lost_in(CALLS["barrier"])
    leave()


@check(ranks=(3,), lost=(1,), group=False)
def killed_before_send():
    init(timeout_s=20)
    dist.barrier()
    lost_in(CALLS["recv"])
    leave()


@check(ranks=(3,), lost=(1,), group=False)
def killed_before_broadcast():
    init(timeout_s=20)
    dist.barrier()
    lost_in(CALLS["broadcast"])
    leave()


@check(ranks=(3,), lost=(1,), group=False)
def killed_with_work_in_flight():
    """The future of an operation in flight gets the error, and its callbacks are called."""
    init(timeout_s=20)
    dist.barrier()
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(torch.ones(100), async_op=True)
    called = []
    future = work.get_future()
    future.add_done_callback(lambda done: called.append(done))
    with fails(names(1), within_s=15, kinds=(RuntimeError, TimeoutError)):  # a future may raise RuntimeError instead
        future.wait()
    with fails(names(1), within_s=15, kinds=kinds()):
        work.wait()
    assert work.is_completed()
    end = time.monotonic() + 10  # wait() may return before the callbacks have run
    while not called and time.monotonic() < end:
        pass
    assert called
    leave()


@check(ranks=(3,), group=False)
def missing_rank_is_named_at_the_time_out():
    """Rank 1 lives but does not call."""
    init(timeout_s=3)
    dist.barrier()
    if rank() != 1:
        with fails(names(1), within_s=12, kinds=kinds()):
            dist.all_reduce(torch.ones(10))
    store_barrier()
    leave()


@check(ranks=(2,), group=False)
def time_out_of_one_call():
    """Work.wait with a timeout ends long before the group's."""
    init(timeout_s=120)
    dist.barrier()
    if rank() == 0:
        with fails(None, within_s=10):
            dist.all_reduce(torch.ones(10), async_op=True).wait(datetime.timedelta(seconds=1))
    store_barrier()
    leave()


@check(ranks=(2,), group=False)
def set_timeout():
    """set_timeout() can shorten the group's timeout."""
    init(timeout_s=120)
    dist.barrier()
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=2))
    if rank() == 0:
        with fails(names(1), within_s=12, kinds=kinds()):
            dist.all_reduce(torch.ones(10))
    store_barrier()
    leave()


@check(ranks=(3,), group=False)
def abort():
    """Another thread aborts the group while a collective waits for a missing rank. The collective ends at once with an
    error."""
    if cannot("abort"):
        return
    init(timeout_s=120)
    dist.barrier()
    if rank() != 1:
        work = dist.all_reduce(torch.ones(10), async_op=True)
        thread = threading.Thread(target=dist.group.WORLD.abort)
        thread.start()
        with fails(None, within_s=15):
            work.wait()
        thread.join()
    store_barrier()
    leave()


@check(ranks=(3,), timeout_s=90)
def monitored_barrier():
    """In monitored_barrier(), rank 0 names the missing ranks. Uses the method of ProcessGroup, because dist.monitored_barrier
    accepts Gloo only."""
    group = dist.new_group()
    group.monitored_barrier(datetime.timedelta(seconds=20))
    group.monitored_barrier(datetime.timedelta(seconds=20), wait_all_ranks=True)
    if rank() != 1:
        with fails(r"rank 1\b" if rank() == 0 else None, within_s=20):
            group.monitored_barrier(datetime.timedelta(seconds=2))
    store_barrier()


@check(ranks=(3,), timeout_s=90)
def monitored_barrier_of_all_ranks():
    group = dist.new_group()
    dist.barrier(group)
    if rank() == 0:
        with fails(r"ranks? 1, ?2\b", within_s=20):
            group.monitored_barrier(datetime.timedelta(seconds=2), wait_all_ranks=True)
    store_barrier()


@check(ranks=(2,), group=False)
def collectives_that_differ():
    """One rank reduces and the other gathers. Both get an error soon, and neither gets a wrong result."""
    init(timeout_s=5)
    dist.barrier()
    with fails(None, within_s=20, kinds=kinds()):
        if rank() == 0:
            dist.all_reduce(torch.ones(10))
        else:
            dist.all_gather([torch.empty(10) for _ in range(2)], torch.ones(10))
        dist.barrier()
    leave()


@check(ranks=(2,), group=False)
def sizes_that_differ():
    if cannot("message of another size"):
        return
    init(timeout_s=5)
    dist.barrier()
    with fails(None, within_s=20, kinds=kinds()):
        dist.all_reduce(torch.ones(10 + rank()))
        dist.barrier()
    leave()


@check(ranks=(3,), lost=(1,), group=False)
def other_groups_go_on():
    """A rank that is lost to one group does not affect a group without it."""
    init(timeout_s=20)
    pair = dist.new_group([0, 2])
    dist.barrier()
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with fails(names(1), within_s=15, kinds=kinds()):
        for _ in range(3):
            dist.all_reduce(torch.ones(10))
    for _ in range(10):
        tensor = torch.ones(10)
        dist.all_reduce(tensor, group=pair)
        same(tensor, torch.full((10,), 2.0))
    leave()


@check(ranks=(2,), group=False)
def text_of_errors():
    """The text of an error names the operation and contains no raw pointers."""
    init(timeout_s=2)
    dist.barrier()
    if rank() == 0:
        try:
            dist.all_reduce(torch.ones(10))
        except (RuntimeError, TimeoutError) as error:
            text = str(error)
            assert not re.search(r"0x[0-9a-f]{8,}", text.split("Exception raised from")[0]), text
            assert cannot("name the operation") or re.search(r"all_?reduce", text, re.IGNORECASE), text
        else:
            raise AssertionError("nothing was raised")
    store_barrier()
    leave()


@check(ranks=(2,), group=False)
def a_forked_child_is_refused():
    """The child's tensor of fives does not get into the parents' sums."""
    init(timeout_s=20)
    dist.all_reduce(torch.ones(1000))
    if rank() == 0:
        member = os.getpid()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with fails(rf"this process was forked from a member \(pid {member}\)", within_s=2):
                    dist.all_reduce(torch.full((1000,), 5.0))
                with fails(rf"this process was forked from a member \(pid {member}\)", within_s=2):
                    dist.all_reduce(torch.full((1000,), 5.0), async_op=True).wait()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    for _ in range(2):
        ones = torch.ones(1000)
        dist.all_reduce(ones)
        same(ones, torch.full((1000,), 2.0))
    leave()
