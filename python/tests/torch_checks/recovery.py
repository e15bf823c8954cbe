"""A rank is lost, and the others continue in the same processes: in a smaller group, with the network wrapped anew.

They continue from a state saved before the failed step. Their result equals that of one process with the same inputs.
"""

import copy
import datetime
import os
import signal

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .common import check, fails, init, is_gloo, kinds, leave, names, rank, same, same_on_all_ranks, store_barrier, world
from .ddp import SMALL, batch, loss_of, model

LOST = 1
STEPS = 6


def default_store():
    return dist.distributed_c10d._get_default_store()


class Training:
    """A network on the default group, with an optimizer whose state is sharded."""

    def __init__(self, network):
        self.network = DistributedDataParallel(copy.deepcopy(network), bucket_cap_mb=SMALL)
        self.optimizer = ZeroRedundancyOptimizer(self.network.parameters(), torch.optim.SGD, lr=0.1)

    def step(self, number):
        self.optimizer.zero_grad()
        loss_of(self.network, *(whole.chunk(dist.get_world_size())[dist.get_rank()] for whole in batch(number))).backward()
        self.optimizer.step()


def end_here(how):
    def hook(*_):
        os.kill(os.getpid(), how)

    return hook


def arm(training, where, how):
    """Makes this rank die the next time that it reaches the point `where`."""
    if where == "forward":
        training.network.module[2].register_forward_pre_hook(end_here(how))
    elif where == "backward":
        training.network.module[0].weight.register_hook(end_here(how))
    elif where == "optimizer":  # this rank has updated its part, for which other ranks wait
        training.optimizer.optim.register_step_post_hook(end_here(how))
    elif where == "barrier":
        step = training.step

        def then_a_barrier(number):
            step(number)
            if rank() == LOST:
                os.kill(os.getpid(), how)
            dist.barrier()

        training.step = then_a_barrier


def shrink():
    dist.shrink_group([LOST])


def make_new_group():
    """Makes a new group without the lost rank. Its store is that of the default group with a prefix."""
    store = default_store()
    dist.destroy_process_group()
    living = [of for of in range(world()) if of != LOST]
    store = dist.PrefixStore("again", store)
    dist.init_process_group(os.environ["BACKEND"], store=store, rank=living.index(rank()), world_size=len(living))


def same_as_alone(training, kept, steps):
    alone = copy.deepcopy(kept)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for number in steps:
        optimizer.zero_grad()
        loss_of(alone, *batch(number)).backward()
        optimizer.step()
    for parameter, right in zip(training.network.parameters(), alone.parameters(), strict=True):
        same_on_all_ranks(parameter)
        same(parameter.detach(), right.detach(), 1e-5)


def lose_one(where, how, within_s):
    """Trains two steps. In the next step a rank dies, and the other ranks get the error. Returns their network's state before
    that step."""
    training = Training(model())
    for number in range(2):
        training.step(number)
    kept = copy.deepcopy(training.network.module)
    if rank() == LOST or where == "barrier":
        arm(training, where, how)
    with fails(names(LOST) if rank() != LOST else None, within_s=within_s, kinds=kinds()):
        for number in range(2, STEPS):
            training.step(number)
            kept = copy.deepcopy(training.network.module) if where == "barrier" else kept
    return kept


def continues_after_a_death(where, reform):
    if is_gloo():
        return
    init(timeout_s=20)
    dist.barrier()
    kept = lose_one(where, signal.SIGKILL, within_s=15)
    reform()
    assert dist.get_world_size() == world() - 1
    training = Training(kept)
    for number in range(2, STEPS):
        training.step(number)
    same_as_alone(training, kept, range(2, STEPS))
    dist.barrier()
    leave()


@check(ranks=(3,), lost=(LOST,), group=False, timeout_s=90)
def killed_in_forward_then_shrink():
    continues_after_a_death("forward", shrink)


@check(ranks=(3,), lost=(LOST,), group=False, timeout_s=90)
def killed_in_backward_then_shrink():
    continues_after_a_death("backward", shrink)


@check(ranks=(3, 4), lost=(LOST,), group=False, timeout_s=90)
def killed_in_backward_then_a_new_group():
    continues_after_a_death("backward", make_new_group)


@check(ranks=(3,), lost=(LOST,), group=False, timeout_s=90)
def killed_in_the_optimizer_then_shrink():
    continues_after_a_death("optimizer", shrink)


@check(ranks=(3,), lost=(LOST,), group=False, timeout_s=90)
def killed_before_a_barrier_then_a_new_group():
    continues_after_a_death("barrier", make_new_group)


