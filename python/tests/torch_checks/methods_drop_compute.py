"""DropCompute over DistributedDataParallel: whatever ranks drop, gradients are the sum of the computed micro-batches."""

import itertools
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import unisono

from .common import fails, rank, same, same_on_all_ranks, world
from .ddp import SMALL, Branches, buckets, model
from .methods_common import check, ut
from .methods_hooks import hook_of

PLANNED = 4
COMPUTED = [[4, 2, 1, 3, 4, 1], [4, 4, 3, 1, 1, 1], [1, 4, 2, 2, 4, 1]]  # by rank, in each step


def micro_batch(of, position):
    generator = torch.Generator().manual_seed(1000 * of + position)
    return torch.randn(6, 12, generator=generator), torch.randn(6, 3, generator=generator)


def loss_of(network, pair, *extra):
    return torch.nn.functional.mse_loss(network(pair[0], *extra), pair[1])


def options(normalize="max", tail="defer"):
    return unisono.DropOptions(f"off:normalize={normalize},tail={tail}", replay=COMPUTED[rank()])


def expected_gradients(reference, step, tail, divide, *extra):
    """One process that computes the micro-batches of all ranks."""
    reference.zero_grad()
    for of in range(world()):
        before = sum(COMPUTED[of][:step]) if tail == "defer" else PLANNED * step
        for number in range(COMPUTED[of][step]):
            (loss_of(reference, micro_batch(of, before + number), *extra) / divide).backward()


def steps_are_right(network, reference, *, tail="defer", normalize="max", tolerance=2e-6, extra=lambda step: ()):
    drop = ut.DropCompute(PLANNED, options(normalize, tail))
    mine = (micro_batch(rank(), position) for position in itertools.count())
    for step in range(6):
        network.zero_grad()
        for pair in drop.micro_batches(mine, network):
            (loss_of(network, pair, *extra(step)) / drop.planned).backward()
        assert (drop.step.computed, drop.step.planned, drop.step.applied) == (COMPUTED[rank()][step], PLANNED, True), drop.step
        divide = PLANNED * world() if normalize == "max" else sum(COMPUTED[of][step] for of in range(world()))
        expected_gradients(reference, step, tail, divide, *extra(step))
        for parameter, right in zip(network.parameters(), reference.parameters()):
            if right.grad is None:
                continue
            same(parameter.grad, right.grad, tolerance)
            same_on_all_ranks(parameter.grad)
    return drop


@check(ranks=(2, 3), timeout_s=90)
def gradients_are_those_that_were_computed():
    for case in ({}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 25}):
        network = DistributedDataParallel(model(), **({"bucket_cap_mb": SMALL} | case))
        drop = steps_are_right(network, model())
        assert len(buckets(network)) >= (1 if "bucket_cap_mb" in case else 3)
        assert drop.finish().steps >= 0 and str(drop.total())


@check(ranks=(2, 3))
def normalized_by_what_was_computed_or_passed_over():
    for normalize, tail in (("computed", "defer"), ("max", "discard"), ("computed", "discard")):
        steps_are_right(DistributedDataParallel(model(), bucket_cap_mb=SMALL), model(), normalize=normalize, tail=tail)


@check(ranks=(2, 3))
def without_distributed_data_parallel():
    steps_are_right(model(), model())
    steps_are_right(model(), model(), normalize="computed")


@check(ranks=(2,))
def unused_parameters():
    """Parameters that no rank has used have no gradients."""
    torch.manual_seed(0)
    network = DistributedDataParallel(Branches(), find_unused_parameters=True, bucket_cap_mb=SMALL)
    torch.manual_seed(0)
    steps_are_right(network, Branches(), extra=lambda step: (step % 2 == 0,))
    assert network.module.left.weight.grad is None and network.module.right.weight.grad is not None


