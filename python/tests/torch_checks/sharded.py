"""Models with sharded parameters: FSDP in both versions, DTensor, tensor parallelism, functional collectives,
torch.compile, the profiler.
"""

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from .common import cannot, check, rank, same, world
from .ddp import batch, loss_of, model, my_part, train_alone, train_together


@check(ranks=(1, 2, 3), timeout_s=90)
def fsdp2():
    mesh = dist.init_device_mesh("cpu", (world(),))
    network = model()
    for layer in network:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)
    losses = train_together(network, 10, torch.optim.SGD(network.parameters(), lr=0.1))
    alone, expected = train_alone(10)
    same(losses, expected, 2e-6)
    for parameter, right in zip(network.parameters(), alone.parameters(), strict=True):
        assert isinstance(parameter, DTensor)
        same(parameter.full_tensor().detach(), right.detach(), 2e-6)


@check(ranks=(2,), timeout_s=90)
def fsdp2_keeps_parameters_after_forward():
    network = model()
    for layer in (network[0], network[2]):
        fully_shard(layer, reshard_after_forward=False)
    fully_shard(network, reshard_after_forward=False)
    train_together(network, 5, torch.optim.SGD(network.parameters(), lr=0.1))
    alone, _ = train_alone(5)
    for parameter, right in zip(network.parameters(), alone.parameters(), strict=True):
        same(parameter.full_tensor().detach(), right.detach(), 2e-6)


@check(ranks=(2,), timeout_s=90)
def fsdp2_in_bfloat16():
    network = model()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, output_dtype=torch.float32)
    fully_shard(network, mp_policy=policy)
    losses = train_together(network, 10, torch.optim.SGD(network.parameters(), lr=0.1))
    same(losses, train_alone(10)[1], 5e-2)


@check(ranks=(4,), timeout_s=90)
def fsdp2_with_replicas():
    """Parameters are sharded within pairs of ranks and replicated between pairs. Gradients need a reduce-scatter, then an
    all-reduce."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    network = model()
    fully_shard(network, mesh=mesh)
    losses = train_together(network, 5, torch.optim.SGD(network.parameters(), lr=0.1))
    same(losses, train_alone(5)[1], 2e-6)


@check(ranks=(2,), timeout_s=90)
def fsdp2_accumulates_gradients():
    network = model()
    fully_shard(network)
    network.set_requires_gradient_sync(False)
    loss_of(network, *map(my_part, batch(0))).backward()
    network.set_requires_gradient_sync(True)
    loss_of(network, *map(my_part, batch(1))).backward()
    alone = model()
    for step in (0, 1):
        loss_of(alone, *batch(step)).backward()
    for parameter, right in zip(network.parameters(), alone.parameters(), strict=True):
        same(parameter.grad.full_tensor(), right.grad, 2e-6)


@check(ranks=(2, 3), timeout_s=90)
def fsdp1():
    network = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=True)
    losses = train_together(network, 10, torch.optim.SGD(network.parameters(), lr=0.1))
    alone, expected = train_alone(10)
    same(losses, expected, 2e-6)
    with FullyShardedDataParallel.summon_full_params(network):
        for parameter, right in zip(network.parameters(), alone.parameters(), strict=True):
            same(parameter.detach(), right.detach(), 2e-6)


@check(ranks=(2, 3), timeout_s=90)
def dtensor():
    """All changes between placements of a matrix whose dimensions are not divisible by the number of ranks."""
    mesh = dist.init_device_mesh("cpu", (world(),))
    whole = torch.arange(7 * 5, dtype=torch.float32).reshape(7, 5)
    placements = [Replicate(), Shard(0), Shard(1)]
    for before in placements:
        placed = distribute_tensor(whole, mesh, [before])
        same(placed.full_tensor(), whole)
        for after in placements:
            moved = placed.redistribute(mesh, [after])
            same(moved.full_tensor(), whole)
            same(moved.to_local(), distribute_tensor(whole, mesh, [after]).to_local())
    summands = DTensor.from_local(whole * (rank() + 1), mesh, [Partial()])
    for after in placements:
        same(summands.redistribute(mesh, [after]).full_tensor(), whole * (world() * (world() + 1) // 2))


@check(ranks=(2,))
def dtensor_arithmetic():
    mesh = dist.init_device_mesh("cpu", (world(),))
    left, right = torch.randn(8, 6), torch.randn(6, 4)
    dist.broadcast(left, 0)
    dist.broadcast(right, 0)
    product = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])
    same(product.full_tensor(), left @ right, 1e-5)
    same(distribute_tensor(left, mesh, [Shard(0)]).mean().full_tensor(), left.mean(), 1e-6)
    same(distribute_tensor(left, mesh, [Shard(0)]).max().full_tensor(), left.max())


@check(ranks=(2, 4), timeout_s=90)
def tensor_parallel():
    mesh = dist.init_device_mesh("cpu", (world(),))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
    torch.manual_seed(0)
    alone = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
    network = parallelize_module(network, mesh, plan)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (network, alone)]
    for step in range(5):
        losses = []
        for each, optimizer in zip((network, alone), optimizers, strict=True):
            optimizer.zero_grad()
            loss = loss_of(each, *batch(step))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        same(losses[0], losses[1], 1e-5)
    for parameter, right in zip(network.parameters(), alone.parameters(), strict=True):
        same(parameter.full_tensor().detach(), right.detach(), 1e-5)


@check(ranks=(2, 3))
def functional_collectives():
    """Functional collectives find the group by its name, and wait through torch's registry of works."""
    group = dist.group.WORLD
    mine = torch.full((2 * world(),), float(rank() + 1))
    total = world() * (world() + 1) / 2
    same(funcol.all_reduce(mine, "sum", group) + 0, torch.full((2 * world(),), total))
    same(funcol.all_reduce(mine, "avg", group) + 0, torch.full((2 * world(),), total / world()), 1e-6)
    same(funcol.all_gather_tensor(mine, 0, group) + 0, torch.arange(1.0, world() + 1).repeat_interleave(2 * world()))
    same(funcol.reduce_scatter_tensor(mine, "sum", 0, group) + 0, torch.full((2,), total))
    same(funcol.all_to_all_single(mine, None, None, group) + 0, torch.arange(1.0, world() + 1).repeat_interleave(2))
    same(funcol.broadcast(mine, 1, group) + 0, torch.full((2 * world(),), 2.0))
    for reduced in funcol.all_reduce_coalesced([mine, mine * 2], "max", group):
        assert (reduced + 0).max() in (world(), 2 * world())
    for gathered in funcol.all_gather_into_tensor_coalesced([mine, mine * 2], group):
        assert (gathered + 0).numel() == 2 * world() * world()
    for scattered in funcol.reduce_scatter_tensor_coalesced([mine, mine * 2], "sum", [0, 0], group):
        assert (scattered + 0).numel() == 2
    same(mine, torch.full((2 * world(),), float(rank() + 1)))  # functional collectives do not change their inputs