@check(ranks=(3,), lost=(LOST,), group=False, timeout_s=90)
def as_the_page_shows():
    """Continues as docs/start/pytorch.md shows it."""
    if is_gloo():
        return
    from .methods_docs import run_blocks

    init(timeout_s=20)
    network = DistributedDataParallel(model())
    kept = copy.deepcopy(network.module.state_dict())
    if rank() == LOST:
        os.kill(os.getpid(), signal.SIGKILL)
    assert run_blocks("recovery", network=network, kept=kept, lost=LOST, batch=batch(0), dist=dist) == 1
    assert dist.get_world_size() == world() - 1
    leave()


def continues_without_a_stopped_rank(where, reform):
    """The other ranks continue without a stopped rank. Rank 0 later resumes it; then the resumed rank gets an error, and the
    other ranks notice nothing."""
    if is_gloo():
        return
    init(timeout_s=4)
    store = default_store()
    store.set(f"pid {rank()}", str(os.getpid()))
    dist.barrier()
    kept = lose_one(where, signal.SIGSTOP, within_s=15 if rank() != LOST else 60)
    if rank() != LOST:
        reform()
        training = Training(kept)
        training.step(2)
        if dist.get_rank() == 0:
            os.kill(int(store.get(f"pid {LOST}")), signal.SIGCONT)
        for number in range(3, STEPS):
            training.step(number)
        store.wait(["resumed"])
        training.step(STEPS)
        same_as_alone(training, kept, range(2, STEPS + 1))
    else:
        store.set("resumed", "1")
    store_barrier(store=store)
    leave()


@check(ranks=(3,), group=False, timeout_s=90)
def stopped_in_forward_then_a_new_group():
    continues_without_a_stopped_rank("forward", make_new_group)


@check(ranks=(3,), group=False, timeout_s=90)
def stopped_in_backward_then_shrink():
    continues_without_a_stopped_rank("backward", shrink)


@check(ranks=(3,), group=False, timeout_s=90)
def stopped_in_backward_then_a_new_group():
    continues_without_a_stopped_rank("backward", make_new_group)


@check(ranks=(3,), group=False, timeout_s=90)
def stopped_in_the_optimizer_then_shrink():
    continues_without_a_stopped_rank("optimizer", shrink)


@check(ranks=(3,), group=False, timeout_s=90)
def stopped_before_a_barrier_then_shrink():
    continues_without_a_stopped_rank("barrier", shrink)


@check(ranks=(4,), lost=(1, 2), group=False, timeout_s=90)
def shrunk_twice():
    """Shrinks the group twice. Groups made after a shrink are sub-groups of the smaller group. Excluded ranks are given as
    ranks of the shrinking group."""
    if is_gloo():
        return
    init(timeout_s=20)
    dist.barrier()
    for lost, left in ((1, [0, 2, 3]), (2, [0, 3])):
        if rank() == lost:
            os.kill(os.getpid(), signal.SIGKILL)
        with fails(rf"rank {1}\b", within_s=15, kinds=kinds()):
            for _ in range(3):
                dist.all_reduce(torch.ones(10))
        dist.shrink_group([1])
        tensor = torch.tensor([float(rank())])
        dist.all_reduce(tensor)
        same(tensor, torch.tensor([float(sum(left))]))
        whole = dist.new_group()
        tensor = torch.tensor([float(rank())])
        dist.all_reduce(tensor, group=whole)
        same(tensor, torch.tensor([float(sum(left))]))
    pair = dist.new_group([0, 1])
    dist.barrier(pair)
    leave()


@check(ranks=(3,), group=False, timeout_s=90)
def a_local_error_in_backward_then_abort():
    """A rank raises an error in its backward pass and aborts its group. The others get errors at once, minutes before the
    deadline, and continue without it."""
    if is_gloo():
        return
    init(timeout_s=600)
    dist.barrier()
    training = Training(model())
    training.step(0)
    kept = copy.deepcopy(training.network.module)
    if rank() == LOST:

        def raise_own_error(*_):
            raise ArithmeticError("of my own")

        training.network.module[0].weight.register_hook(raise_own_error)
        with fails("of my own", within_s=15, kinds=(ArithmeticError,)):
            training.step(1)
        dist.group.WORLD.abort()
    else:
        with fails(rf"rank {LOST} aborted the operation: aborted", within_s=15, kinds=kinds()):
            training.step(1)
        shrink()
        training = Training(kept)
        training.step(1)
        same_as_alone(training, kept, range(1, 2))
    leave()


