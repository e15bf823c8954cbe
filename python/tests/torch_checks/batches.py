"""Batches of calls that go wrong: the group works as before afterwards, and nothing of the batch was begun."""

import weakref

import torch
import torch.distributed as dist

from .common import cannot, check, fails, rank, same, world

CPU = torch.device("cpu")


def other():
    return 1 - rank()


def filled(value):
    return torch.full((4,), float(value))


def right_batch(value, tag=0):
    """Exchanges filled(value + rank) between the two ranks."""
    received = torch.empty(4)
    operations = [
        dist.P2POp(dist.isend, filled(value + rank()), other(), tag=tag),
        dist.P2POp(dist.irecv, received, other(), tag=tag),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(received, filled(value + other()))


def the_group_works(value):
    """Collectives and batches are begun, and give right results. A batch gets no message of an earlier batch. No tensor is
    kept."""
    assert not dist.distributed_c10d._world.pg_coalesce_state
    tensor = filled(rank() + value)
    dist.all_reduce(tensor)
    same(tensor, filled(2 * value + 1))
    gone, is_near = weakref.ref(tensor), tensor.is_cpu
    del tensor
    assert gone() is None or not is_near  # tensors of a device are kept until their copies are complete
    right_batch(value)


def wrong_messages():
    """Returns for each kind: the last message of a batch, the error, and how its text begins."""
    return [
        (
            lambda: dist.P2POp(dist.isend, filled(7), other(), tag=-1),
            ValueError,
            "unisono: send: tag -1 is negative",
        ),
        (
            lambda: dist.P2POp(dist.irecv, torch.empty(4), other(), tag=-5),
            ValueError,
            "unisono: recv: tag -5 is negative",
        ),
        (
            lambda: dist.P2POp(dist.isend, torch.ones(4, device="cpu").to_sparse(), other()),
            NotImplementedError,
            "Could not run 'c10d::send' with arguments from the 'SparseCPU' backend",  # torch's own text
        ),
        (
            lambda: dist.P2POp(dist.irecv, torch.empty(1).expand(4), other()),
            ValueError,
            r"unisono: recv: a tensor of shape \[4\] and strides \[0\] cannot hold a result",
        ),
        (
            lambda: dist.P2POp(dist.isend, filled(7), rank()),
            ValueError,
            f"unisono: send: rank {rank()} cannot send to itself",
        ),
    ]


@check(ranks=(2,))
def an_error_in_a_batch_begins_none_of_its_messages():
    """Errors of the backend and of torch. The messages before the wrong one have not begun either, so a corrected batch gets
    the right messages."""
    if cannot("startCoalescing"):
        return
    for turn, (wrong, error, text) in enumerate(wrong_messages()):
        operations = [
            dist.P2POp(dist.isend, filled(-1), other()),
            dist.P2POp(dist.irecv, torch.empty(4), other()),
            wrong(),
        ]
        with fails("^" + text, within_s=5, kinds=(error,)):
            dist.batch_isend_irecv(operations)
        the_group_works(10 * turn)


@check(ranks=(2,))
def an_error_of_the_caller_in_a_batch():
    """Errors of torch's own checks, and of the code in the block."""
    if cannot("startCoalescing"):
        return
    for turn, device in enumerate((CPU, None)):
        with fails("^the caller's own$", within_s=5, kinds=(KeyError, RuntimeError)):
            with dist._coalescing_manager(device=device, async_ops=True):
                dist.isend(filled(-1), other()) if device else dist.all_reduce(filled(-1))
                raise RuntimeError("the caller's own")
        the_group_works(10 * turn)
    with fails("all collectives to be the same type", within_s=5):
        with dist._coalescing_manager():
            dist.all_reduce(filled(1))
            dist.reduce_scatter_tensor(torch.empty(4), torch.ones(4 * world()))
    the_group_works(20)
    with fails("^unisono: all_reduce_coalesced: a tensor of shape", within_s=5, kinds=(ValueError,)):
        with dist._coalescing_manager(device=CPU):
            dist.all_reduce(torch.ones(1).expand(4))
    the_group_works(30)


@check(ranks=(2,))
def a_batch_in_a_batch_is_refused_and_the_outer_one_goes_on():
    if cannot("startCoalescing"):
        return
    received = torch.empty(4)
    with dist._coalescing_manager(device=CPU, async_ops=True) as batch:
        dist.isend(filled(rank()), other())
        with fails("^unisono: calls are being coalesced already", within_s=5):
            dist.batch_isend_irecv([dist.P2POp(dist.isend, filled(-1), other())])
        dist.irecv(received, other())
    batch.wait()
    same(received, filled(other()))
    the_group_works(10)


@check(ranks=(2,))
def a_message_of_a_batch_is_not_waited_for_alone():
    if cannot("startCoalescing"):
        return
    received = torch.empty(4)
    with dist._coalescing_manager(device=CPU, async_ops=True) as batch:
        dist.isend(filled(rank()), other())
        work = dist.irecv(received, other())
        with fails("^invalid: this message belongs to a batch: wait for the Work of the batch$", within_s=5):
            work.wait()
    batch.wait()
    same(received, filled(other()))


@check(ranks=(2,))
def other_groups_are_left_alone():
    """A batch that fails in one group does not end the batch of another group."""
    if cannot("startCoalescing"):
        return
    second = dist.new_group()
    first, received = filled(rank() + 1), torch.empty(4)
    with dist._coalescing_manager(group=second) as _:
        dist.all_reduce(first, group=second)
        with fails("tag -1 is negative", within_s=5, kinds=(ValueError,)):
            dist.batch_isend_irecv([dist.P2POp(dist.isend, filled(7), other(), tag=-1)])
        same(first, filled(rank() + 1))
    same(first, filled(3))
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, filled(rank()), other()), dist.P2POp(dist.irecv, received, other())]
    ):
        work.wait()
    same(received, filled(other()))
