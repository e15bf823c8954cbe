"""Guarantees of Work and its Future: callbacks, chains of callbacks, waiting in them, errors through them."""

import datetime
import threading

import torch
import torch.distributed as dist

from .common import cannot, check, rank, same, world


def total():
    return world() * (world() + 1) / 2


def mine(elements=4):
    return torch.full((elements,), float(rank() + 1))


@check(ranks=(2, 3))
def value_of_the_future():
    """A future's value is a list of the output tensors, as torch's hooks expect it."""
    tensor = mine()
    work = dist.all_reduce(tensor, async_op=True)
    value = work.get_future().wait()
    assert isinstance(value, list) and len(value) == 1
    same(value[0], torch.full((4,), total()))
    assert value[0].data_ptr() == tensor.data_ptr()
    assert work.wait() is True
    assert work.is_completed() and work.is_success()


@check(ranks=(2, 3))
def then():
    future = dist.all_reduce(mine(), async_op=True).get_future()
    chained = future.then(lambda done: done.value()[0] * 2).then(lambda done: done.wait() + 1)
    same(chained.wait(), torch.full((4,), total() * 2 + 1))
    same(
        future.then(lambda done: done.value()[0] * 3).wait(), torch.full((4,), total() * 3)
    )  # the future is complete, so the callback is called at once


@check(ranks=(2, 3))
def one_future():
    """Two requests for a work's future give the same future, or futures that complete together."""
    work = dist.all_reduce(mine(), async_op=True)
    called = threading.Event()
    first, second = work.get_future(), work.get_future()
    first.add_done_callback(lambda _: called.set())
    second.wait()
    first.wait()
    assert called.wait(10)
    assert first.done() and second.done()


@check(ranks=(2, 3))
def callbacks_that_start_collectives():
    """A callback starts another collective, three levels deep, and no thread waits in between."""

    def again(done):
        return dist.all_reduce(done.value()[0], async_op=True).get_future()

    future = dist.all_reduce(mine(), async_op=True).get_future()
    future = future.then(lambda done: again(done)).wait().then(lambda done: again(done)).wait()
    same(future.wait()[0], torch.full((4,), total() * world() ** 2))


@check(ranks=(2, 3))
def callbacks_that_wait_for_collectives():
    """A callback waits for a collective that it has started, as in PowerSGD's hook. So the thread that runs callbacks must not
    be the thread that drives operations.
    """
    finished = []
    for bucket in range(4):
        tensor = mine() * (bucket + 1)

        def after(done, tensor=tensor):
            second = done.value()[0].clone()
            dist.all_reduce(second, async_op=True).wait()
            return second

        finished.append(dist.all_reduce(tensor, async_op=True).get_future().then(after))
        finished[-1].wait()  # in order: otherwise callbacks would start collectives in different orders on different ranks
    for bucket, future in enumerate(finished):
        same(future.wait(), torch.full((4,), total() * world() * (bucket + 1)))


@check(ranks=(2,))
def callbacks_that_wait_in_several_groups():
    """Several callbacks wait at once, each for a collective of another group."""
    groups = [dist.new_group() for _ in range(6)]
    futures = []
    for number, group in enumerate(groups):

        def after(done, group=group):
            second = done.value()[0].clone()
            dist.all_reduce(second, group=group)
            return second

        futures.append(dist.all_reduce(mine() * number, group=group, async_op=True).get_future().then(after))
    for number, future in enumerate(futures):
        same(future.wait(), torch.full((4,), total() * world() * number))


@check(ranks=(2,))
def errors_of_callbacks_reach_the_waiter():
    future = dist.all_reduce(mine(), async_op=True).get_future().then(lambda _: 1 / 0)
    try:
        future.wait()
    except Exception as error:  # noqa: BLE001
        assert "division by zero" in str(error)
    else:
        raise AssertionError("nothing was raised")
    tensor = mine()
    dist.all_reduce(tensor)
    same(tensor, torch.full((4,), total()))


@check(ranks=(2, 3))
def collect_all():
    futures = [dist.all_reduce(mine() * number, async_op=True).get_future() for number in range(10)]
    values = torch.futures.collect_all(futures).wait()
    for number, future in enumerate(values):
        same(future.value()[0], torch.full((4,), total() * number))


@check(ranks=(2,))
def futures_of_other_collectives():
    """The future of every collective has the collective's outputs as its value."""
    gathered = [torch.empty(4) for _ in range(world())]
    value = dist.all_gather(gathered, mine(), async_op=True).get_future().wait()
    if not cannot("future of all_gather"):
        assert len(value) == 1 and len(value[0]) == world()  # torch's hooks that quantize take value[0][rank]
    for of, tensor in enumerate(gathered):
        same(tensor, torch.full((4,), float(of + 1)))
    tensor = mine()
    dist.broadcast(tensor, src=1, async_op=True).get_future().wait()
    same(tensor, torch.full((4,), 2.0))
    if not cannot("future of reduce_scatter_tensor"):
        output = torch.empty(2)
        value = dist.reduce_scatter_tensor(output, mine(), async_op=True).get_future().wait()
        assert isinstance(value, list)
        same(output, torch.full((2,), total()))
    output = torch.empty(4)
    dist.all_to_all_single(output, mine(), async_op=True).get_future().wait()
    same(output, torch.tensor([1.0, 1.0, 2.0, 2.0]))
    dist.barrier(async_op=True).get_future().wait()


@check(ranks=(2,))
def polling():
    work = dist.all_reduce(mine(1 << 16), async_op=True)
    while not work.is_completed():
        pass
    assert work.is_success() and work.exception() is None
    work.wait()
    work.synchronize()


@check(ranks=(2,))
def result_of_work():
    tensor = mine()
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    result = work.result()
    assert len(result) == 1
    same(result[0], torch.full((4,), total()))


@check(ranks=(2,))
def work_that_is_dropped():
    """The Work is dropped at once; its tensors must live until the operation ends. Repeated, because freeing a Work while its
    operation ended once deadlocked."""
    for _ in range(100):
        for _ in range(50):
            dist.all_reduce(mine(1000), async_op=True)
        kept = mine()
        dist.all_reduce(kept, async_op=True).wait(datetime.timedelta(seconds=20))
        same(kept, torch.full((4,), total()))


@check(ranks=(2,))
def waiting_does_not_hold_the_interpreter():
    """While one thread waits for a collective, another must run, because it unblocks the other rank."""
    store = dist.distributed_c10d._get_default_store()
    if rank() == 0:
        tensor = mine()
        other_thread = threading.Thread(target=lambda: store.set("go", "1"))
        work = dist.all_reduce(tensor, async_op=True)
        other_thread.start()
        work.wait()
        other_thread.join()
    else:
        store.wait(["go"], datetime.timedelta(seconds=30))
        tensor = mine()
        dist.all_reduce(tensor)
    same(tensor, torch.full((4,), total()))
