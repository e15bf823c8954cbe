"""send, recv, isend, irecv, batches of them, and receives from any source."""

import os

import torch
import torch.distributed as dist

from .common import cannot, check, fails, init, kinds, leave, names, rank, same, world


def message(of, to, elements=4):
    return torch.arange(elements, dtype=torch.float32) + 100 * of + 10 * to


@check(ranks=(2, 3))
def ring_of_send_and_recv():
    """Messages go around the ring twenty times. Even ranks send first."""
    after, before = (rank() + 1) % world(), (rank() - 1) % world()
    for turn in range(20):
        received = torch.empty(4)
        if rank() == 0:
            dist.send(message(rank(), after) + turn, after)
            assert dist.recv(received, before) == before
        else:
            assert dist.recv(received, before) == before
            dist.send(message(rank(), after) + turn, after)
        same(received, message(before, rank()) + turn)


@check(ranks=(2, 3))
def all_pairs_at_once():
    received = {of: torch.empty(4) for of in range(world()) if of != rank()}
    works = [dist.irecv(tensor, of) for of, tensor in received.items()]
    works += [dist.isend(message(rank(), to), to) for to in received]
    for work in works:
        work.wait()
    for of, tensor in received.items():
        same(tensor, message(of, rank()))
    assert all(work.is_completed() for work in works)


@check(ranks=(2,))
def tags_choose_the_message():
    """Messages are sent with the tags 1, 2, 3, and received in the order 3, 1, 2."""
    if rank() == 0:
        works = [dist.isend(message(tag, 0), 1, tag=tag) for tag in (1, 2, 3)]
        for work in works:
            work.wait()
    else:
        for tag in (3, 1, 2):
            tensor = torch.empty(4)
            dist.recv(tensor, 0, tag=tag)
            same(tensor, message(tag, 0))


TAGS = (0, 1, 32_766, 32_767, 32_768, 99_999, 2**31 - 2, 2**31 - 1)


@check(ranks=(2, 3))
def every_tag_that_torch_allows():
    """The tags around former limits, and the largest one. Every rank sends to every other rank with every tag, and receives in
    the reverse order."""
    others = [of for of in range(world()) if of != rank()]
    works = [dist.isend(message(rank(), to) + number, to, tag=tag) for number, tag in enumerate(TAGS) for to in others]
    for number, tag in reversed(list(enumerate(TAGS))):
        for of in others:
            tensor = torch.empty(4)
            dist.recv(tensor, of, tag=tag)
            same(tensor, message(of, rank()) + number)
    for work in works:
        work.wait()


@check(ranks=(3,))
def the_largest_tag_from_any_source():
    if rank() == 0:
        for _ in range(world() - 1):
            tensor = torch.empty(4)
            sender = dist.recv(tensor, tag=2**31 - 1)
            same(tensor, message(sender, 0))
    else:
        dist.send(message(rank(), 0), 0, tag=2**31 - 1)


@check(ranks=(3,), lost=(1,), group=False)
def a_message_from_a_rank_that_is_gone_leaves_others_with_its_tag_alone():
    """Rank 0 receives 8 MiB from each of two ranks with one tag. Rank 1 leaves without sending. Rank 2's message arrives."""
    init(timeout_s=20)
    store = dist.distributed_c10d._get_default_store()
    if rank() == 1:
        store.wait(["begun"])
        os._exit(0)
    elements = 1 << 21
    if rank() == 2:
        store.wait(["begun"])
        dist.send(torch.full((elements,), 2.0), 0, tag=99_999)
    else:
        lost, tensor = torch.empty(elements), torch.empty(elements)
        works = dist.irecv(lost, 1, tag=99_999), dist.irecv(tensor, 2, tag=99_999)
        store.set("begun", "1")
        with fails(names(1), within_s=20, kinds=kinds()):
            works[0].wait()
        works[1].wait()
        same(tensor, torch.full((elements,), 2.0))
    leave()


