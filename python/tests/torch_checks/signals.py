"""While the main thread is blocked in a call, the handlers of signals run."""

import datetime
import os
import pathlib
import signal
import threading
import time

import torch
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel

from .common import backend, check, init, rank, store_barrier, world
from .ddp import SMALL, batch, loss_of, model

# The promise is 0.2 s. On a busy machine, a thread may get its turn later.
PROMISE_S = 0.2
SLACK_S = 1.0
DELAY_S = 0.3  # the signal comes when the main thread is blocked
HELP_S = 8.0  # without a handler that has run, rank 1 takes part so much later


class Signal:
    """Sends a signal to the main thread while a block of code runs. Its handler must run soon."""

    def __init__(self, handler=lambda: None):
        self.handler, self.sent, self.handled = handler, None, None

    def handle(self, *_):
        self.handled = time.monotonic()
        self.handler()

    def send(self):
        self.sent = time.monotonic()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    def __enter__(self):
        signal.signal(signal.SIGUSR1, self.handle)
        threading.Timer(DELAY_S, self.send).start()
        return self

    def __exit__(self, *_):
        assert self.sent is not None, "the call was not blocked when the signal came"
        assert self.handled is not None, "the handler has not run"
        took = self.handled - self.sent
        print(f"the handler ran after {took:.3f} s", flush=True)
        assert took < PROMISE_S + SLACK_S, f"the handler ran after {took:.3f} s"


def flag(name):
    return pathlib.Path(os.environ["CHECK_DIRECTORY"], name)


def blocked(name, call, late_call=None):
    """Rank 0 makes the call. Rank 1 makes it, or late_call, only when rank 0's handler has run."""
    if rank() == 0:
        with Signal(flag(name).touch):
            call()
        return
    end = time.monotonic() + HELP_S
    while not flag(name).exists() and time.monotonic() < end:
        torch.ones(100).sum()
    (late_call or call)()


@check(ranks=(2,))
def handlers_run_while_a_call_is_blocked():
    """The calls go on after the handler has run."""
    tensor = torch.ones(1000)
    blocked("all_reduce", lambda: dist.all_reduce(tensor))
    assert tensor.sum() == world() * 1000
    blocked("wait", lambda: dist.all_reduce(tensor, async_op=True).wait())
    blocked("future", lambda: dist.all_reduce(tensor, async_op=True).get_future().wait())
    blocked("then", lambda: dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()).wait())
    blocked("recv", lambda: dist.recv(tensor, 1), lambda: dist.send(tensor, 0))
    blocked("any", lambda: dist.recv(tensor), lambda: dist.send(tensor, 0))
    blocked("send", lambda: dist.send(torch.ones(1 << 22), 1), lambda: dist.recv(torch.ones(1 << 22), 0))
    blocked("barrier", dist.barrier)
    blocked("coalesced", coalesced)
    assert tensor.sum() == 4000 * world() * 2


def coalesced():
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(torch.ones(1000))
        dist.all_reduce(torch.ones(1000))
    manager.wait()


@check(ranks=(2,))
def handlers_run_in_calls_that_only_unisono_has():
    import unisono.torch

    blocked("monitored_barrier", unisono.torch.monitored_barrier)
    sparse = torch.ones(3, 3).to_sparse()
    blocked("sparse", lambda: dist.all_reduce(sparse))
    assert sparse.to_dense()[0, 0] == world()


@check(ranks=(2,))
def handlers_run_while_groups_form_and_end():
    groups = []
    blocked("new_group", lambda: groups.append(dist.new_group()))
    dist.barrier(groups[0])

    def destroy():
        dist.all_reduce(torch.ones(1 << 22), group=groups[0], async_op=True)
        dist.destroy_process_group(groups[0])

    blocked("destroy", destroy)
    dist.barrier()


