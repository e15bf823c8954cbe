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
    """With a device, the coalescing manager calls the backend's startCoalescing and endCoalescing."""
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
    """One rank's call is refused because of its second tensor. The call must not have begun with the first tensor, or later
    calls would not match."""
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
                call().wait()  # tensors of a device are checked only when the call is made
    tensor = part(rank(), 3)
    dist.all_reduce(tensor)
    same(tensor, total(3))


def expanded(elements=4):
    """A tensor whose elements are all the same memory."""
    return torch.zeros(1).expand(elements)


def calls_with_an_expanded_output():
    """Calls whose result would go into an expanded tensor, by the name of the call."""
    one, many, whole = torch.ones(4), [torch.ones(4) for _ in range(world())], torch.ones(4 * world())
    outputs = [expanded()] + [torch.empty(4) for _ in range(world() - 1)]
    return {
        "all_reduce": lambda: dist.all_reduce(expanded()),
        "broadcast": lambda: dist.broadcast(expanded(), 1),
        "reduce": lambda: dist.reduce(expanded(), 0),
        "all_gather": lambda: dist.all_gather(outputs, one),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(expanded(4 * world()), one),
        "gather": lambda: dist.gather(one, outputs, 0),
        "scatter": lambda: dist.scatter(expanded(), many, 0),
        "reduce_scatter": lambda: dist.reduce_scatter(expanded(), many),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(expanded(), whole),
        "all_to_all": lambda: dist.all_to_all(outputs, many),
        "all_to_all_single": lambda: dist.all_to_all_single(expanded(4 * world()), whole),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([one.clone(), expanded()]),
        "recv": lambda: dist.recv(expanded(), 1),
    }


@check(ranks=(2, 3))
def an_expanded_output_is_refused_before_anything_is_exchanged():
    """Rank 0 makes the calls alone, so they would not end if they exchanged anything."""
    if is_gloo():
        return
    if rank() == 0:
        for name, call in calls_with_an_expanded_output().items():
            text = (
                rf"^unisono: {name}: a tensor of shape \[\d+\] and strides \[0\] cannot hold a result, because several of its "
                r"elements are the same memory, as in an expanded tensor. Pass a tensor of its own memory, such as its clone\(\)$"
            )
            with fails(text, within_s=5, kinds=(ValueError,)):
                call()
    tensor = part(rank(), 4)
    dist.all_reduce(tensor)
    same(tensor, total(4))


def calls_with_overlapping_outputs():
    """Calls that would write several results to the same memory: name of the call, names of the two outputs, call."""
    one, many, last = torch.ones(4), [torch.ones(4) for _ in range(world())], world() - 1
    twice = [torch.empty(4) for _ in range(last)]
    twice.append(twice[0])
    rows = torch.empty(4 * world())
    shifted = [rows[3 * of : 3 * of + 4] for of in range(world())]
    columns = torch.empty(4, world())
    mixed = [columns[:, 0]] + [torch.empty(4) for _ in range(last - 1)] + [columns.view(-1)[:4]]
    lists = [[torch.empty(4), torch.empty(2)] for _ in range(world())]
    lists[last][1] = lists[0][0][2:]
    two, shared = [torch.ones(4), torch.ones(4)], torch.empty(5)
    several = dist.distributed_c10d._coalescing_manager

    def gather_several():
        with several():
            dist.all_gather_into_tensor(rows, one)
            dist.all_gather_into_tensor(rows, one)

    def scatter_several():
        with several():
            for output in (shared[:4], shared[1:]):
                dist.reduce_scatter_tensor(output, torch.ones(4 * world()))

    return [
        ("all_gather", f"0 and {last}", lambda: dist.all_gather(twice, one)),
        ("all_gather", "0 and 1", lambda: dist.all_gather(shifted, one)),
        ("all_gather", f"0 and {last}", lambda: dist.all_gather(mixed, one)),
        ("all_gather_coalesced", f"0 of rank 0 and 1 of rank {last}", lambda: dist.all_gather_coalesced(lists, [one, one[:2]])),
        ("gather", f"0 and {last}", lambda: dist.gather(one, twice, 0)),
        ("all_to_all", f"0 and {last}", lambda: dist.all_to_all(twice, many)),
        ("all_reduce_coalesced", "0 and 1", lambda: dist.all_reduce_coalesced([two[0], two[0][1:]])),
        ("all_gather_into_tensor_coalesced", "0 and 1", gather_several),
        ("reduce_scatter_tensor_coalesced", "0 and 1", scatter_several),
    ]


