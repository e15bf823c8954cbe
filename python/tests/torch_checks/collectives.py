"""Collectives that PyTorch's suite tests on GPUs only: reduce_scatter, the tensor and coalesced forms, all_to_all,
unusual shapes.
"""

import torch
import torch.distributed as dist

from .common import cannot, check, fails, is_gloo, rank, same, world


def part(of, elements=5, dtype=torch.float32):
    """The contribution of rank `of`: whole numbers whose sums over a few ranks are exact."""
    return (torch.arange(elements) + 100 * of).to(dtype)


def total(elements=5, dtype=torch.float32):
    return sum(part(of, elements, torch.int64) for of in range(world())).to(dtype)


@check(ranks=(2, 3, 4))
def reduce_scatter_list():
    inputs = [part(rank(), 4) + 10 * to for to in range(world())]
    output = torch.full((4,), -1.0)
    dist.reduce_scatter(output, inputs)
    same(output, total(4) + 10 * rank() * world())
    dist.reduce_scatter(output, inputs, op=dist.ReduceOp.MAX)
    same(output, part(world() - 1, 4) + 10 * rank())


@check(ranks=(3,))
def reduce_scatter_list_of_uneven_sizes():
    inputs = [part(rank(), to + 1) for to in range(world())]
    output = torch.empty(rank() + 1)
    dist.reduce_scatter(output, inputs)
    same(output, total(rank() + 1))


