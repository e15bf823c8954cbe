"""A forked child is no member: its calls are refused at once, and the parents are unharmed."""

import os
import threading

import numpy as np
import pytest
import ranks
import unisono
from forked import in_child


def joining():
    """The parent receives events, so it has a thread for them. The child has none, and makes its own."""
    parents, own = [], []
    group = unisono.join(on_event=parents.append)

    def child():
        arrived = threading.Event()

        def on_event(event):
            own.append(event.kind)
            if event.kind == "joined":
                arrived.set()

        rendezvous = f"{os.environ['UNISONO_RENDEZVOUS']}-{group.rank}"
        alone = unisono.join(rank=0, world_size=1, rendezvous=rendezvous, on_event=on_event)
        assert arrived.wait(30), own
        alone.barrier()

    in_child(child)
    group.barrier()
    return True


def test_a_forked_child_joins_a_group_of_its_own_and_gets_its_events(tmp_path):
    assert ranks.run(joining, 2, tmp_path) == [True, True]


def forking():
    group = unisono.join()
    x = np.ones(1000, np.float32)
    group.all_reduce(x)
    if group.rank == 0:
        member = os.getpid()

        def child():
            refused = rf"this process was forked from a member \(pid {member}\), and is none itself"
            with pytest.raises(unisono.Invalid, match=refused):
                group.all_reduce(np.full(1000, 5, np.float32))
            with pytest.raises(unisono.Invalid, match=refused):
                group.barrier()
            with pytest.raises(unisono.Invalid, match=refused):
                group.split([0])

        in_child(child)
    sums = []
    for _ in range(2):
        y = np.ones(1000, np.float32)
        group.all_reduce(y)
        sums.append(float(y[0]))
    return sums


def test_a_forked_child_is_refused_and_the_parents_get_the_right_sums(tmp_path):
    assert ranks.run(forking, 2, tmp_path) == [[2.0, 2.0], [2.0, 2.0]]