@check(ranks=(2,))
def order_of_messages_with_one_tag():
    if rank() == 0:
        for work in [dist.isend(torch.full((3,), float(turn)), 1) for turn in range(50)]:
            work.wait()
    else:
        for turn in range(50):
            tensor = torch.empty(3)
            dist.recv(tensor, 0)
            same(tensor, torch.full((3,), float(turn)))


@check(ranks=(3, 4))
def recv_from_any_source():
    if rank() == 0:
        senders = []
        for _ in range(2 * (world() - 1)):
            tensor = torch.empty(4)
            sender = dist.recv(tensor)
            same(tensor, message(sender, 0))
            senders.append(sender)
        assert sorted(senders) == sorted(2 * list(range(1, world())))
    else:
        for _ in range(2):
            dist.send(message(rank(), 0), 0)


@check(ranks=(3,))
def irecv_from_any_source_reports_the_source():
    if rank() == 0:
        senders = set()
        for _ in range(world() - 1):
            tensor = torch.empty(4)
            work = dist.irecv(tensor, tag=5)
            work.wait()
            same(tensor, message(work._source_rank(), 0))
            senders.add(work._source_rank())
        assert senders == set(range(1, world()))
    else:
        dist.send(message(rank(), 0), 0, tag=5)


@check(ranks=(2, 3))
def batches():
    """As in a pipeline, each rank sends several messages to the next rank and receives several from the previous one, all at
    once."""
    after, before = (rank() + 1) % world(), (rank() - 1) % world()
    received = [torch.empty(elements) for elements in (1, 5, 1000)]
    operations = []
    for tensor in received:
        operations.append(dist.P2POp(dist.isend, message(rank(), after, len(tensor)), after))
        operations.append(dist.P2POp(dist.irecv, tensor, before))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for tensor in received:
        same(tensor, message(before, rank(), len(tensor)))


@check(ranks=(3,))
def batch_of_some_ranks():
    if rank() < 2:
        tensor = torch.empty(4)
        other = 1 - rank()
        operations = [dist.P2POp(dist.irecv, tensor, other), dist.P2POp(dist.isend, message(rank(), other), other)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        same(tensor, message(other, rank()))


@check(ranks=(3,))
def ranks_within_a_group():
    """Peers are named by their ranks in the default group, or in the sub-group with group_src and group_dst."""
    group = dist.new_group([2, 0])
    if rank() == 0:
        dist.send(message(0, 2), 2, group=group)
        tensor = torch.empty(4)
        dist.recv(tensor, group=group, group_src=dist.get_group_rank(group, 2))
        same(tensor, message(2, 0))
    elif rank() == 2:
        tensor = torch.empty(4)
        assert dist.recv(tensor, 0, group=group) == 0
        same(tensor, message(0, 2))
        dist.send(message(2, 0), group=group, group_dst=dist.get_group_rank(group, 0))


@check(ranks=(2,))
def between_collectives():
    """Messages and collectives of one group do not mix."""
    for turn in range(20):
        tensor = torch.empty(4)
        work = dist.irecv(tensor, 0) if rank() == 1 else dist.isend(message(0, 1) + turn, 1)
        summed = torch.tensor([float(rank() + turn)])
        dist.all_reduce(summed)
        work.wait()
        same(summed, torch.tensor([1.0 + 2 * turn]))
        if rank() == 1:
            same(tensor, message(0, 1) + turn)


@check(ranks=(2,))
def large_messages_in_both_directions():
    """Both ranks send 8 MiB at once, which is more than all buffers between them hold."""
    elements = 1 << 21
    tensor = torch.empty(elements)
    works = [dist.isend(torch.full((elements,), float(rank())), 1 - rank()), dist.irecv(tensor, 1 - rank())]
    for work in works:
        work.wait()
    same(tensor, torch.full((elements,), float(1 - rank())))


@check(ranks=(2,))
def a_message_of_another_size_is_an_error():
    if cannot("message of another size"):
        return
    if rank() == 0:
        try:
            dist.isend(torch.ones(8), 1).wait()
        except RuntimeError:
            pass
    else:
        tensor = torch.zeros(4)
        try:
            dist.recv(tensor, 0)
        except RuntimeError as error:
            print(error)
        else:
            raise AssertionError("eight elements went into four")
