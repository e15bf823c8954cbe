"""Tensors of a device, which fake_device/fake_device.cc simulates: results, and the order of waiting.

The simulated device works as late as possible, so code that works only by chance fails. test_torch_device.py builds the device
and runs these checks.
"""

import functools
import importlib.util
import os
import threading
import types

import torch
import torch.distributed as dist

from . import batches, collectives, common
from .common import CHECKS, check, fails, rank, same, world

NAME = "simulated"
fake = None


def start():
    """Loads the device, registers it with torch, and makes the default group."""
    global fake
    spec = importlib.util.spec_from_file_location("unisono_fake_device", os.environ["FAKE_DEVICE"])
    fake = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fake)
    torch.utils.rename_privateuse1_backend(NAME)
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available, module.is_initialized, module.device_count, module.current_device = (
        lambda: True,
        lambda: True,
        lambda: 1,
        lambda: 0,
    )
    module._is_in_bad_fork, module._lazy_init = lambda: False, lambda: None
    torch._register_device_module(NAME, module)
    importlib.import_module("unisono.torch")
    if NAME not in dist.Backend.backend_capability["unisono"]:
        dist.Backend.backend_capability["unisono"].append(NAME)


def finish():
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def device_check(ranks=(2,), group=True, timeout_s=60):
    """Like `check`, but loads the device first."""

    def mark(function):
        @functools.wraps(function)
        def run():
            start()
            if group:
                common.init()
            function()
            finish()

        return check(ranks=ranks, group=False, timeout_s=timeout_s)(run)

    return mark


def on_device(tensor):
    return tensor.to(NAME)


def mine(elements=1000):
    return torch.full((elements,), float(rank() + 1))


def total(elements=1000):
    return torch.full((elements,), float(sum(range(1, world() + 1))))


def equal(actual, expected):
    """Compares `actual`, copied to the host on the current stream as a user would do it."""
    same(actual.cpu(), expected)


def for_all(module, names):
    """Runs checks of another module with all tensors on the device."""
    for name in names:
        options = CHECKS[module.__name__.rpartition(".")[2], name]

        def run(original=getattr(module, name)):
            with torch.device(NAME):
                original()

        run.__name__, run.__module__ = f"{name}_on_the_device", __name__
        globals()[run.__name__] = device_check(ranks=options["ranks"][:1], timeout_s=options["timeout_s"])(run)


for_all(
    collectives,
    [
        name
        for module, name in CHECKS
        if module == "collectives" and name not in ("coalescing_manager_with_device", "barrier_holds_back")
    ],
)
for_all(batches, ["an_error_in_a_batch_begins_none_of_its_messages"])


# Order of waiting ---------------------------------------------------------------------------------------------------


@device_check(ranks=(2, 3))
def an_input_that_is_still_being_written():
    """The copy to the host waits for the caller's stream. The caller does not wait."""
    tensor = on_device(torch.zeros(1000))
    fake.hold("kernel")
    tensor.fill_(rank() + 1)
    work = dist.all_reduce(tensor, async_op=True)
    fake.settle()
    assert not work.is_completed()
    fake.release("kernel")
    work.wait()
    equal(tensor, total())


@device_check()
def copies_to_the_host_take_their_time():
    """The operation waits for slow copies to the host."""
    tensor = on_device(mine())
    fake.hold("to_host")
    work = dist.all_reduce(tensor, async_op=True)
    with fails("not done", within_s=10, kinds=(unisono_timeout(),)):
        work.wait(common.datetime.timedelta(seconds=0.5))
    assert not work.is_completed()
    fake.release("to_host")
    work.wait()
    equal(tensor, total())


def unisono_timeout():
    return importlib.import_module("unisono.torch").TimeoutError


@device_check(ranks=(2, 3))
def an_output_that_is_used_at_once():
    """wait() returns when the operation has ended, and the caller's stream waits for the copies back."""
    tensor, seen = on_device(mine()), on_device(torch.zeros(1000))
    fake.hold("to_device")
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    seen += tensor
    fake.settle()
    fake.release("to_device")
    equal(seen, total())
    equal(tensor, total())


