"""Sub-groups: overlapping, many, made and destroyed in any order, used from several threads."""

import datetime
import gc
import os
import threading
import time

import torch
import torch.distributed as dist

from .common import check, fails, rank, same, world


def sums_to(group, expected, value=None):
    tensor = torch.full((5,), float(rank() if value is None else value))
    dist.all_reduce(tensor, group=group)
    same(tensor, torch.full((5,), float(expected)))


@check(ranks=(4,))
def overlapping():
    """Every pair of four ranks has a group, and computes a sum in it."""
    pairs = [(first, second) for first in range(world()) for second in range(first + 1, world())]
    groups = {pair: dist.new_group(list(pair)) for pair in pairs}
    for pair, group in groups.items():
        if rank() in pair:
            sums_to(group, sum(pair))
        else:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
    works = []
    for pair, group in groups.items():  # all operations are in flight at once
        if rank() in pair:
            tensor = torch.tensor([float(rank())])
            works.append((pair, tensor, dist.all_reduce(tensor, group=group, async_op=True)))
    for pair, tensor, work in reversed(works):
        work.wait()
        same(tensor, torch.tensor([float(sum(pair))]))


@check(ranks=(3,))
def order_of_ranks():
    """Ranks of a group are in the order of the default group, in whatever order they were listed."""
    group = dist.new_group([2, 0])
    if rank() == 1:
        return
    assert dist.get_world_size(group) == 2 and dist.get_process_group_ranks(group) in ([0, 2], [2, 0])
    gathered = [torch.empty(1) for _ in range(2)]
    dist.all_gather(gathered, torch.tensor([float(rank())]), group=group)
    order = dist.get_process_group_ranks(group)
    same(torch.cat(gathered), torch.tensor([float(of) for of in order]))
    sent = torch.tensor([float(rank())])
    dist.broadcast(sent, src=2, group=group)
    same(sent, torch.tensor([2.0]))


@check(ranks=(1, 2))
def alone():
    """Groups with one rank."""
    groups = [dist.new_group([of]) for of in range(world())]
    group = groups[rank()]
    sums_to(group, rank())
    outputs = [torch.empty(2)]
    dist.all_gather(outputs, torch.ones(2), group=group)
    same(outputs[0], torch.ones(2))
    dist.barrier(group)
    output = torch.empty(3)
    dist.reduce_scatter_tensor(output, torch.arange(3.0), group=group)
    same(output, torch.arange(3.0))
    dist.all_to_all_single(output, torch.ones(3), group=group)
    same(output, torch.ones(3))
    dist.broadcast(output, src=rank(), group=group)