@check(ranks=(2, 3))
def outputs_that_share_memory_are_refused_before_anything_is_exchanged():
    """Rank 0 makes the calls alone, so they would not end if they exchanged anything."""
    if is_gloo():
        return
    if rank() == 0:
        for name, which, call in calls_with_overlapping_outputs():
            text = (
                f"^unisono: {name}: outputs {which} share memory, so one result would overwrite the other. Pass tensors of their "
                "own memory, such as clones$"
            )
            with fails(text, within_s=5, kinds=(ValueError,)):
                call()
    tensor = part(rank(), 4)
    dist.all_reduce(tensor)
    same(tensor, total(4))


@check(ranks=(2, 3))
def outputs_side_by_side_in_one_tensor():
    """The outputs may be parts of one tensor, in any order: rows, columns, empty parts. One tensor may be reduced twice."""
    rows = torch.empty(world(), 3)
    backwards = [rows[world() - 1 - of] for of in range(world())]
    dist.all_gather(backwards, part(rank(), 3))
    for of in range(world()):
        same(rows[world() - 1 - of].clone(), part(of, 3))
    if is_gloo():
        return
    columns = torch.empty(3, world())
    dist.all_gather([columns[:, of] for of in range(world())], part(rank(), 3))
    for of in range(world()):
        same(columns[:, of].clone(), part(of, 3))
    dist.all_gather([rows[0][:0] for _ in range(world())], torch.empty(0))
    tensor = part(rank(), 3)
    dist.all_reduce_coalesced([tensor, tensor])
    same(tensor, total(3))


@check(ranks=(2, 3))
def expanded_inputs():
    """Expanded tensors may be sent."""
    if is_gloo():
        return
    mine, every = torch.full((1,), float(rank())).expand(4), [torch.full((4,), float(of)) for of in range(world())]
    gathered = [torch.empty(4) for _ in range(world())]
    dist.all_gather(gathered, mine)
    for actual, expected in zip(gathered, every, strict=True):
        same(actual, expected)
    tensor = mine if rank() == 1 else torch.empty(4)
    dist.broadcast(tensor, 1)
    same(tensor.clone(), every[1])
    tensor = mine if rank() != 0 else mine.clone()
    dist.reduce(tensor, 0)
    same(tensor.clone(), sum(every) if rank() == 0 else every[rank()])
    output = torch.empty(4)
    dist.scatter(output, [mine] * world() if rank() == 1 else None, 1)
    same(output, every[1])
    if rank() == 0:
        dist.send(mine, 1)
    elif rank() == 1:
        dist.recv(output, 0)
        same(output, every[0])


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
    """Rank r sends r + t elements to rank t, so rank 0 sends nothing to itself."""
    sent = [rank() + to for to in range(world())]
    received = [of + rank() for of in range(world())]
    output = torch.empty(sum(received))
    dist.all_to_all_single(output, torch.cat([part(rank(), count) for count in sent]), received, sent)
    same(output, torch.cat([part(of, count) for of, count in enumerate(received)]))


@check(ranks=(3,))
def all_to_all_single_with_empty_splits():
    """All ranks send all their elements to rank 1."""
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
    """A collective of non-contiguous tensors is correct, or fails on every rank. After a failure the group is usable."""
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
        same(whole[:, 1::2].clone(), torch.zeros(4, 3))  # the elements between those of the view are unchanged
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
    """A hundred operations are in flight at once. They are waited for in reverse order."""
    tensors = [part(rank(), index + 1) for index in range(100)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    for tensor in tensors:
        same(tensor, total(len(tensor)))
    assert all(work.is_completed() for work in works)


@check(ranks=(3,), timeout_s=90)
def large_tensors():
    """Each tensor has 16 MiB."""
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
