"""How processes end: each check runs in new processes, which end as Python programs do. Their exit code must be
0.
"""

import gc
import itertools
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

from .common import check, fails, init, kinds, leave, names, rank, world


@check(ranks=(2,), fresh=True, group=False)
def forgets_to_destroy():
    """A program that ends without destroy_process_group, with work done and groups alive: exit code 0."""
    init()
    dist.new_group()
    network = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    network(torch.ones(2, 8)).sum().backward()
    dist.all_reduce(torch.ones(10), async_op=True).wait()
    dist.barrier()


@check(ranks=(3,), fresh=True, group=False)
def forgets_to_destroy_and_ends_at_different_times():
    """Rank 2 ends a second later than the others."""
    init()
    dist.all_reduce(torch.ones(10))
    dist.barrier()
    end = time.monotonic() + 0.5 * rank()
    while time.monotonic() < end:
        torch.ones(1000).sum()


@check(ranks=(2,), fresh=True, group=False)
def keeps_everything_until_the_end():
    """Keeps works, futures and groups in globals, which the interpreter destroys in any order."""
    global kept
    init()
    group = dist.new_group()
    tensor = torch.ones(10)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.wait()
    kept = [group, work, work.get_future(), dist.group.WORLD, tensor]
    dist.barrier()


@check(ranks=(3,), fresh=True, group=False)
def destroyed_by_ranks_in_turn():
    """Ranks destroy the group at different times, without a barrier. Rank 0, which has the store, is the first."""
    init()
    dist.all_reduce(torch.ones(10))
    end = time.monotonic() + 0.4 * rank()
    while time.monotonic() < end:
        torch.ones(1000).sum()
    dist.destroy_process_group()


@check(ranks=(2,), fresh=True, group=False)
def destroyed_while_work_is_in_flight():
    init()
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(20)]
    dist.barrier()
    dist.destroy_process_group()
    del works


@check(ranks=(2,), fresh=True, group=False)
def dropped_with_its_group_while_it_is_under_way():
    """Rank 0 destroys the group while an operation is in flight. When the operation has ended, the other rank sees that rank 0
    has left."""
    init()
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(1 << 20)  # too large to be sent before the other rank receives
    if rank() == 0:
        dist.all_reduce(tensor, async_op=True)
        store.set("leaves", "")
        dist.destroy_process_group()
        store.get("noticed")
        return
    store.get("leaves")
    dist.all_reduce(tensor)
    assert tensor[0] == world()
    with fails(names(0), within_s=15, kinds=kinds()):
        dist.barrier()
    store.set("noticed", "")


@check(ranks=(2,), fresh=True, group=False)
def destroyed_in_a_callback():
    """A callback, which runs in another thread, drops the last reference to the group."""
    init()
    for _ in range(20):
        group, ended = [dist.new_group()], threading.Event()

        def end(_, group=group, ended=ended):
            dist.destroy_process_group(group[0])
            group.clear()
            ended.set()

        dist.all_reduce(torch.ones(1000), group=group[0], async_op=True).get_future().add_done_callback(end)
        assert ended.wait(20)
        gc.collect()
        dist.barrier()


@check(ranks=(2,), fresh=True, group=False)
def things_go_in_any_order():
    """Drops a group before its work, a work before its future, a future before its callback has run. The work of a destroyed
    group can be queried."""
    init()
    for order in itertools.permutations(("group", "work", "future")):
        kept = {"group": dist.new_group()}
        tensor, called = torch.ones(1000), []
        kept["work"] = dist.all_reduce(tensor, group=kept["group"], async_op=True)
        kept["future"] = kept["work"].get_future()
        kept["future"].add_done_callback(lambda _, called=called: called.append(1))
        if order[0] == "group":
            dist.barrier()
            dist.destroy_process_group(kept["group"])
            kept["work"].wait()
            assert tensor[0] == world() and kept["work"].is_success()
        for name in order:
            del kept[name]
            gc.collect()
        dist.barrier()
        assert order[0] != "group" or called
    work = dist.all_reduce(torch.ones(10), async_op=True)
    work.wait()
    dist.barrier()
    dist.destroy_process_group()
    assert work.is_completed() and work.get_future().wait()[0][0] == world()
    del work


@check(ranks=(2,), fresh=True, group=False)
def a_callback_exits():
    """sys.exit() in a callback becomes the error of the callback's future, and does not end the program."""
    init()
    future = dist.all_reduce(torch.ones(10), async_op=True).get_future().then(lambda _: sys.exit(3))
    with fails("SystemExit|3", within_s=10, kinds=(Exception, SystemExit)):
        future.wait()
    dist.all_reduce(torch.ones(10))
    dist.barrier()


@check(ranks=(2,), fresh=True, group=False)
def the_program_ends_while_a_callback_runs():
    init()

    def long(_):
        end = time.monotonic() + 1
        while time.monotonic() < end:
            torch.ones(100).sum()

    dist.barrier()
    if rank() == 0:  # rank 0 is late, so rank 1's operation is in flight when rank 1's program ends
        long(None)
    dist.all_reduce(torch.ones(10), async_op=True).get_future().add_done_callback(long)


@check(ranks=(2,), fresh=True, group=False)
def a_child_process_ends():
    """A forked child, which ends as Python programs do, must not close its parent's links."""
    init()
    dist.all_reduce(torch.ones(10), async_op=True).get_future().wait()
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for _ in range(20):
        tensor = torch.ones(1000)
        dist.all_reduce(tensor)
        assert tensor[0] == world()
    dist.barrier()
    dist.destroy_process_group()


@check(ranks=(2,), fresh=True, group=False)
def a_child_process_drops_and_destroys_groups():
    """The child ends at once, and the parent's groups go on. torch keeps no Python object for the backend of `split`."""
    init()
    split = dist.group.WORLD.split_group([0, 1], group_name="split")
    split.allreduce([torch.ones(10)]).wait()
    dist.all_reduce(torch.ones(10), async_op=True).get_future().then(lambda future: future.value()).wait()
    child = os.fork()
    if child == 0:
        del split
        dist.destroy_process_group()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for _ in range(20):
        tensor = torch.ones(1000)
        split.allreduce([tensor]).wait()
        dist.all_reduce(tensor)
        assert tensor[0] == world() ** 2
    dist.barrier()
    dist.destroy_process_group()


@check(ranks=(2,), fresh=True, group=False, lost=(1,))
def ends_with_an_exception():
    """Rank 1 raises an exception and does not destroy its group. The other rank gets an error soon."""
    init(timeout_s=20)
    dist.barrier()
    if rank() == 1:
        raise ValueError("on purpose")
    with fails(names(1), within_s=15, kinds=kinds()):
        for _ in range(3):
            dist.all_reduce(torch.ones(10))
    leave()


@check(ranks=(2,), fresh=True, group=False, lost=(1,), timeout_s=90)
def a_rank_that_never_comes():
    """init_process_group, or the first collective, ends at the timeout and names the missing ranks."""
    if rank() == 1:
        return
    with fails(names(1), within_s=60, kinds=(RuntimeError, TimeoutError)):
        init(timeout_s=5)
        dist.all_reduce(torch.ones(4))