@device_check()
def an_output_that_is_still_being_read():
    """A receive buffer is not written before the caller's stream has read its former content."""
    sevens = torch.full((1000,), 7.0)
    for call in (
        lambda tensor: dist.isend(tensor, 1) if rank() == 0 else dist.irecv(tensor, 0),
        lambda tensor: dist.broadcast(tensor, 0, async_op=True),
    ):
        tensor, seen = on_device(sevens if rank() == 0 else mine()), on_device(torch.zeros(1000))
        fake.hold("kernel" if rank() == 1 else "nothing")
        seen += tensor
        call(tensor).wait()
        fake.settle()
        fake.release("kernel")
        equal(seen, sevens if rank() == 0 else mine())
        equal(tensor, sevens)


@device_check()
def another_current_stream():
    stream = torch.Stream(device=NAME)
    tensor = on_device(torch.zeros(1000))
    with stream:
        fake.hold("kernel")
        tensor.fill_(rank() + 1)
        work = dist.all_reduce(tensor, async_op=True)
        fake.settle()
        fake.release("kernel")
        work.wait()
        tensor.add_(1)
        equal(tensor, total() + 1)


@device_check(ranks=(3,))
def many_in_flight():
    """Each operation waits for the copies of its own tensors only. The check waits for the operations in another order than
    they began."""
    tensors = [on_device(torch.zeros(index + 1)) for index in range(50)]
    works = []
    for index, tensor in enumerate(tensors):
        tensor.fill_(rank() + index)
        works.append(dist.all_reduce(tensor, async_op=True))
    for work in reversed(works):
        work.wait()
    for index, tensor in enumerate(tensors):
        equal(tensor, torch.full((index + 1,), float(world() * index + sum(range(world())))))


@device_check()
def a_message_that_comes_late_holds_nothing_back():
    """A late message does not delay operations that began after it: operations end in any order."""
    late, tensor = on_device(torch.zeros(10)), on_device(mine())
    if rank() == 0:
        receiving = dist.irecv(late, 1)
    dist.all_reduce(tensor)
    equal(tensor, total())
    if rank() == 1:
        dist.send(on_device(torch.full((10,), 3.0)), 0)
    else:
        receiving.wait()
        equal(late, torch.full((10,), 3.0))


@device_check()
def host_and_device_in_turns():
    """The calls of a group have one order, whether their tensors are on the host or on the device."""
    for turn in range(20):
        far, near = on_device(mine(10) + turn), torch.full((20,), float(turn))
        if rank() == turn % 2:
            fake.hold("to_host")  # in each turn, one rank is later than the other
        work = dist.all_reduce(far, async_op=True)
        fake.settle()
        threading.Timer(0.01, fake.release, ("to_host",)).start()
        dist.all_reduce(near)
        work.wait()
        same(near, torch.full((20,), 2.0 * turn))
        equal(far, total(10) + 2 * turn)


@device_check()
def memory_is_kept_until_it_is_copied():
    """Neither pinned memory nor a tensor's memory is freed during a copy, even if no thread waits and the caller has dropped
    all tensors."""
    for _ in range(5):
        kept = on_device(torch.zeros(3000))
        fake.hold("to_device")
        dist.all_reduce(kept, async_op=True)
        fake.hold("kernel")
        passing = on_device_later(mine(3000))
        dist.all_gather_into_tensor(torch.empty(3000 * world(), device=NAME), passing, async_op=True)
        del passing
        fake.release("kernel")
        near = torch.ones(5)
        dist.all_reduce(near)
        fake.release("to_device")
        last = on_device(mine())
        dist.all_reduce(last)
        equal(last, total())
    fake.settle()
    dist.destroy_process_group()
    assert fake.pinned_pieces() == 0, fake.pinned_pieces()


def on_device_later(tensor):
    """Returns a copy on the device that is still being written when the function returns."""
    here = torch.zeros(tensor.shape, device=NAME)
    here.fill_(float(tensor[0]))
    return here


# Futures --------------------------------------------------------------------------------------------------------------


