"""Unisono's communication hooks for DistributedDataParallel: sums, bounds, residuals, states, errors."""

import copy
import glob
import math
import os
import pathlib
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .common import fails, init, kinds, leave, names, rank, same, same_on_all_ranks, store_barrier, world
from .ddp import SMALL, Branches, batch, buckets, equal_to_alone, loss_of, model, my_part, train_alone, train_together
from .hooks import wide
from .methods_common import check, ut

ARC = "arc:ratio=0.25,rank=4,start=0,auto_off=off,min_elements=64"

POWER_SGD = "power_sgd:rank=4,start=0,auto_off=off,min_elements=64"


def hook_of(name, network):
    """Returns (state, hook) of a method."""
    return {
        "int8": lambda: (ut.LowBitState(codec="int8", schedule="two_step"), ut.low_bit_hook),
        "int8 ef14": lambda: (
            ut.LowBitState(codec="int8", error_feedback=True, model=network, schedule="two_step"),
            ut.low_bit_hook,
        ),
        "int4 ef14": lambda: (
            ut.LowBitState(codec="int4", error_feedback=True, model=network, schedule="two_step"),
            ut.low_bit_hook,
        ),
        "plain ef14": lambda: (ut.LowBitState(codec="plain", error_feedback=True, model=network), ut.low_bit_hook),
        "fp16": lambda: (None, ut.fp16_hook),
        "bf16": lambda: (
            dist.group.WORLD,
            lambda state, bucket: ut.bf16_hook(state, bucket),
        ),  # torch refuses only the name bf16_compress_hook
        "arc": lambda: (ut.ArcTopKState(network, ARC), ut.arc_top_k_hook),
        "arc ef21m": lambda: (ut.ArcTopKState(network, ARC + ",feedback=ef21m,eta=0.5"), ut.arc_top_k_hook),
        "arc whole": lambda: (
            ut.ArcTopKState(network, "arc:ratio=1,max_payload=1,start=0,auto_off=off,min_elements=1"),
            ut.arc_top_k_hook,
        ),
        "power_sgd": lambda: (ut.PowerSgdState(network, POWER_SGD), ut.power_sgd_hook),
        "lossy": lambda: (ut.LossyState(delivery="lossy:loss_budget=0.2"), ut.lossy_hook),
    }[name]()


def with_hook(name, network=None, **options):
    network = DistributedDataParallel(network or model(), **({"bucket_cap_mb": SMALL} | options))
    state, hook = hook_of(name, network)
    network.register_comm_hook(state, hook)
    return network, state


def agree_after_training(name, tolerance, steps=20, network=None, **options):
    """Trains with several buckets, which change after the first step. Ranks must have equal bits, and nearly the loss of one
    process."""
    first = network or model()
    network, state = with_hook(name, copy.deepcopy(first), **options)
    losses = train_together(network, steps, torch.optim.SGD(network.parameters(), lr=0.1))
    assert len(buckets(network)) >= 2, buckets(network)
    for parameter in network.parameters():
        same_on_all_ranks(parameter)
    expected = train_alone(steps, first=first)[1]
    assert abs(losses[-1] - expected[-1]) < tolerance * expected[-1], (name, losses, expected)
    return network, state, losses


@check(ranks=(2, 3), timeout_s=90)
def low_bit_trains():
    for name, tolerance in (("int8", 0.01), ("int8 ef14", 0.01), ("int4 ef14", 0.03), ("fp16", 1e-3), ("bf16", 1e-2)):
        _, state, _ = agree_after_training(name, tolerance)
        if state is not None and state is not dist.group.WORLD:
            report = state.report()
            assert report["steps"] == 20 and 0 < report["sent_bytes"] and 4 < report["bits_per_element"] < 12, report


@check(ranks=(2, 3))
def plain_codec_is_exact():
    network, state = with_hook("plain ef14")
    losses = train_together(network, 10, torch.optim.SGD(network.parameters(), lr=0.1))
    equal_to_alone(network, losses)
    assert state.report()["residual_norm"] == 0


