"""How processes end: each check runs in separate processes, which end as Python programs do. The exit code is
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
    """Rank 2 is there for a second longer."""
    init()
    dist.all_reduce(torch.ones(10))
    dist.barrier()
    end = time.monotonic() + 0.5 * rank()
    while time.monotonic() < end:
        torch.ones(1000).sum()


@check(ranks=(2,), fresh=True, group=False)
def keeps_everything_until_the_end():
    """Works, futures and groups in globals, which the interpreter destroys in any order."""
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
    """No barrier: rank 0 goes first, it has the store; the others go later."""
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
    """Only the operation holds rank 0's group: when it ends, rank 0 has left for the other rank, too."""
    init()
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(1 << 20)  # too large to be sent before the other rank receives
    if rank() == 0:
        dist.all_reduce(tensor, async_op=True)
        dist.destroy_process_group()
        store.set("left", "")
        store.get("told")
        return
    store.get("left")
    dist.all_reduce(tensor)
    assert tensor[0] == world()
    with fails(names(0), within_s=15, kinds=kinds()):
        dist.barrier()
    store.set("told", "")


@check(ranks=(2,), fresh=True, group=False)
def destroyed_in_a_callback():
    """The last reference to the group is dropped in a separate thread."""
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
    """Group before work, work before future, future before its callback; the work of a destroyed group can still be queried."""
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
    """sys.exit() in a callback is its future's error, not the program's end."""
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
    if rank() == 0:  # later than the other rank, whose operation is in flight when its program ends
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


@check(ranks=(2,), fresh=True, group=False, lost=(1,))
def ends_with_an_exception():
    """Rank 1 raises and destroys nothing: the other rank is notified soon."""
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