def shrunk_while_calls_wait(pairs):
    """No rank is lost, but one rank makes no calls. SHRINK_ABORT ends the calls that wait for it, minutes before the deadline,
    on excluded ranks, too."""
    if is_gloo():
        return
    init(timeout_s=600)
    group = dist.new_group([0, 1, 2], timeout=datetime.timedelta(seconds=600)) if pairs else None
    dist.barrier(group)
    if rank() == LOST:
        with fails("aborted.*rank [02]", within_s=15):
            dist.recv(torch.ones(1), src=0, group=group)
    else:
        waiting = [dist.all_reduce(torch.ones(size), group=group, async_op=True) for size in (1, 1_000_000)]
        smaller = dist.shrink_group([LOST], group, dist.distributed_c10d.SHRINK_ABORT)
        assert dist.get_world_size(smaller) == world() - 1
        for work in waiting:
            with fails("aborted.*rank [02]", within_s=15):
                work.wait()
        tensor = torch.tensor([float(rank())])
        dist.all_reduce(tensor, group=smaller)
        same(tensor, torch.tensor([2.0]))
        dist.barrier(smaller)
    leave()


@check(ranks=(3,), group=False)
def the_default_group_shrunk_while_calls_wait():
    shrunk_while_calls_wait(pairs=False)


@check(ranks=(3,), group=False)
def a_group_shrunk_while_calls_wait():
    shrunk_while_calls_wait(pairs=True)


def lost_while_they_join(how):
    """init_process_group names the missing ranks. Another attempt with another store succeeds."""
    if is_gloo():
        return
    store = rendezvous_store()
    if rank() == LOST:
        store.set("pid", str(os.getpid()))
        os.kill(os.getpid(), how)
        init_at(store, "first", rank(), world(), timeout_s=3)  # a stopped rank is resumed and comes when the others are gone
        return
    store.wait(["pid"])
    with fails(names(LOST), within_s=15):
        init_at(store, "first", rank(), world(), timeout_s=3)
    assert not dist.is_initialized()
    living = [of for of in range(world()) if of != LOST]
    init_at(store, "second", living.index(rank()), len(living), timeout_s=20)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    same(tensor, torch.full((1,), float(len(living))))
    dist.barrier()
    leave()


def init_at(store, name, as_rank, size, timeout_s):
    dist.init_process_group(
        os.environ["BACKEND"],
        store=dist.PrefixStore(name, store),
        rank=as_rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=timeout_s),
    )


def rendezvous_store():
    import unisono.torch  # noqa: F401  # registers the backend

    return dist.FileStore(os.environ["CHECK_DIRECTORY"] + "/meeting", world())


@check(ranks=(3,), lost=(LOST,), group=False, timeout_s=90)
def killed_while_they_join():
    lost_while_they_join(signal.SIGKILL)


@check(ranks=(3,), lost=(LOST,), group=False, timeout_s=90)
def stopped_while_they_join():
    lost_while_they_join(signal.SIGSTOP)


def lost_in_a_monitored_barrier(how):
    if is_gloo():
        return
    from unisono.torch import monitored_barrier

    init(timeout_s=20)
    dist.barrier()
    if rank() == LOST:
        os.kill(os.getpid(), how)
    with fails(names(LOST) if rank() == 0 else None, within_s=15, kinds=kinds()):
        monitored_barrier(timeout=datetime.timedelta(seconds=3))
    dist.shrink_group([LOST])
    monitored_barrier(timeout=datetime.timedelta(seconds=20))
    leave()


@check(ranks=(3,), lost=(LOST,), group=False, timeout_s=90)
def killed_before_a_monitored_barrier():
    lost_in_a_monitored_barrier(signal.SIGKILL)


@check(ranks=(3,), lost=(LOST,), group=False, timeout_s=90)
def stopped_before_a_monitored_barrier():
    lost_in_a_monitored_barrier(signal.SIGSTOP)


@check(ranks=(3,), lost=(LOST,), group=False, timeout_s=90)
def late_for_monitored_barriers_that_have_failed():
    """A rank that comes after rank 0 has continued gets an error, and does not damage rank 0's reused memory."""
    if is_gloo():
        return
    from unisono.torch import monitored_barrier

    init(timeout_s=20)
    dist.barrier()
    if rank() == LOST:
        os.kill(os.getpid(), signal.SIGKILL)
    store, kept = default_store(), []
    for time in range(100):
        if rank() == 2:
            store.get(f"failed {time}")
        with fails(names(LOST), within_s=15, kinds=kinds()):
            monitored_barrier()
        if rank() == 0:
            kept += [torch.full((number,), time) for number in range(20)]
            store.set(f"failed {time}", "")
            store.get(f"continued {time}")
        else:
            store.set(f"continued {time}", "")
    for number, tensor in enumerate(kept):
        same(tensor, torch.full((number % 20,), number // 20))
    shrink()
    monitored_barrier()
    leave()