@check(ranks=(2,))
def functional_collectives_have_gradients():
    mine = torch.full((4,), float(rank() + 1), requires_grad=True)
    summed = dist.nn.functional.all_reduce(mine)
    (summed * (rank() + 1)).sum().backward()
    same(mine.grad, torch.full((4,), 3.0))
    mine = torch.ones(2, requires_grad=True)
    gathered = torch.cat(dist.nn.functional.all_gather(mine))
    (gathered * (rank() + 1)).sum().backward()
    same(mine.grad, torch.full((2,), 3.0))


def compiled(backend):
    group = dist.group.WORLD

    @torch.compile(backend=backend, fullgraph=True)
    def program(tensor):
        summed = funcol.all_reduce(tensor * 2, "sum", group)
        gathered = funcol.all_gather_tensor(summed + 1, 0, group)
        return gathered * 3

    result = program(torch.full((4,), float(rank() + 1)))
    same(result, torch.full((4 * world(),), 3 * (2 * world() * (world() + 1) / 2 + 1)))


@check(ranks=(2,), timeout_s=120)
def compiled_ahead_of_time():
    compiled("aot_eager")


@check(ranks=(2,), timeout_s=180)
def compiled_by_inductor():
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["CHECK_DIRECTORY"] + f"/inductor.{rank()}"
    compiled("inductor")


@check(ranks=(2,), timeout_s=120)
def ddp_compiled():
    network = torch.nn.parallel.DistributedDataParallel(torch.compile(model(), backend="aot_eager"))
    losses = train_together(network, 3, torch.optim.SGD(network.parameters(), lr=0.1))
    same(losses, train_alone(3)[1], 2e-6)


@check(ranks=(2,))
def profiler():
    """A profiler shows each collective as a range "BACKEND:operation" that ends with the operation. torch adds ranges
    "c10d::operation_"."""
    expected = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(4)),
        "broadcast": lambda: dist.broadcast(torch.ones(4), src=0),
        "reduce": lambda: dist.reduce(torch.ones(4), dst=0),
        "all_gather": lambda: dist.all_gather([torch.empty(4) for _ in range(world())], torch.ones(4)),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty(4), torch.ones(4)),
        "barrier": lambda: dist.barrier(),
    }
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        for call in expected.values():
            call()
    names = {event.name for event in profile.events()}
    mine = {name for name in names if name.startswith(os.environ["BACKEND"] + ":")}
    assert "c10d::allreduce_" in names, names
    assert any("all_reduce" in name for name in mine), names
    missing = [name for name in expected if not any(name in each for each in mine) and not cannot(f"profiled {name}")]
    assert not missing, (missing, mine)
    event = next(
        event for event in profile.events() if event.name.startswith(os.environ["BACKEND"]) and "all_reduce" in event.name
    )
    assert event.is_async and event.count == 1 and [list(shape) for shape in event.input_shapes] == [[4]], event.input_shapes