class OneBucket:
    """Imitates a bucket of DistributedDataParallel, to call a hook without it."""

    def __init__(self, parameter, values):
        self._parameter, self._values = parameter, values

    def buffer(self):
        return self._values

    def parameters(self):
        return [self._parameter]

    def index(self):
        return 0

    def is_last(self):
        return True


@check(ranks=(2, 3, 4))
def low_bit_errors_are_bounded():
    """Each encoding adds an error of at most half a step of its group's range. The schedule two_step encodes twice; scales are
    rounded to bf16."""
    generator = torch.Generator().manual_seed(7)
    every = torch.randn(world(), 5000, generator=generator)
    for bits in (4, 8):
        values = every[rank()].clone()
        parameter = torch.nn.Parameter(torch.zeros(5000))
        state = ut.LowBitState(codec=f"int{bits}", schedule="two_step")
        result = ut.low_bit_hook(state, OneBucket(parameter, values)).wait()
        spread = (every.max() - every.min()) / (2**bits - 1)
        assert (result - every.mean(0)).abs().max() <= 1.2 * spread, bits
        assert 0 < (result - every.mean(0)).abs().mean()
        same_on_all_ranks(result)


@check(ranks=(2, 3))
def nothing_is_lost_with_error_feedback():
    """The sum of the delivered values of all steps and of all ranks' residuals equals the sum of all gradients."""
    for codec in ("int8", "int4", "int2"):
        parameter = torch.nn.Parameter(torch.zeros(40, 50))
        holder = torch.nn.Module()
        holder.register_parameter("w", parameter)
        state = ut.LowBitState(codec=codec, error_feedback=True, model=holder, schedule="two_step")
        generator = torch.Generator().manual_seed(rank())
        given, delivered = torch.zeros(2000, dtype=torch.float64), torch.zeros(2000, dtype=torch.float64)
        for _ in range(12):
            gradient = torch.randn(2000, generator=generator)
            given += gradient
            delivered += ut.low_bit_hook(state, OneBucket(parameter, gradient)).wait()
        total = torch.stack((given, state.residual("w").double()))
        dist.all_reduce(total)
        assert total[1].abs().max() > 0
        same(delivered * world() + total[1], total[0], 1e-4)
        error = (delivered - total[0] / world()).abs().max()
        assert error < {"int8": 0.1, "int4": 1.0, "int2": 8.0}[codec], (
            codec,
            error,
        )  # the error does not grow with the number of steps


@check(ranks=(2,))
def gradients_that_are_not_finite_do_not_come_again():
    parameter = torch.nn.Parameter(torch.zeros(2000))
    state = ut.LowBitState(codec="int8", error_feedback=True, schedule="two_step")
    bad = torch.ones(2000)
    bad[5] = math.inf
    assert not ut.low_bit_hook(state, OneBucket(parameter, bad)).wait().isfinite().all()
    assert ut.low_bit_hook(state, OneBucket(parameter, torch.ones(2000))).wait().isfinite().all()


def train_on_one_batch(network, steps):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(network, *(map(my_part, batch(0)) if isinstance(network, DistributedDataParallel) else batch(0)))
        loss.backward()
        optimizer.step()
    return loss_of(network, *batch(0)).item()


@check(ranks=(2, 3), timeout_s=90)
def arc_trains():
    """Training with a quarter of the rows, or with two factors, reaches nearly the loss of exact training."""
    before = loss_of(wide(), *batch(0)).item()
    expected = train_on_one_batch(wide(), 60)
    for name, tolerance in (("arc", 0.1), ("arc ef21m", 0.15), ("power_sgd", 0.1)):
        network, state = with_hook(name, wide(), bucket_cap_mb=0.02)
        loss = train_on_one_batch(network, 60)
        assert len(buckets(network)) >= 2
        for parameter in network.parameters():
            same_on_all_ranks(parameter)
        assert loss - expected < tolerance * (before - expected), (name, before, expected, loss)
        report = state.report()
        assert report.step == 60 and report.payload_ratio() < 0.6, str(report)
        assert state.applied and state.last_report.step == 59
        whole = {each.name for each in state.plan.parameters if not each.compressed}
        assert "0.bias" in whole and "2.weight" not in whole, whole


