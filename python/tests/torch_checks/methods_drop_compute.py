"""DropCompute with DistributedDataParallel: whatever ranks drop, gradients are the sum over the computed micro-batches."""

import gc
import itertools
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import unisono

try:
    from unisono.torch._shared import core_group
except ImportError:  # then the tests are skipped
    core_group = None

from .common import fails, rank, same, same_on_all_ranks, world
from .ddp import SMALL, Branches, buckets, model
from .methods_common import check, ut
from .methods_hooks import hook_of

PLANNED = 4
COMPUTED = [
    [4, 2, 1, 3, 4, 1],
    [4, 4, 3, 1, 1, 1],
    [1, 4, 2, 2, 4, 1],
]  # [rank][step]: number of micro-batches that the rank computes


def micro_batch(of, position):
    generator = torch.Generator().manual_seed(1000 * of + position)
    return torch.randn(6, 12, generator=generator), torch.randn(6, 3, generator=generator)


def loss_of(network, pair, *extra):
    return torch.nn.functional.mse_loss(network(pair[0], *extra), pair[1])


def options(normalize="max", tail="defer"):
    return unisono.DropOptions(f"off:normalize={normalize},tail={tail}", replay=COMPUTED[rank()])


def expected_gradients(reference, step, tail, divide, *extra):
    """Returns the gradients of one process that computes the micro-batches of all ranks."""
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


def all_reduces(group=None):
    """How many all-reduces this rank has made in a process group."""
    every = core_group(group).counters().collectives
    return sum(each.operations for each in every if each.collective == "all_reduce")


def sharded(network):
    return ut.ShardedOptimizer(network.parameters(), 0.1, "sgd", "delivery=reliable")


@check(ranks=(2, 3))
def a_sharded_optimizer_exchanges_each_gradient_once():
    """Gradients stay local until the optimizer averages them. Training is that of one process."""
    for normalize in ("max", "computed"):
        network, alone = model(), model()
        optimizer, reference = sharded(network), torch.optim.SGD(alone.parameters(), 0.1)
        drop = ut.DropCompute(PLANNED, options(normalize))
        mine = (micro_batch(rank(), position) for position in itertools.count())
        before = all_reduces()
        for step in range(6):
            optimizer.zero_grad()
            for pair in drop.micro_batches(mine, network):
                (loss_of(network, pair) / drop.planned).backward()
            local = network[0].weight.grad.clone()
            optimizer.step()
            same(network[0].weight.grad, local)
            divide = PLANNED * world() if normalize == "max" else sum(COMPUTED[of][step] for of in range(world()))
            expected_gradients(alone, step, "defer", divide)
            reference.step()
            for parameter, right in zip(network.parameters(), alone.parameters()):
                same(parameter.detach(), right.detach(), 1e-5)
        assert all_reduces() == before, "gradients were averaged twice"
    del optimizer  # the parameters have no optimizer that averages any more
    gc.collect()
    network.zero_grad()
    drop = ut.DropCompute(PLANNED, options())
    for pair in drop.micro_batches(mine, network):
        (loss_of(network, pair) / drop.planned).backward()
    assert all_reduces() == before + 1
    same_on_all_ranks(network[0].weight.grad)


@check(ranks=(3,))
def a_sharded_optimizer_over_other_ranks_does_not_replace_the_average():
    """The optimizer averages over two ranks, and DropCompute over all three."""
    pair = dist.new_group([0, 1])
    network = model()
    if rank() < 2:
        optimizer = ut.ShardedOptimizer(network.parameters(), 0.1, "sgd", "delivery=reliable", pair)
    drop = ut.DropCompute(PLANNED, options())
    mine = (micro_batch(rank(), position) for position in itertools.count())
    for each in drop.micro_batches(mine, network):
        (loss_of(network, each) / drop.planned).backward()
    same_on_all_ranks(network[0].weight.grad)
    if rank() < 2:
        optimizer.step()


@check(ranks=(2,))
def gradients_that_would_be_averaged_twice_or_never_are_refused():
    drop = ut.DropCompute(PLANNED, "off")
    network = model()
    optimizer = sharded(network)
    text = (
        "^micro_batches: DistributedDataParallel and ShardedOptimizer would both average the gradients; give micro_batches the "
        "plain module$"
    )
    with fails(text, within_s=5, kinds=(ValueError,)):
        drop.micro_batches(itertools.repeat(micro_batch(rank(), 0)), DistributedDataParallel(network))
    network = model()
    optimizer = sharded(network)

    def step():
        for pair in drop.micro_batches(itertools.repeat(micro_batch(rank(), 0)), network):
            loss_of(network, pair).backward()

    step()
    text = (
        "^micro_batches: the gradients of the last step were left to ShardedOptimizer.step\\(\\), which averages them, but it was "
        "not called$"
    )
    with fails(text, within_s=5):
        step()
    step()  # the caller knows now
    optimizer.step()
    step()
    optimizer.step()
    same_on_all_ranks(network[0].weight)


@check(ranks=(2,))
def unused_parameters():
    """A parameter that no rank has used has no gradient."""
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
    network = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)), bucket_cap_mb=SMALL
    )
    drop = ut.DropCompute(PLANNED, options())
    for _ in range(6):
        for pair in drop.micro_batches(lambda position: micro_batch(rank(), position), network):
            (loss_of(network, pair) / drop.planned).backward()
    for parameter in network.parameters():
        same_on_all_ranks(parameter.grad)


def rank_1_computes_longer():
    """Rank 1 computes 20 ms longer per micro-batch."""
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
    """Rank 1 computes 80 ms longer than rank 0, so rank 0 waits in the last backward pass. The waiting must not count as rank
    0's compute time."""
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
def continues_from_a_checkpoint():
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
