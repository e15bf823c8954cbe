"""MoshpitOptimizer: processes without a process group that join, leave, and continue with each other's state."""

import os
import signal

import torch
import torch.distributed as dist
import unisono

from .common import fails, rank, same, world
from .ddp import batch, loss_of, model
from .methods_common import check, ut


def note_store():
    """Returns the store through which the ranks of a check exchange notes."""
    return dist.FileStore(os.environ["CHECK_DIRECTORY"] + "/notes", world())


def join(network, notes, number, optimizer=None, **options):
    inner = (optimizer or (lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)))(network.parameters())
    seeds = os.environ["CHECK_DIRECTORY"] + "/seeds"
    if number:
        notes.get("founded")
    joined = ut.MoshpitOptimizer(
        inner, run_id="check", seeds=["file:" + seeds], found=number == 0, interface="127.0.0.1", **options
    )
    if number == 0:
        with open(seeds, "w") as file:
            file.write(joined.status().endpoints[0] + "\n")
        notes.set("founded", "1")
    return joined


def step_of(network, optimizer, number):
    optimizer.zero_grad()
    loss = loss_of(network, *(part.chunk(3)[rank()] for part in batch(number % 4)))
    loss.backward()
    optimizer.step(samples=28)
    return loss.item()


def flat(network):
    return torch.cat([each.detach().reshape(-1) for each in network.parameters()])


def exchange(notes, name, values):
    """Exchanges values through the store. Returns the values of all ranks."""
    notes.set(f"{name}.{rank()}", values.numpy().tobytes().hex())
    return [
        torch.frombuffer(bytearray.fromhex(notes.get(f"{name}.{of}").decode()), dtype=torch.float32) for of in range(world())
    ]


@check(ranks=(3,), group=False, timeout_s=90)
def one_leaves_and_one_joins_later():
    """Rank 1 leaves at SIGTERM; then rank 2 joins, with rank 0's parameters and momentum. Ranks 0 and 2 end with equal
    parameters."""
    notes = note_store()
    network = model(seed=rank())
    if rank() == 2:
        notes.get("left")
    optimizer = join(network, notes, rank(), every=2, overlap=False, min_peers=1, extra=lambda: {"who": b"x"})
    if rank() == 0:
        assert not optimizer.loaded and optimizer.run.ready(30)
        notes.get("joined.1")
        while (
            optimizer.last_averaging is None
            or len(optimizer.last_averaging.rounds[0].absent)
            or optimizer.last_averaging.rounds[0].group < 2
        ):
            step_of(network, optimizer, 0)
        notes.set("together", "1")
        number = 0
        while not notes.check(["joined.2"]):
            step_of(network, optimizer, number)
            number += 1
    elif rank() == 1:
        notes.set("joined.1", "1")
        ended = []
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, optimizer._on_sigterm)
        optimizer._previous_handler = lambda *_: ended.append(1)
        number = 0
        while not optimizer.left:
            if notes.check(["together"]):
                signal.raise_signal(signal.SIGTERM)
            step_of(network, optimizer, number)
            number += 1
        assert ended == [1] and optimizer.status().phase == "ended", (ended, optimizer.status())
        step_of(network, optimizer, 0)  # local steps continue meanwhile
        notes.set("left", "1")
        return
    else:
        assert optimizer.loaded and optimizer.extra == {"who": b"x"}, optimizer.run.state()
        moments = [each["momentum_buffer"] for each in optimizer.optimizer.state.values()]
        assert len(moments) == len(list(network.parameters())) and all(each.any() for each in moments)
        assert not torch.equal(flat(network), flat(model(seed=2))) and optimizer.steps > 0
        notes.set("joined.2", "1")
    while (
        optimizer.last_averaging is None or optimizer.last_averaging.rounds[0].group < 2 or not optimizer.last_averaging.exact
    ):
        step_of(network, optimizer, 1)
    optimizer.finish()
    mine = flat(network)
    notes.set(f"end.{rank()}", mine.numpy().tobytes().hex())
    theirs = torch.frombuffer(bytearray.fromhex(notes.get(f"end.{2 - rank()}").decode()), dtype=torch.float32)
    same(mine, theirs)
    assert optimizer.left and optimizer.report().averaging_steps > 0


def learns(**options):
    notes = note_store()
    network = model(seed=rank())
    with join(network, notes, rank(), every=4, min_peers=world(), **options) as optimizer:
        assert optimizer.run.ready(30)
        whole = batch(0)
        losses = []
        for number in range(80):
            step_of(network, optimizer, 0)
            losses.append(loss_of(network, *whole).item())
        optimizer.finish()
    ends = exchange(notes, "end", flat(network))
    for other in ends:
        same(ends[0], other)
    assert losses[-1] < 0.9 * losses[0], losses
    assert optimizer.report().exact > 0, str(optimizer.report())


@check(ranks=(3,), group=False, timeout_s=90)
def averages_of_parameters_learn():
    learns(overlap=False)


@check(ranks=(3,), group=False, timeout_s=90)
def outer_steps_learn():
    learns(overlap=False, average="pseudo_gradients", options="outer=nesterov,rate=0.7,momentum=0.5")


@check(ranks=(1,), group=False)
def states_and_what_is_refused():
    notes = note_store()
    network = model()
    optimizer = join(network, notes, 0, every=2, overlap=False, leave_on_sigterm=False)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    step_of(network, optimizer, 0)
    schedule.step()
    optimizer.drain()
    state = optimizer.state_dict()
    assert state["optimizer"]["param_groups"][0]["lr"] == 0.025 and "Moshpit" in repr(optimizer)
    optimizer.load_state_dict(state)
    assert optimizer.param_groups is optimizer.optimizer.param_groups
    optimizer.leave()
    optimizer.leave()
    with fails("added", within_s=1, kinds=(TypeError,)):
        optimizer.add_param_group({"params": []})
    with fails("float32", within_s=1, kinds=(ValueError,)):
        ut.MoshpitOptimizer(torch.optim.SGD(torch.nn.Linear(1, 1).double().parameters(), lr=1), run_id="x", found=True)
    with fails(None, within_s=10, kinds=(unisono.Unavailable,)):
        ut.MoshpitOptimizer(torch.optim.SGD(network.parameters(), lr=1), run_id="x", seeds=["127.0.0.1:1"], join_timeout=0.2)