@check(ranks=(2,))
def handlers_run_while_a_backward_pass_waits():
    network = DistributedDataParallel(model(), bucket_cap_mb=SMALL)
    blocked("backward", loss_of(network, *batch(0)).backward)
    hooked = DistributedDataParallel(model(), bucket_cap_mb=SMALL)

    def hook(_, bucket):
        future = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, async_op=True).get_future()
        return future.then(lambda done: dist.all_reduce(done.value()[0], op=dist.ReduceOp.AVG) or done.value()[0])

    hooked.register_comm_hook(None, hook)
    blocked("hook", loss_of(hooked, *batch(0)).backward)
    for mine, other in zip(network.parameters(), hooked.parameters()):
        torch.testing.assert_close(mine.grad, other.grad)


@check(ranks=(2,))
def handlers_run_while_all_futures_are_waited_for():
    def wait():
        works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
        values = torch.futures.wait_all([work.get_future() for work in works])
        assert [value[0].sum() for value in values] == [1000 * world()] * 3

    blocked("wait_all", wait)


@check(ranks=(2,))
def handlers_run_in_steps_of_training_methods():
    import unisono.torch

    network = model()
    optimizer = unisono.torch.ShardedOptimizer(network.parameters(), options="delivery=reliable")
    loss_of(network, *batch(0)).backward()
    blocked("sharded", optimizer.step)
    drop = unisono.torch.DropCompute(1, "off:min_computed=0")  # so that ranks exchange what they have computed

    def step():
        for _ in drop.micro_batches(iter([0]), torch.nn.Linear(1, 1).requires_grad_(False)):
            pass

    blocked("drop", step)


def interrupt():
    raise KeyboardInterrupt


def interrupted(call):
    try:
        with Signal(interrupt):
            call()
    except KeyboardInterrupt:
        return
    raise AssertionError("the exception of the handler was lost")


@check(ranks=(2,))
def an_interrupted_call_goes_on_and_the_group_with_it():
    """Ctrl-C ends the call, and not its operation: ranks still match. So a program may go on."""
    tensor, other = torch.ones(1000), torch.ones(10)
    if rank() == 0:
        interrupted(lambda: dist.all_reduce(tensor))
        work = dist.all_reduce(other, async_op=True)
        interrupted(work.wait)
        flag("interrupted").touch()
        work.wait()
    else:
        while not flag("interrupted").exists():
            torch.ones(100).sum()
        dist.all_reduce(tensor)
        dist.all_reduce(other)
    assert other.sum() == 10 * world()
    dist.barrier()
    assert tensor.sum() == 1000 * world()


@check(ranks=(2,))
def ctrl_c_ends_a_backward_pass():
    network = DistributedDataParallel(model(), bucket_cap_mb=SMALL)
    loss = loss_of(network, *batch(0))
    if rank() == 0:
        interrupted(loss.backward)
        flag("interrupted backward").touch()
    else:
        while not flag("interrupted backward").exists():
            torch.ones(100).sum()
        loss.backward()
    dist.barrier()


@check(ranks=(2,), group=False)
def an_interrupted_program_destroys_its_group_at_once():
    """A second Ctrl-C is not needed: after the first one, destroying the group aborts what is in flight."""
    init(timeout_s=300)
    store = dist.distributed_c10d._get_default_store()
    if rank() == 0:
        interrupted(lambda: dist.all_reduce(torch.ones(1000)))
        begun = time.monotonic()
        dist.destroy_process_group()
        assert time.monotonic() - begun < 10
    store_barrier(store=store)


@check(ranks=(2,), group=False)
def ctrl_c_ends_a_destroy_that_waits():
    init(timeout_s=300)
    store = dist.distributed_c10d._get_default_store()
    if rank() == 0:
        dist.all_reduce(torch.ones(1000), async_op=True)
        interrupted(dist.destroy_process_group)
    store_barrier(store=store)


@check(ranks=(1,), group=False)
def ctrl_c_ends_init_process_group():
    """The other rank never comes: to the store, or to the group."""
    import unisono.torch  # noqa: F401

    timeout = datetime.timedelta(seconds=30)
    interrupted(
        lambda: dist.init_process_group(
            backend(), init_method="tcp://127.0.0.1:0", rank=0, world_size=2, timeout=timeout
        )
    )
    assert not dist.is_initialized()
    interrupted(lambda: dist.init_process_group(backend(), store=dist.HashStore(), rank=0, world_size=2, timeout=timeout))
    assert not dist.is_initialized()
