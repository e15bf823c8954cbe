"""Collectives of Python objects, which torch builds from collectives of bytes with sizes that differ between ranks."""

import torch
import torch.distributed as dist

from .common import check, rank, world


def thing(of):
    """An object with a tensor in it. Objects of higher ranks are larger."""
    return {"rank": of, "words": ["word"] * (of * 50), "tensor": torch.arange(of + 1)}


def equal(left, right):
    return left["rank"] == right["rank"] and left["words"] == right["words"] and torch.equal(left["tensor"], right["tensor"])


@check(ranks=(2, 3))
def all_gather_object():
    everything = [None] * world()
    dist.all_gather_object(everything, thing(rank()))
    assert all(equal(each, thing(of)) for of, each in enumerate(everything))


@check(ranks=(2, 3))
def gather_object():
    for root in range(world()):
        everything = [None] * world() if rank() == root else None
        dist.gather_object(thing(rank()), everything, dst=root)
        assert rank() != root or all(equal(each, thing(of)) for of, each in enumerate(everything))


@check(ranks=(2, 3))
def broadcast_object_list():
    for root in range(world()):
        objects = [thing(root), "text", None, 5] if rank() == root else [None] * 4
        dist.broadcast_object_list(objects, src=root)
        assert equal(objects[0], thing(root)) and objects[1:] == ["text", None, 5]


@check(ranks=(2, 3))
def scatter_object_list():
    for root in range(world()):
        output = [None]
        dist.scatter_object_list(output, [thing(to) for to in range(world())] if rank() == root else None, src=root)
        assert equal(output[0], thing(rank()))


@check(ranks=(2, 3))
def send_and_recv_object_list():
    if rank() == 0:
        for to in range(1, world()):
            dist.send_object_list([thing(to), "text"], dst=to)
    else:
        objects = [None, None]
        dist.recv_object_list(objects, src=0)
        assert equal(objects[0], thing(rank())) and objects[1] == "text"


@check(ranks=(3,))
def objects_in_a_sub_group():
    group = dist.new_group([1, 2])
    if rank() > 0:
        everything = [None, None]
        dist.all_gather_object(everything, thing(rank()), group=group)
        assert equal(everything[0], thing(1)) and equal(everything[1], thing(2))
