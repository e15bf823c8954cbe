"""Environment variables set options of scripts that cannot be changed. Only for the backend unisono. Reports show whether
settings took effect."""

import datetime
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .common import fails, kinds, leave, rank, same, same_on_all_ranks, store_barrier, world
from .ddp import batch, loss_of, my_part
from .methods_common import check, ut

MANY = 100_000


def numbers():
    return torch.linspace(-1, 1, MANY) * (rank() + 1)


def exact_sum():
    return torch.linspace(-1, 1, MANY) * sum(range(1, world() + 1))


def sum_says(**expected):
    tensor = numbers()
    dist.all_reduce(tensor)
    same(tensor, exact_sum(), 0.05)
    report = ut.report()
    for name, value in expected.items():
        assert str(report[name]).startswith(value), (name, report)
    return tensor


@check(ranks=(2, 3), env={"UNISONO_CODEC": "int8", "UNISONO_SCHEDULE": "two_step"})
def codec():
    """UNISONO_CODEC applies to collectives that add or gather floating-point numbers. Others stay plain, and a report gives the
    reason."""
    assert not torch.equal(sum_says(codec="int8", schedule="two_step"), exact_sum())
    integers = torch.arange(MANY) * (rank() + 1)
    dist.all_reduce(integers)
    same(integers, torch.arange(MANY) * sum(range(1, world() + 1)))
    assert ut.report()["codec"] == "plain" and "f32" in ut.report()["codec_note"], ut.report()
    for tensor in (torch.randn(MANY), torch.randn(4)):
        kept = tensor.clone()
        dist.broadcast(tensor, 0)
        assert rank() > 0 or torch.equal(tensor, kept)
        same_on_all_ranks(tensor)
    objects = [None] * world()
    dist.all_gather_object(objects, {"rank": rank(), "text": "x" * 10_000})
    assert [each["rank"] for each in objects] == list(range(world()))
    if rank() == 0:
        dist.send(numbers(), 1)
    elif rank() == 1:
        received = torch.empty(MANY)
        dist.recv(received, 0)
        same(received, torch.linspace(-1, 1, MANY))
    with dist._coalescing_manager(async_ops=True) as coalesced:
        pair = [torch.ones(2000), torch.ones(3000)]
        for tensor in pair:
            dist.all_reduce(tensor)
    coalesced.wait()
    same(pair[1], torch.full((3000,), float(world())), 0.05)
    dist.reduce(numbers(), 0)
    dist.gather(torch.ones(4), [torch.empty(4) for _ in range(world())] if rank() == 0 else None)
    dist.all_to_all_single(torch.empty(4 * world()), torch.ones(4 * world()))
    dist.barrier()


@check(ranks=(2, 3), env={"UNISONO_CODEC": "int8", "UNISONO_SCHEDULE": "direct"})
def codec_of_halves():
    """The schedule "direct" applies to collectives that gather or scatter. All-reduce cannot use it, and uses the default
    schedule."""
    gathered = [torch.empty(MANY) for _ in range(world())]
    dist.all_gather(gathered, numbers())
    assert ut.report()["codec"].startswith("int8") and ut.report()["schedule"] == "direct", ut.report()
    same(gathered[1], torch.linspace(-1, 1, MANY) * 2, 0.05)
    output = torch.empty(MANY)
    dist.reduce_scatter_tensor(output, numbers().repeat(world()))
    assert ut.report()["codec"].startswith("int8") and ut.report()["schedule"] == "direct", ut.report()
    same(output, exact_sum(), 0.05)
    indices = torch.arange(MANY)
    dist.all_gather_into_tensor(everyones := torch.empty(MANY * world(), dtype=torch.int64), indices)
    same(everyones[MANY:], indices.repeat(world() - 1))
    sum_says()
    assert ut.report()["schedule"] != "direct", ut.report()


@check(ranks=(2,), env={"UNISONO_CODEC": "int8", "UNISONO_SCHEDULE": "two_step"})
def codec_of_other_groups_and_calls():
    """A call's options take precedence over its group's, and these over the environment."""
    with ut.call_options(codec="int4", schedule="two_step"):
        sum_says(codec="int4")
    with ut.call_options(schedule="ring"):
        assert torch.equal(sum_says(codec="plain", schedule="ring"), exact_sum())
    cases = [
        (None, "int8", "two_step"),
        (ut.Options(codec="plain"), "plain", "two_step"),
        (ut.Options(codec="int4"), "int4", "two_step"),
        (ut.Options(codec="plain", schedule="ring"), "plain", "ring"),
    ]
    for options, of_codec, of_schedule in cases:
        group = dist.new_group(pg_options=options)
        dist.all_reduce(numbers(), group=group)
        report = ut.report(group)
        assert report["codec"].startswith(of_codec) and report["schedule"] == of_schedule, report
        dist.broadcast(numbers(), 0, group=group)  # a broadcast takes no codec, and not every schedule
        dist.all_to_all_single(torch.empty(2), torch.ones(2), group=group)
        dist.barrier(group)


@check(ranks=(2,), env={"UNISONO_CODEC": "int8", "UNISONO_SCHEDULE": "two_step"})
def a_network_with_a_codec():
    """With a codec, DDP sends low-bit gradients, but exact initial parameters and buffers."""
    torch.manual_seed(rank())
    plain = torch.nn.Sequential(torch.nn.Linear(12, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 3))
    first = {name: value.clone() for name, value in plain.state_dict().items()}
    network = DistributedDataParallel(plain)
    if rank() == 0:
        for name, value in plain.state_dict().items():
            same(value, first[name])
    for step in range(3):
        loss_of(network, *map(my_part, batch(step))).backward()
        assert ut.report()["codec"].startswith("int8"), ut.report()
    for parameter in plain.parameters():
        same_on_all_ranks(parameter)
        same_on_all_ranks(parameter.grad)
    with torch.no_grad():
        network.eval()
        plain[1].running_mean.copy_(torch.randn(256))
        network.train()
        plain[1].momentum = 0.0
        kept = plain[1].running_mean.clone()
        network(torch.randn(8, 12))
    assert rank() > 0 or torch.equal(plain[1].running_mean, kept)
    everyones = [None] * world()
    dist.all_gather_object(everyones, plain[1].running_mean)
    same(everyones[1], everyones[0])