@device_check()
def futures_have_complete_values():
    """A callback's current stream waits for the value of the future. Users of the callback's result wait for that stream."""
    tensor = on_device(mine())
    fake.hold("to_device")
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda ended: ended.value()[0].add_(ended.value()[0]))
    result = doubled.wait()
    fake.settle()
    fake.release("to_device")
    equal(result, 2 * total())
    equal(tensor, 2 * total())
    late = dist.all_reduce(on_device(mine()), async_op=True)
    late.wait()
    equal(late.get_future().wait()[0], total())
    outputs = [torch.empty(3, device=NAME) for _ in range(world())]
    rows = (
        dist.all_gather(outputs, on_device(mine(3)), async_op=True).get_future().wait()[0]
    )  # torch's hooks expect one tensor with a row per rank
    for of in range(world()):
        equal(rows[of], torch.full((3,), float(of + 1)))


@device_check(ranks=(3,))
def collectives_from_callbacks():
    """Collectives of callbacks are matched by the callback that made them, while the main thread makes other collectives."""
    results = []
    for turn in range(10):
        first = dist.all_reduce(on_device(torch.full((5,), float(turn))), async_op=True).get_future()
        results.append(first.then(lambda ended: dist.all_reduce(ended.value()[0], async_op=True).get_future().wait()[0]))
        other = on_device(mine(7))
        dist.all_reduce(other)
        equal(other, total(7))
    for turn, result in enumerate(results):
        equal(result.wait(), torch.full((5,), 9.0 * turn))


# Errors ---------------------------------------------------------------------------------------------------------------


@device_check()
def errors_are_those_of_the_host():
    unisono = importlib.import_module("unisono.torch")
    with fails("an output of 7 elements", within_s=10, kinds=(ValueError,)):
        dist.all_gather_into_tensor(torch.empty(world() * 3 + 1, device=NAME), on_device(mine(3)))
    with fails("takes dense tensors|got tensors on", within_s=10, kinds=(TypeError,)):
        dist.all_reduce_coalesced([on_device(mine(3)), mine(3)])
    work = dist.all_to_all_single(torch.empty(4, device=NAME), on_device(mine(4)), [1, 1], [2, 2], async_op=True)
    future = work.get_future()
    with fails("splits", within_s=10, kinds=(ValueError,)):
        work.wait()
    with fails("splits", within_s=10, kinds=(ValueError,)):
        future.wait()
    if rank() == 0:
        with fails("rank 1", within_s=10, kinds=(unisono.TimeoutError,)):
            dist.group.WORLD.allreduce([on_device(mine())], timeout_options(1.0)).wait()
    common.store_barrier("late")
    dist.destroy_process_group()  # the group cannot be used any more: its ranks have made different numbers of calls


def timeout_options(seconds):
    options = dist.AllreduceOptions()
    options.timeout = common.datetime.timedelta(seconds=seconds)
    return options


@device_check(ranks=(3,))
def a_rank_that_is_lost():
    if rank() == 1:
        common.store_barrier("before")
        os._exit(0)
    tensor = on_device(mine())
    common.store_barrier("before")
    with fails(common.names(1), within_s=20, kinds=common.kinds()):
        dist.all_reduce(tensor)
    common.leave()


# The rest of the interface ----------------------------------------------------------------------------------------------


@device_check(ranks=(3,))
def coalesced_calls():
    first, second, near = on_device(mine(3)), on_device(mine(4)), mine(2)
    fake.hold("to_device")
    with dist._coalescing_manager(device=torch.device(NAME), async_ops=True) as manager:
        dist.all_reduce(first)
        dist.broadcast(near, 1, async_op=True)
        dist.broadcast(second, 2, async_op=True)
    manager.wait()
    seen = first.clone()
    fake.settle()
    fake.release("to_device")
    equal(first, total(3))
    equal(seen, total(3))
    equal(second, torch.full((4,), 3.0))
    same(near, torch.full((2,), 2.0))
    tensors = [on_device(mine(5)), on_device(mine(6)).reshape(2, 3)]
    dist.all_reduce_coalesced(tensors)
    equal(tensors[0], total(5))
    equal(tensors[1], total(6).reshape(2, 3))