@check(ranks=(2, 3))
def reduce_scatter_tensor():
    for shape in ((2 * world(), 3), (world(), 6)):  # concatenated along the first dimension
        whole = part(rank(), 6 * world()).reshape(shape)
        output = torch.empty(shape[0] // world(), shape[1])
        dist.reduce_scatter_tensor(output, whole)
        same(output, total(6 * world()).reshape(shape).chunk(world())[rank()])
        output = torch.empty(shape[0] // world(), shape[1])
        dist.reduce_scatter_single(output, whole, op=dist.ReduceOp.MIN, async_op=True).wait()  # the name since torch 2.13
        same(output, part(0, 6 * world()).reshape(shape).chunk(world())[rank()])
    if cannot("stacked reduce_scatter_tensor"):
        return
    stacked = part(rank(), 4 * world()).reshape(world(), 4)
    output = torch.empty(4)
    work = dist.reduce_scatter_tensor(output, stacked, async_op=True)
    work.wait()
    same(output, total(4 * world()).reshape(world(), 4)[rank()])


@check(ranks=(2, 3))
def all_gather_into_tensor():
    mine = part(rank(), 6).reshape(2, 3)
    concatenated = torch.empty(2 * world(), 3)
    dist.all_gather_into_tensor(concatenated, mine)
    same(concatenated, torch.cat([part(of, 6).reshape(2, 3) for of in range(world())]))
    dist.all_gather_single(concatenated.zero_(), mine)  # the name since torch 2.13
    same(concatenated, torch.cat([part(of, 6).reshape(2, 3) for of in range(world())]))
    if cannot("stacked all_gather_into_tensor"):
        return
    stacked = torch.empty(world(), 2, 3)
    dist.all_gather_into_tensor(stacked, mine, async_op=True).wait()
    same(stacked, torch.stack([part(of, 6).reshape(2, 3) for of in range(world())]))


@check(ranks=(3,))
def all_gather_of_uneven_sizes():
    if cannot("uneven all_gather"):
        return
    outputs = [torch.empty(of + 1) for of in range(world())]
    dist.all_gather(outputs, part(rank(), rank() + 1))
    for of, output in enumerate(outputs):
        same(output, part(of, of + 1))


@check(ranks=(2, 3))
def coalescing_manager_all_reduce():
    for asynchronous in (False, True):
        tensors = [part(rank(), elements) for elements in (1, 7, 64)]
        with dist._coalescing_manager(async_ops=asynchronous) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if asynchronous:
            manager.wait()
        for tensor in tensors:
            same(tensor, total(len(tensor)))


@check(ranks=(2, 3))
def coalescing_manager_reduce_scatter_tensor():
    inputs = [part(rank(), elements * world()) for elements in (1, 5)]
    outputs = [torch.empty(elements) for elements in (1, 5)]
    with dist._coalescing_manager():
        for output, whole in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(output, whole)
    for output in outputs:
        same(output, total(len(output) * world()).chunk(world())[rank()])


@check(ranks=(2, 3))
def coalescing_manager_all_gather_into_tensor():
    outputs = [torch.empty(elements * world()) for elements in (1, 5)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output in outputs:
            dist.all_gather_into_tensor(output, part(rank(), len(output) // world()))
    manager.wait()
    for output in outputs:
        same(output, torch.cat([part(of, len(output) // world()) for of in range(world())]))


@check(ranks=(2, 3))
def coalescing_manager_with_device():
    """The form that calls the backend's startCoalescing and endCoalescing."""
    if cannot("startCoalescing"):
        return
    first, second = part(rank(), 3), part(rank(), 4)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.all_reduce(first)
        dist.all_reduce(second)
    manager.wait()
    same(first, total(3))
    same(second, total(4))


@check(ranks=(2, 3))
def all_reduce_coalesced():
    tensors = [part(rank(), 3), part(rank(), 9).reshape(3, 3)]
    dist.all_reduce_coalesced(tensors)
    same(tensors[0], total(3))
    same(tensors[1], total(9).reshape(3, 3))


@check(ranks=(2, 3))
def a_wrong_argument_in_a_list_leaves_nothing_behind():
    """One rank's call is refused for its second tensor. It has not begun with the first, so its next call matches the others' next."""
    group, many = dist.group.WORLD, [torch.ones(3), torch.ones(3)]
    outputs = [torch.empty(3 * world()), torch.empty(3 * world(), dtype=torch.float64)]
    shares = [torch.empty(1), torch.empty(1, dtype=torch.float64)]
    spread = [torch.ones(world()), torch.ones(world())]
    if rank() == 0 and not is_gloo():
        for call in (
            lambda: group.allgather_into_tensor_coalesced(outputs, many),
            lambda: group.reduce_scatter_tensor_coalesced(shares, spread),
            lambda: group._get_backend(torch.device("cpu")).allgather_coalesced([many] * (world() - 1) + [many[:1]], many),
        ):
            with fails(None, within_s=5, kinds=(ValueError, TypeError, RuntimeError)):
                call().wait()  # a device's tensors are checked later
    tensor = part(rank(), 3)
    dist.all_reduce(tensor)
    same(tensor, total(3))


@check(ranks=(2, 3))
def all_to_all_lists():
    outputs = [torch.empty(3) for _ in range(world())]
    dist.all_to_all(outputs, [part(rank(), 3) + 10 * to for to in range(world())])
    for of, output in enumerate(outputs):
        same(output, part(of, 3) + 10 * rank())
    if cannot("uneven all_to_all of lists"):
        return
    outputs = [torch.empty(of + rank()) for of in range(world())]  # rank 0 sends nothing to itself
    dist.all_to_all(outputs, [part(rank(), rank() + to) for to in range(world())], async_op=False)
    for of, output in enumerate(outputs):
        same(output, part(of, of + rank()))


@check(ranks=(2, 3, 4))
def all_to_all_single():
    whole = torch.cat([part(rank(), 2) + 10 * to for to in range(world())])
    output = torch.empty(2 * world())
    dist.all_to_all_single(output, whole)
    same(output, torch.cat([part(of, 2) + 10 * rank() for of in range(world())]))
    matrix = whole.reshape(world(), 2)
    work = dist.all_to_all_single(received := torch.empty(world(), 2), matrix, async_op=True)
    work.wait()
    same(received, output.reshape(world(), 2))


@check(ranks=(2, 3))
def all_to_all_single_uneven():
    """Rank r sends r + t elements to rank t: rank 0 nothing to itself."""
    sent = [rank() + to for to in range(world())]
    received = [of + rank() for of in range(world())]
    output = torch.empty(sum(received))
    dist.all_to_all_single(output, torch.cat([part(rank(), count) for count in sent]), received, sent)
    same(output, torch.cat([part(of, count) for of, count in enumerate(received)]))


@check(ranks=(3,))
def all_to_all_single_with_empty_splits():
    """Everything goes to rank 1."""
    sent = [3 if to == 1 else 0 for to in range(world())]
    received = [3 if rank() == 1 else 0 for _ in range(world())]
    output = torch.empty(sum(received))
    dist.all_to_all_single(output, part(rank(), 3), received, sent)
    same(output, torch.cat([part(of, 3) for of in range(world())]) if rank() == 1 else torch.empty(0))
    dist.all_to_all_single(torch.empty(0), torch.empty(0), [0] * world(), [0] * world())


@check(ranks=(2, 3))
def gather_and_scatter_from_every_root():
    for root in range(world()):
        outputs = [torch.empty(4) for _ in range(world())] if rank() == root else None
        dist.gather(part(rank(), 4), outputs, dst=root)
        for of, output in enumerate(outputs or ()):
            same(output, part(of, 4))
        output = torch.empty(4)
        dist.scatter(output, [part(to, 4) + root for to in range(world())] if rank() == root else None, src=root)
        same(output, part(rank(), 4) + root)
        reduced = part(rank(), 4)
        dist.reduce(reduced, dst=root)
        if rank() == root:
            same(reduced, total(4))
        sent = part(root, 4) if rank() == root else torch.empty(4)
        dist.broadcast(sent, src=root)
        same(sent, part(root, 4))


@check(ranks=(3,))
def empty_tensors():
    empty = torch.empty(0)
    dist.all_reduce(empty)
    dist.broadcast(empty, src=0)
    dist.reduce(empty, dst=0)
    dist.all_gather([torch.empty(0) for _ in range(world())], empty)
    dist.all_reduce(torch.empty(3, 0, 2))
    dist.all_gather_into_tensor(torch.empty(0), empty)
    dist.reduce_scatter_tensor(torch.empty(0), empty)
    dist.gather(empty, [torch.empty(0) for _ in range(world())] if rank() == 0 else None, dst=0)
    dist.scatter(empty, [torch.empty(0) for _ in range(world())] if rank() == 0 else None, src=0)
    if rank() < 2:
        dist.send(empty, 1) if rank() == 0 else dist.recv(empty, 0)
    after = part(rank())
    dist.all_reduce(after)  # none of the operations above is still in flight
    same(after, total())


@check(ranks=(3,))
def zero_dimensional_tensors():
    value = torch.tensor(float(rank() + 1))
    dist.all_reduce(value)
    same(value, torch.tensor(float(world() * (world() + 1) // 2)))
    outputs = [torch.tensor(-1.0) for _ in range(world())]
    dist.all_gather(outputs, torch.tensor(float(rank())))
    for of, output in enumerate(outputs):
        same(output, torch.tensor(float(of)))
    sent = torch.tensor(float(rank()))
    dist.broadcast(sent, src=2)
    same(sent, torch.tensor(2.0))
    if cannot("all_gather_into_tensor of 0-d"):
        return
    gathered = torch.empty(world())
    dist.all_gather_into_tensor(gathered, torch.tensor(float(rank())))
    same(gathered, torch.arange(world(), dtype=torch.float32))


@check(ranks=(2, 3))
def non_contiguous_tensors():
    """Refused with an error on every rank, or correct; never wrong. After a refusal the group is usable."""
    whole = torch.zeros(4, 6)
    column = whole[:, ::2]
    column.copy_(part(rank(), 12).reshape(4, 3))
    before = column.clone()
    try:
        dist.all_reduce(column if not cannot("non-contiguous all_reduce") else whole)
    except (RuntimeError, ValueError) as error:
        assert "contiguous" in str(error) or "non-overlapping" in str(error), error
        same(column.clone(), before)
    else:
        same(column.clone(), total(12).reshape(4, 3))
        same(whole[:, 1::2].clone(), torch.zeros(4, 3))  # elements in between are untouched
    transposed = part(rank(), 12).reshape(3, 4).t()  # dense, but not in order of its rows
    outputs = [torch.empty(4, 3) for _ in range(world())]
    try:
        dist.all_gather(outputs, transposed)
    except (RuntimeError, ValueError) as error:
        assert "contiguous" in str(error) or "stride" in str(error), error
    else:
        for of, output in enumerate(outputs):
            same(output, part(of, 12).reshape(3, 4).t().contiguous())
    after = part(rank())
    dist.all_reduce(after)
    same(after, total())


@check(ranks=(3,))
def views_into_a_larger_tensor():
    whole = torch.zeros(30)
    mine = whole[10:20]
    mine.copy_(part(rank(), 10))
    dist.all_reduce(mine)
    same(whole, torch.cat([torch.zeros(10), total(10), torch.zeros(10)]))


@check(ranks=(2, 3))
def many_in_flight():
    """A hundred at once, waited for in reverse."""
    tensors = [part(rank(), index + 1) for index in range(100)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    for tensor in tensors:
        same(tensor, total(len(tensor)))
    assert all(work.is_completed() for work in works)


@check(ranks=(3,), timeout_s=90)
def large_tensors():
    """16 MiB each."""
    tensor = torch.full((1 << 22,), float(rank() + 1))
    dist.all_reduce(tensor)
    same(tensor, torch.full((1 << 22,), float(world() * (world() + 1) // 2)))


@check(ranks=(2, 3))
def barriers():
    for _ in range(20):
        dist.barrier()
    dist.barrier(async_op=True).wait()


@check(ranks=(3,), group_timeout_s=60)
def barrier_holds_back():
    """A rank that leaves a barrier sees everything that all ranks did before it."""
    store = dist.distributed_c10d._get_default_store()
    for turn in range(10):
        store.add(f"arrived {turn}", 1)
        dist.barrier()
        assert store.add(f"arrived {turn}", 0) == world()


@check(ranks=(2,))
def sizes_that_do_not_match():
    """A wrong call raises on the rank that makes it, and nothing hangs."""
    with fails(None, within_s=20, kinds=(RuntimeError, ValueError, TypeError)):
        dist.all_gather_into_tensor(torch.empty(world() * 3 + 1), torch.empty(3))
    with fails(None, within_s=20, kinds=(RuntimeError, ValueError, TypeError)):
        dist.reduce_scatter_tensor(torch.empty(3), torch.empty(world() * 3 + 1))
    with fails(None, within_s=20, kinds=(RuntimeError, ValueError, TypeError)):
        dist.all_to_all_single(torch.empty(4), torch.empty(4), [1, 1], [2, 2])