@check(ranks=(2, 3))
def arc_with_all_rows_is_exact():
    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}, {"gradient_as_bucket_view": True}):
        network, _ = with_hook("arc whole", **options)
        losses = train_together(network, 10, torch.optim.SGD(network.parameters(), lr=0.1))
        equal_to_alone(network, losses, tolerance=1e-5)


@check(ranks=(2,))
def arc_loses_nothing():
    """When a step has been sent whole, the sum of all averages so far equals the average of the summed gradients."""
    loses_nothing("arc")


@check(ranks=(2,))
def power_sgd_loses_nothing():
    loses_nothing("power_sgd")


def loses_nothing(method):
    network, state = with_hook(method)
    given = [torch.zeros_like(each) for each in network.parameters()]
    delivered = [torch.zeros_like(each) for each in network.parameters()]
    for step in range(6):
        if step == 5:
            state.flush()
        network.zero_grad()
        alone = model()
        loss_of(alone, *batch(step)).backward()
        loss_of(network, *map(my_part, batch(step))).backward()
        for sum_given, sum_delivered, right, mine in zip(given, delivered, alone.parameters(), network.parameters()):
            sum_given += right.grad
            sum_delivered += mine.grad
    for sum_given, sum_delivered in zip(given, delivered):
        same(sum_delivered, sum_given, 1e-5)


@check(ranks=(2,))
def arc_skips_steps_that_are_not_finite():
    network, state = with_hook("arc whole", bucket_cap_mb=25)
    for step, factor in enumerate((1.0, math.nan if rank() == 1 else 1.0, 1.0)):
        network.zero_grad()
        (loss_of(network, *map(my_part, batch(step))) * factor).backward()
        assert state.applied == (step != 1), state.last_report
        for parameter in network.parameters():
            assert parameter.grad.isfinite().all() or step == 1
            assert step != 1 or not parameter.grad.any()


def train_with_unusual_buckets(name):
    """Trains with unused parameters, gradients of two micro-batches, and half-precision parameters."""
    network, _ = with_hook(name, Branches(), find_unused_parameters=True)
    reference = copy.deepcopy(network.module)
    for step, choice in enumerate([lambda _: True, lambda of: of == 0, lambda _: False]):
        network.zero_grad()
        reference.zero_grad()
        inputs, targets = batch(step)
        torch.nn.functional.mse_loss(network(my_part(inputs), choice(rank())), my_part(targets)).backward()
        for of in range(world()):
            (
                torch.nn.functional.mse_loss(reference(inputs.chunk(world())[of], choice(of)), targets.chunk(world())[of])
                / world()
            ).backward()
        for parameter, right in zip(network.parameters(), reference.parameters()):
            if right.grad is not None:
                same(parameter.grad, right.grad, 2e-2)
    network, _ = with_hook(name)
    for step in range(3):
        network.zero_grad()
        alone = model()
        with network.no_sync():
            loss_of(network, *map(my_part, batch(step))).backward()
        loss_of(network, *map(my_part, batch(step + 50))).backward()
        for number in (step, step + 50):
            loss_of(alone, *batch(number)).backward()
        for parameter, right in zip(network.parameters(), alone.parameters()):
            same(parameter.grad, right.grad, 2e-2)
    network, _ = with_hook(name, torch.nn.Linear(40, 30).to(torch.bfloat16))
    network(torch.ones(2, 40, dtype=torch.bfloat16) * (rank() + 1)).sum().backward()
    same(network.module.weight.grad, torch.full((30, 40), float(world() + 1), dtype=torch.bfloat16), 2e-2)


@check(ranks=(2, 3), timeout_s=90)
def unusual_buckets():
    for name in ("int8", "int8 ef14", "fp16", "bf16", "arc whole"):
        train_with_unusual_buckets(name)


