"""Children made by fork() while threads of their parent work: a child has none of these threads, and a lock that one of them
held stays locked in the child. Yet every call of a child is refused at once, and every child ends.

UNISONO_CHECKS_FORKS=2000     children per check that forks repeatedly; default 50
"""

import os
import threading

import torch
import torch.distributed as dist
from forked import in_child

from .common import check, fails, rank, same, store_barrier, world

REFUSED = "this process was forked from a member"
FORKS = int(os.environ.get("UNISONO_CHECKS_FORKS", "50"))


def refused(call):
    with fails(REFUSED, within_s=5):
        call()


def every_call_is_refused(work, future):
    import unisono.torch

    backend = unisono.torch.backend_of()
    tensor, peer = torch.ones(10), 1 - rank()
    for call in (
        lambda: dist.all_reduce(tensor),
        lambda: dist.all_reduce(tensor, async_op=True),
        dist.barrier,
        unisono.torch.monitored_barrier,
        lambda: dist.isend(tensor, peer),
        lambda: dist.recv(tensor, peer),
        lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, peer)]),
        lambda: dist.group.WORLD.split_group([0, 1], group_name="of a child"),
        unisono.torch.report,
        work.wait,
        work.get_future,
        future.wait,
    ):
        refused(call)
    assert work.is_completed() and not work.is_success()
    backend.abort()
    assert backend._all_over()
    dist.destroy_process_group()


@check(ranks=(2,))
def every_call_of_a_child_is_refused():
    """The child has a Work of an operation in flight. The operation goes on in the parents."""
    if rank() == 0:
        tensor = torch.ones(1000)
        work = dist.all_reduce(tensor, async_op=True)
        future = work.get_future()
        in_child(lambda: every_call_is_refused(work, future))
        store_barrier("the child has ended")
        future.wait()
    else:
        store_barrier("the child has ended")
        tensor = torch.ones(1000)
        dist.all_reduce(tensor)
    same(tensor, torch.full((1000,), float(world())))
    dist.all_reduce(tensor)
    same(tensor, torch.full((1000,), float(world() ** 2)))


@check(ranks=(2,))
def a_child_asks_about_an_operation_that_a_thread_completes():
    """The thread copies the result to a tensor that is not contiguous, and holds the lock of the operation meanwhile."""
    tensor = torch.ones(4000, 5000).t()
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    while tensor[0, 0] == 1:  # the copy has not begun
        pass

    def ask():
        assert not tensor.eq(world()).all(), "the copy was over before the fork"
        assert work.is_completed()

    in_child(ask)
    future.wait()
    assert tensor.eq(world()).all()


@check(ranks=(2,))
def callbacks_keep_the_state_of_their_thread():
    """Python makes the state of a thread under a lock. A child hangs if another thread held it at the fork. So a thread has one
    state for all callbacks."""
    local, threads, lost = threading.local(), set(), []

    def callback(_):
        if threading.get_ident() in threads and not hasattr(local, "seen"):
            lost.append(threading.current_thread().name)
        threads.add(threading.get_ident())
        local.seen = True

    done = []
    for _ in range(50):
        work = dist.all_reduce(torch.ones(1 << 18), async_op=True)
        done.append(work.get_future().then(callback))
    for future in done:
        future.wait()
    assert threads - {threading.get_ident()}, "no callback ran in another thread"
    assert not lost, lost


@check(ranks=(2,), timeout_s=60 + FORKS)
def children_end_while_callbacks_run():
    """A thread of the parent starts operations with callbacks all the time."""
    stop, called = threading.Event(), []

    def work():
        while True:
            go_on = torch.tensor([rank() > 0 or not stop.is_set()], dtype=torch.int32)
            dist.all_reduce(go_on, op=dist.ReduceOp.MIN)
            if not go_on:
                return
            futures = [dist.all_reduce(torch.ones(10), async_op=True).get_future() for _ in range(4)]
            for future in [future.then(called.append) for future in futures]:
                future.wait()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(FORKS if rank() == 0 else 0):
            in_child(lambda: refused(dist.barrier))
    finally:
        stop.set()
        thread.join()
    assert called