@check(ranks=(3,), timeout_s=120)
def many_made_and_destroyed():
    """A hundred groups in sequence leave no descriptors or threads."""

    def turn():
        group = dist.new_group()
        sums_to(group, world() * (world() - 1) // 2)
        dist.barrier()  # destroying is not collective: no rank leaves while another still uses the group
        dist.destroy_process_group(group)

    for _ in range(5):
        turn()
    gc.collect()
    descriptors, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for _ in range(95):
        turn()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 3, (descriptors, os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/task")) <= threads + 3, (threads, os.listdir("/proc/self/task"))


@check(ranks=(3,), timeout_s=120)
def thirty_alive():
    groups = [dist.new_group() for _ in range(30)]
    for number, group in enumerate(groups):
        sums_to(group, number * world(), number)
    works = []
    for number, group in enumerate(groups):
        tensor = torch.full((3,), float(number))
        works.append((number, tensor, dist.all_reduce(tensor, group=group, async_op=True)))
    for number, tensor, work in works:
        work.wait()
        same(tensor, torch.full((3,), float(number * world())))


@check(ranks=(3,))
def destroyed_in_any_order():
    groups = [dist.new_group() for _ in range(6)]
    for group in groups:
        sums_to(group, world() * (world() - 1) // 2)
    dist.barrier()
    order = (
        [3, 0, 5, 1] if rank() == 0 else [1, 5, 0, 3]
    )  # ranks destroy groups in different orders; two groups are destroyed with the default group
    for number in order:
        dist.destroy_process_group(groups[number])
    sums_to(groups[2], world() * (world() - 1) // 2)
    sums_to(dist.group.WORLD, world() * (world() - 1) // 2)


@check(ranks=(3,), group=False)
def default_group_made_again():
    from .common import init

    for turn in range(3):
        init_number = f"{turn}"
        os.environ["CHECK_DIRECTORY"] += init_number
        os.makedirs(os.environ["CHECK_DIRECTORY"], exist_ok=True)
        init()
        sums_to(dist.group.WORLD, world() * (world() - 1) // 2)
        dist.barrier()
        dist.destroy_process_group()
        assert not dist.is_initialized()


@check(ranks=(4,))
def local_synchronization():
    """With use_local_synchronization, only the members call new_group."""
    mine = [0, 1] if rank() < 2 else [2, 3]
    group = dist.new_group(mine, use_local_synchronization=True)
    sums_to(group, sum(mine))
    if rank() in (1, 2):
        group = dist.new_group([1, 2], use_local_synchronization=True)
        sums_to(group, 3)


@check(ranks=(4,))
def subgroups_of_equal_size():
    mine, groups = dist.new_subgroups(2)
    assert len(groups) == 2
    sums_to(mine, 1 if rank() < 2 else 5)
    mine, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    sums_to(mine, 3)


@check(ranks=(4,))
def device_mesh():
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    row, column = rank() // 2, rank() % 2
    sums_to(mesh["columns"].get_group(), 4 * row + 1)
    sums_to(mesh["rows"].get_group(), 2 * column + 2)
    assert tuple(mesh.get_coordinate()) == (row, column)


@check(ranks=(2,))
def split_group_needs_a_device():
    """torch refuses to split groups of the CPU before it asks the backend."""
    with fails("device", within_s=10):
        dist.split_group(split_ranks=[[0], [1]])


@check(ranks=(3,))
def several_threads():
    """Each thread has its own group, and computes a hundred sums in it."""
    groups = [dist.new_group() for _ in range(4)]
    errors = []

    def work(number):
        try:
            for turn in range(100):
                tensor = torch.full((17,), float(rank() * number + turn))
                dist.all_reduce(tensor, group=groups[number])
                same(tensor, torch.full((17,), float(sum(of * number + turn for of in range(world())))))
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@check(ranks=(2,))
def names_and_sizes():
    group = dist.new_group([0, 1], group_desc="pair", timeout=datetime.timedelta(seconds=20))
    assert group.group_desc == "pair" and group.rank() == rank() and group.size() == world()
    assert dist.get_backend(group) == dist.get_backend() == os.environ["BACKEND"]
    backend = group._get_backend(torch.device("cpu"))
    assert backend.rank() == rank() and backend.size() == world() and backend.name() == os.environ["BACKEND"]


@check(ranks=(2,))
def two_backends():
    """Groups of unisono and of Gloo in one process."""
    other = dist.new_group(backend="gloo")
    sums_to(other, 1)
    sums_to(dist.group.WORLD, 1)


@check(ranks=(2, 3))
def debug_detail():
    """TORCH_DISTRIBUTED_DEBUG=DETAIL wraps the backend: calls are compared between ranks, by sequence numbers that the
    backend counts.
    """
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group()
    for _ in range(3):
        sums_to(group, world() * (world() - 1) // 2)
        dist.barrier(group)
        dist.all_gather([torch.empty(2) for _ in range(world())], torch.ones(2), group=group)
    with fails("detected|mismatch", within_s=20):
        dist.all_reduce(torch.ones(3 + rank()), group=group)
    dist.set_debug_level(dist.DebugLevel.OFF)


@check(ranks=(4,), timeout_s=180)
def descriptors():
    """A group of four ranks of one host takes at most ten descriptors of each process, so a limit of 1024 allows a hundred
    groups.
    """

    def count():
        return len(os.listdir("/proc/self/fd"))

    sums_to(dist.group.WORLD, 6)
    before, groups, each = count(), [], 10
    for _ in range(20):
        groups.append(dist.new_group())
        sums_to(groups[-1], 6)
    # Connections to the rendezvous of a group close after the group has formed.
    end = time.monotonic() + 20
    while count() > before + each * len(groups) and time.monotonic() < end:
        pass
    assert count() <= before + each * len(groups), (before, count())
    for group in groups:
        sums_to(group, 6)