def continue_from_save(name):
    """Compares ten steps with five steps, a save, and five steps of new objects that loaded the save."""
    options = {"find_unused_parameters": True}  # the same buckets in all steps
    network, _ = with_hook(name, **options)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    train_together(network, 5, optimizer)
    path = os.environ["CHECK_DIRECTORY"] + f"/{name}.{rank()}"
    saved = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "hook": network_state(network).state_dict()}
    torch.save(saved, path)
    train_together(network, 5, optimizer)
    other, state = with_hook(name, model(seed=1), **options)
    loaded = torch.load(path, weights_only=True)
    again = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    other.load_state_dict(loaded["network"])
    again.load_state_dict(loaded["optimizer"])
    state.load_state_dict(loaded["hook"])
    train_together(other, 5, again)
    for parameter, right in zip(other.parameters(), network.parameters()):
        same(parameter.detach(), right.detach())
    with fails("of rank", within_s=1, kinds=(ValueError,)):
        state.load_state_dict(loaded["hook"] | {"rank": rank() + 1})


def network_state(network):
    return network._comm_hooks[0][1]


@check(ranks=(2, 3), timeout_s=90)
def saved_states_continue_bit_exactly():
    for name in ("int8 ef14", "int4 ef14", "arc", "arc ef21m", "power_sgd"):
        continue_from_save(name)


@check(ranks=(2,))
def residuals_survive_other_buckets():
    """Residuals belong to parameters, not to buckets, so nothing is lost when buckets change."""
    network, state = with_hook("int4 ef14")
    given = {name: torch.zeros_like(each) for name, each in network.module.named_parameters()}
    delivered = copy.deepcopy(given)
    for step in range(4):
        network.zero_grad()
        alone = model()
        loss_of(alone, *batch(step)).backward()
        loss_of(network, *map(my_part, batch(step))).backward()
        for name, parameter in network.module.named_parameters():
            given[name] += dict(alone.named_parameters())[name].grad
            delivered[name] += parameter.grad
    assert network._get_ddp_logging_data()["has_rebuilt_buckets"] == 1
    for name, total in given.items():
        left = state.residual(name).clone()
        dist.all_reduce(left, op=dist.ReduceOp.AVG)
        same(delivered[name] + left.view_as(total), total, 1e-5)


def no_hook_waits(hooks):
    """Rank 1 begins only when rank 0's hooks have all returned."""
    store = dist.distributed_c10d._get_default_store()
    for name in hooks:
        holder = torch.nn.Linear(60, 60, bias=False)
        state, hook = hook_of(name, holder)
        for step in range(2):
            if rank() == 1:
                store.get(f"{name}.{step}")
            future = hook(state, OneBucket(holder.weight, torch.full((3600,), float(rank()))))
            store.set(f"{name}.{step}", "given")
            same(future.wait(), torch.full((3600,), 0.5), 0.01 if not name.startswith("arc") or name == "arc whole" else 1.0)


@check(ranks=(2,))
def hooks_do_not_wait():
    no_hook_waits(["int8", "int8 ef14", "fp16", "bf16", "arc", "arc whole"])


@check(ranks=(2,), env={"UNISONO_TRANSPORT": "udp"})
def lossy_hook_does_not_wait():
    no_hook_waits(["lossy"])


@check(ranks=(2,))
def under_the_profiler():
    for name in ("int8", "int8 ef14", "fp16", "arc"):
        network, _ = with_hook(name)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            train_together(network, 3, torch.optim.SGD(network.parameters(), lr=0.1))
        assert any("all_reduce" in event.name for event in profile.events()), name


def killed(name, pattern=None):
    init(timeout_s=20)
    network, _ = with_hook(name)
    for step in range(2):
        loss_of(network, *map(my_part, batch(step))).backward()
    if rank() == 1:
        network.module[0].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with fails(pattern or names(1), within_s=15, kinds=kinds()):
        for step in range(2, 5):
            loss_of(network, *map(my_part, batch(step))).backward()
    leave()


@check(ranks=(3,), lost=(1,), group=False)
def killed_with_int8():
    killed("int8")


@check(ranks=(3,), lost=(1,), group=False)
def killed_with_error_feedback():
    killed("int8 ef14")


@check(ranks=(3,), lost=(1,), group=False)
def killed_with_fp16():
    killed("fp16")


@check(ranks=(3,), lost=(1,), group=False)
def killed_with_arc():
    killed("arc")