@device_check(ranks=(3,))
def groups_and_barriers():
    pair = dist.new_group([0, 2])
    if rank() != 1:
        tensor = on_device(torch.full((4,), float(rank())))
        dist.all_reduce(tensor, group=pair)
        equal(tensor, torch.full((4,), 2.0))
    dist.barrier()
    tensor = on_device(torch.zeros(10))
    tensor.fill_(1)
    dist.barrier(device_ids=[0])
    whole = dist.group.WORLD._get_backend(torch.device(NAME))
    assert whole is dist.group.WORLD._get_backend(torch.device("cpu"))
    before = whole._get_sequence_number_for_group()
    work = dist.all_reduce(tensor, async_op=True)
    assert whole._get_sequence_number_for_group() == before + 1
    work.wait()
    equal(tensor, torch.full((10,), 3.0))


@device_check()
def options_of_the_caller():
    """The caller's call_options() apply although another thread makes the call. The work has a report."""
    unisono = importlib.import_module("unisono.torch")
    tensor = on_device(mine(10000))
    with unisono.call_options(schedule="ring"):
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    equal(tensor, total(10000))
    assert work.report()["schedule"] == "ring", work.report()
    assert unisono.report()["schedule"] == "ring"
    plain = dist.all_reduce(on_device(mine()), async_op=True)
    plain.wait()
    assert plain.report()["schedule"] != "ring", plain.report()
    values, error = on_device(torch.linspace(0, 1, 1000)), on_device(torch.zeros(1000))
    unisono.backend_of()._all_reduce_with_feedback(values, error, "int8", True).wait()
    assert torch.allclose(values.cpu(), torch.linspace(0, 1, 1000), atol=0.02)
    scaled = on_device(mine())
    dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(on_device(torch.tensor([0.5]))))
    equal(scaled, total() * 0.5)


@device_check()
def parts_of_tensors():
    """Elements between those of a view do not change."""
    whole = on_device(torch.zeros(4, 6))
    whole[:, ::2].fill_(rank() + 1)
    dist.all_reduce(whole[:, ::2])
    expected = torch.zeros(4, 6)
    expected[:, ::2] = total(12).reshape(4, 3)
    equal(whole, expected)
    with torch.inference_mode():
        tensor = on_device(mine())
        dist.all_reduce(tensor)
        equal(tensor, total())
    parameter = torch.nn.Parameter(on_device(mine()))
    dist.broadcast(parameter, 0)
    equal(parameter.detach(), torch.ones(1000))


@device_check(group=False)
def beside_another_backend():
    """Gloo for CPU tensors and unisono for tensors of the device, in one process group. DistributedDataParallel averages
    gradients."""
    os.environ["BACKEND"] = f"cpu:gloo,{NAME}:unisono"
    common.init()
    near, far = mine(), on_device(mine())
    dist.all_reduce(near)
    dist.all_reduce(far)
    same(near, total())
    equal(far, total())


@device_check()
def ends_with_calls_under_way():
    """destroy_process_group() with operations that no thread waited for."""
    works = [dist.all_reduce(on_device(mine()), async_op=True) for _ in range(10)]
    common.store_barrier("all called")
    dist.destroy_process_group()
    for work in works:
        try:
            work.wait()
        except RuntimeError as error:
            print(error)
    assert all(work.is_completed() for work in works)


@check(ranks=(2,), group=False)
def cuda():
    """Checks a real CUDA device. test_torch_device.py runs it only where there is one."""
    common.init()
    device = torch.device("cuda", rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    for _ in range(20):
        tensor = torch.zeros(1 << 20, device=device)
        torch.cuda._sleep(10_000_000)
        tensor.fill_(rank() + 1)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        doubled = tensor * 2
        same(doubled.cpu(), 2 * total(1 << 20))
        gathered = torch.empty(world() * 1000, device=device)
        future = dist.all_gather_into_tensor(
            gathered, torch.full((1000,), float(rank() + 1), device=device), async_op=True
        ).get_future()
        same(
            future.then(lambda ended: ended.value()[0] + 1).wait().cpu(), torch.arange(2, world() + 2.0).repeat_interleave(1000)
        )
    dist.barrier(device_ids=[device.index])
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100).to(device), device_ids=[device.index])
    model(torch.ones(10, 100, device=device) * rank()).sum().backward()
    common.same_on_all_ranks(model.module.weight.grad)
    dist.destroy_process_group()