@check(ranks=(3,), env={"UNISONO_ORDER": "rank", "UNISONO_SCHEDULE": "ring"})
def order():
    """With UNISONO_ORDER=rank, sums of floating-point numbers cannot use a ring, but sums of integers can."""
    with fails("rank order", within_s=10, kinds=kinds()):
        dist.all_reduce(numbers())
    integers = torch.arange(MANY)
    dist.all_reduce(integers)
    assert ut.report()["schedule"] == "ring", ut.report()
    with ut.call_options(schedule="ring", order="any"):
        sum_says(schedule="ring")


@check(
    ranks=(2,),
    env={
        "UNISONO_TRANSPORT": "udp",
        "UNISONO_DELIVERY": "lossy:loss_budget=0.2",
        "UNISONO_RATE_LIMIT_MBPS": "500",
        "UNISONO_DATAGRAM_CHECKSUM": "1",
    },
)
def delivery():
    sum_says()
    assert ut.report()["lossy"] is True, ut.report()
    integers = torch.arange(MANY)
    dist.all_reduce(integers)
    assert not ut.report().get("lossy"), ut.report()
    with ut.call_options(delivery="reliable"):
        sum_says()
        assert not ut.report().get("lossy"), ut.report()


def transports():
    from unisono.torch._shared import core_group

    return {link.transport for link in core_group(None).counters().links if link.rank != rank()}


@check(
    ranks=(2,),
    env={
        "UNISONO_TRANSPORT": "tcp",
        "UNISONO_INTERFACE": "lo",
        "UNISONO_STREAMS_PER_LINK": "2",
        "UNISONO_PAYLOAD_CHECKSUM": "1",
        "UNISONO_COMPUTE_THREADS": "2",
    },
)
def links():
    assert torch.equal(sum_says(), exact_sum())
    assert transports() == {"tcp"}, transports()
    group = dist.new_group()
    dist.all_reduce(torch.ones(10), group=group)


@check(ranks=(2,), env={"UNISONO_TRANSPORT": "tcp"})
def options_of_links_come_first():
    group = dist.new_group(pg_options=ut.Options(transport="shm"))
    dist.all_reduce(torch.ones(10), group=group)
    from unisono.torch._shared import core_group

    assert transports() == {"tcp"} and {
        link.transport for link in core_group(group).counters().links if link.rank != rank()
    } == {"shm"}


WRONG = {
    "UNISONO_CODEC": "int9",
    "UNISONO_SCHEDULE": "circle",
    "UNISONO_ORDER": "alphabetical",
    "UNISONO_DELIVERY": "lossy:budget=1",
    "UNISONO_TRANSPORT": "pigeon",
    "UNISONO_STREAMS_PER_LINK": "many",
    "UNISONO_COMPUTE_THREADS": "-1",
    "UNISONO_RATE_LIMIT_MBPS": "fast",
    "UNISONO_DATAGRAM_CHECKSUM": "perhaps",
    "UNISONO_PAYLOAD_CHECKSUM": "perhaps",
    "UNISONO_TIMEOUT_MS": "soon",
    "UNISONO_JOIN_TIMEOUT_MS": "0",
}


def init_as_a_script_does(number):
    dist.init_process_group(
        "unisono", store=dist.FileStore(f"{os.environ['CHECK_DIRECTORY']}/{number}", world()), rank=rank(), world_size=world()
    )


@check(ranks=(2,), group=False)
def what_makes_no_sense_is_named():
    """init_process_group soon raises an error that names a wrong setting."""
    for number, (name, value) in enumerate(WRONG.items()):
        os.environ[name] = value
        with fails(rf"{name}|transport '{value}'", within_s=5, kinds=(ValueError,)):
            init_as_a_script_does(number)
        del os.environ[name]
        assert not dist.is_initialized()
    init_as_a_script_does("right")
    dist.barrier()
    dist.destroy_process_group()


@check(ranks=(2,), group=False, env={"UNISONO_TIMEOUT_MS": "2000"})
def time_out():
    """UNISONO_TIMEOUT_MS replaces torch's default timeout of half an hour. A timeout given by the script takes precedence."""
    init_as_a_script_does("first")
    dist.barrier()
    patient = dist.new_group(timeout=datetime.timedelta(seconds=30))
    brief = dist.new_group()
    if rank() == 0:
        for group in (None, brief):
            with fails("rank 1", within_s=10, kinds=kinds()):
                dist.all_reduce(torch.ones(10), group=group)
        dist.all_reduce(torch.ones(10), group=patient)
    else:
        end = time.monotonic() + 5
        while time.monotonic() < end:
            torch.ones(1000).sum()
        dist.all_reduce(torch.ones(10), group=patient)
    store_barrier(store=dist.FileStore(os.environ["CHECK_DIRECTORY"] + "/end", world()))
    leave()


@check(ranks=(2,), group=False, lost=(1,), env={"UNISONO_JOIN_TIMEOUT_MS": "1500"})
def time_to_join():
    """UNISONO_JOIN_TIMEOUT_MS limits how long a group waits for a missing rank, whatever the group's timeout is."""
    if rank() == 1:
        return
    with fails("rank 1", within_s=10):
        init_as_a_script_does("first")