@check(ranks=(3,), lost=(1,), group=False, env={"UNISONO_TRANSPORT": "udp"})
def killed_with_lossy():
    # Lossy sums continue without the dead rank. So the last rank that notices the death may first get the error that other
    # ranks are operations ahead.
    killed("lossy", r"rank 1\b|operations ahead")


def late(name):
    """backward() raises the error that ended the operation."""
    init(timeout_s=3)
    network, _ = with_hook(name)
    loss_of(network, *map(my_part, batch(0))).backward()
    if rank() == 0:
        with fails(names(1), within_s=12, kinds=(ut.TimeoutError,)):
            loss_of(network, *map(my_part, batch(1))).backward()
    store_barrier()
    leave()


@check(ranks=(3,), lost=(1,), group=False)
def killed_with_power_sgd():
    killed("power_sgd")


@check(ranks=(2,), group=False)
def late_with_int8():
    late("int8")


@check(ranks=(2,), group=False)
def late_with_arc():
    late("arc")


@check(ranks=(3,), timeout_s=90, env={"UNISONO_TRANSPORT": "udp", "UNISONO_LOSE_PER_MILLE": "50"})
def lossy_trains():
    _, state, _ = agree_after_training("lossy", 0.05, steps=60, network=wide(), bucket_cap_mb=0.03)
    report = state.report()
    assert report["steps"] == report["told_of"] == 60 and len(state.reports) == 60, report
    wrong = [
        each
        for each in list(state.reports)[1:]
        if each["buckets"] < 2 or each["lossy"] != each["buckets"] or not 1 <= each["effective_contributors"] <= world()
    ]
    assert not wrong, wrong


@check(ranks=(3,), timeout_s=90, env={"UNISONO_TRANSPORT": "udp", "UNISONO_LOSE_PER_MILLE": "50"})
def lossy_averages_are_right_on_average():
    """A twentieth of the datagrams is lost, and after the first steps nothing is repaired. All ranks get equal averages, and
    errors have both signs."""
    parameter = torch.nn.Parameter(torch.zeros(400_000))
    state = ut.LossyState(delivery="lossy:loss_budget=0.4")
    values = torch.full((400_000,), float(rank()))
    errors = []
    for _ in range(60):
        result = ut.lossy_hook(state, OneBucket(parameter, values.clone())).wait()
        same_on_all_ranks(result)
        errors.append((result - 1).mean())
    report = state.report()
    assert 0.002 < report["missing"] < 0.2, report
    assert min(each["effective_contributors"] for each in state.reports) < 3
    assert abs(sum(errors) / 60) < 0.05 and any(errors), errors
    # destroy_process_group() waits until the other ranks have this rank's data, but only if no other object holds the group.
    dist.barrier()
    dist.destroy_process_group()
    assert "unisono" not in [pathlib.Path(name).read_text().strip() for name in glob.glob("/proc/self/task/*/comm")]


@check(ranks=(2,))
def what_makes_no_sense_is_refused():
    for wrong in (
        lambda: ut.LossyState(),
        lambda: ut.LowBitState(codec="int9"),
        lambda: ut.ArcTopKState(model(), "arc:ratio=2"),
        lambda: ut.LossyState(delivery="some"),
    ):
        with fails(None, within_s=10, kinds=(ValueError,)):
            wrong()
    with fails("options|differ|mismatch", within_s=10, kinds=(ValueError,)):
        ut.ArcTopKState(model(), f"arc:ratio=0.{rank() + 1}")
    with fails("ratio does not go with power_sgd", within_s=10, kinds=(ValueError,)):
        ut.PowerSgdState(model(), "power_sgd:ratio=0.1")
    with fails("options|differ|mismatch", within_s=10, kinds=(ValueError,)):
        ut.PowerSgdState(model(), f"power_sgd:rank={rank() + 1}")


@check(ranks=(2,), fresh=True)
def programs_end():
    """Programs end while hooks exist, without destroying anything."""
    for name in ("int8 ef14", "arc"):
        network, _ = with_hook(name)
        train_together(network, 2, torch.optim.SGD(network.parameters(), lr=0.1))