@check(ranks=(2, 3))
def with_hooks_and_buffers():
    for name, tolerance in (("arc whole", 1e-5), ("fp16", 2e-3), ("int8 ef14", 5e-2)):
        network = DistributedDataParallel(model(), bucket_cap_mb=SMALL)
        state, hook = hook_of(name, network)
        network.register_comm_hook(state, hook)
        steps_are_right(network, model(), tolerance=tolerance)
    network = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)), bucket_cap_mb=SMALL)
    drop = ut.DropCompute(PLANNED, options())
    for _ in range(6):
        for pair in drop.micro_batches(lambda position: micro_batch(rank(), position), network):
            (loss_of(network, pair) / drop.planned).backward()
    for parameter in network.parameters():
        same_on_all_ranks(parameter.grad)


def rank_1_computes_longer():
    """By 20 ms."""
    until = time.thread_time() + (0.02 if rank() == 1 else 0)
    while time.thread_time() < until:
        pass


@check(ranks=(2,))
def a_slow_rank_is_not_waited_for():
    """Rank 1 computes for 20 ms more per micro-batch than rank 0, and the threshold is 50 ms."""
    network = DistributedDataParallel(model(), bucket_cap_mb=SMALL)
    drop = ut.DropCompute(20, "0.05:warmup=0,recalibrate=never,max_drop=1")
    seen = []
    for _ in range(5):
        network.zero_grad()
        for pair in drop.micro_batches((micro_batch(rank(), position) for position in itertools.count()), network):
            rank_1_computes_longer()
            (loss_of(network, pair) / drop.planned).backward()
        seen.append(drop.step.computed)
        for parameter in network.parameters():
            same_on_all_ranks(parameter.grad)
    if rank() == 1:
        assert all(1 <= computed <= 3 for computed in seen[1:]), seen


@check(ranks=(2,))
def waiting_for_others_is_not_computing():
    """Rank 1 computes 80 ms longer than rank 0, which waits for it in the last backward pass: rank 0's record contains only its own computing."""
    network = DistributedDataParallel(model(), bucket_cap_mb=SMALL)
    drop = ut.DropCompute(PLANNED, "auto:warmup=0,calibration=20")
    for _ in range(5):
        network.zero_grad()
        for pair in drop.micro_batches((micro_batch(rank(), position) for position in itertools.count()), network):
            rank_1_computes_longer()
            (loss_of(network, pair) / drop.planned).backward()
    ends = [int(line.split(",")[2 + PLANNED]) for line in drop._drop.recorded().splitlines() if line[:1].isdigit()]
    usual = torch.tensor([float(statistics.median(ends))])
    every = [torch.empty_like(usual) for _ in range(world())]
    dist.all_gather(every, usual)
    assert every[1] - every[0] > 40e6, every


@check(ranks=(2,))
def goes_on_from_a_checkpoint():
    drop = ut.DropCompute(PLANNED, options())
    network, taken = model(), []

    def step_of(drop, batches):
        for position in drop.micro_batches(batches, network):
            taken.append(position)
            network(torch.ones(1, 12)).sum().backward()

    batches = iter(range(100))
    for _ in range(3):
        step_of(drop, batches)
    state = drop.state_dict()
    step_of(drop, batches)
    expected, taken[:] = list(taken), taken[: state["taken"]]
    other = ut.DropCompute(PLANNED, options())
    other.load_state_dict(state)
    step_of(other, iter(range(state["taken"], 100)))
    assert taken == expected == list(range(len(taken))), (taken, expected)


@check(ranks=(2,))
def what_makes_no_sense_is_refused():
    drop = ut.DropCompute(2, "off")
    with fails("iterator", within_s=1, kinds=(TypeError,)):
        drop.micro_batches([1, 2], model())
    for text in ("1:rule=at", "some", "off:window=0"):
        with fails(None, within_s=5, kinds=(ValueError,)):
            ut.DropCompute(2, text)
    with fails("ended before micro-batch 1", within_s=5):
        for _ in drop.micro_batches(iter([1]), model()):
            pass
    drop.resume()
    for _ in drop.micro_batches(itertools.repeat(1), torch.nn.Linear(1, 1)):
        pass
    assert drop.step.computed == 2
    with fails("static_graph", within_s=5, kinds=(ValueError,)):
        drop.micro_batches(itertools.repeat(1), DistributedDataParallel(model(), static_graph=True))
