"""DistributedDataParallel (DDP): gradients in several buckets, DDP's options, uneven inputs, sharded optimizers. Results are
compared with one process that sees all inputs.
"""

import copy

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .common import check, rank, same, same_on_all_ranks, world

BATCH = 84  # a multiple of all tested numbers of ranks: 1, 2, 3, 4 and 7
SMALL = 0.0005  # MiB per bucket, so that a bucket has two or three parameters


def model(seed=0):
    torch.manual_seed(seed)
    layers = [
        torch.nn.Linear(12, 32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, 32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, 16),
        torch.nn.Tanh(),
    ]
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 3))


def batch(step):
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(BATCH, 12, generator=generator), torch.randn(BATCH, 3, generator=generator)


def loss_of(network, inputs, targets):
    return torch.nn.functional.mse_loss(network(inputs), targets)


def train_alone(steps, optimizer=None, first=None):
    network = first or model()
    optimizer = (optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1)))(network.parameters())
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(network, *batch(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return network, torch.stack(losses)


def my_part(whole):
    return whole.chunk(world())[rank()]


def train_together(network, steps, optimizer):
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(network, *map(my_part, batch(step)))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    losses = torch.stack(losses)
    dist.all_reduce(losses)
    return losses / world()


def equal_to_alone(network, losses, steps=10, tolerance=2e-6, optimizer=None):
    alone, expected = train_alone(steps, optimizer)
    same(losses, expected, tolerance)
    for parameter, right in zip(network.parameters(), alone.parameters(), strict=True):
        same_on_all_ranks(parameter)
        same(parameter.detach(), right.detach(), tolerance)


def buckets(network):
    log = network._get_ddp_logging_data()
    return (log.get("rebuilt_bucket_sizes") or log["bucket_sizes"]).split(",")


@check(ranks=(1, 2, 3, 4, 7), timeout_s=120)
def equal_to_one_process():
    network = DistributedDataParallel(model(), bucket_cap_mb=SMALL)
    losses = train_together(network, 10, torch.optim.SGD(network.parameters(), lr=0.1))
    assert len(buckets(network)) >= 3, buckets(network)
    equal_to_alone(network, losses)


@check(ranks=(3,), timeout_s=120)
def options():
    """Each option of DDP, with several buckets, gives the same parameters."""
    cases = [
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"static_graph": True, "gradient_as_bucket_view": True},
        {"broadcast_buffers": False},
        {"bucket_cap_mb": 25},
    ]
    for case in cases:
        network = DistributedDataParallel(model(), **({"bucket_cap_mb": SMALL} | case))
        losses = train_together(network, 10, torch.optim.SGD(network.parameters(), lr=0.1))
        equal_to_alone(network, losses)


@check(ranks=(2, 3))
def parameters_of_rank_0_are_taken():
    network = DistributedDataParallel(model(seed=rank()))
    for parameter, right in zip(network.parameters(), model(seed=0).parameters(), strict=True):
        same(parameter.detach(), right.detach())


@check(ranks=(2,))
def models_that_differ_are_refused():
    layers = 3 if rank() == 0 else 2
    try:
        DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(layers)]))
    except RuntimeError as error:
        print(error)
    else:
        raise AssertionError("nothing was raised")


class Branches(torch.nn.Module):
    """Uses one of two branches."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.last = torch.nn.Linear(12, 8), torch.nn.Linear(12, 8), torch.nn.Linear(8, 3)

    def forward(self, inputs, left):
        return self.last((self.left if left else self.right)(inputs))


@check(ranks=(2, 3))
def unused_parameters():
    """All ranks take the left branch, then each rank takes another branch. A missing gradient counts as zero."""
    torch.manual_seed(0)
    network = DistributedDataParallel(Branches(), find_unused_parameters=True, bucket_cap_mb=SMALL)
    reference = copy.deepcopy(network.module)
    for step, choice in enumerate([lambda _: True, lambda of: of == 0, lambda _: False, lambda of: of != 0]):
        network.zero_grad()
        reference.zero_grad()
        inputs, targets = batch(step)
        torch.nn.functional.mse_loss(network(my_part(inputs), choice(rank())), my_part(targets)).backward()
        for of in range(world()):
            output = reference(inputs.chunk(world())[of], choice(of))
            (torch.nn.functional.mse_loss(output, targets.chunk(world())[of]) / world()).backward()
        for parameter, right in zip(network.parameters(), reference.parameters(), strict=True):
            if right.grad is not None:
                same(parameter.grad, right.grad, 1e-6)


@check(ranks=(2, 3))
def no_sync():
    """Accumulates the gradients of two micro-batches; only the second one is averaged."""
    network = DistributedDataParallel(model(), bucket_cap_mb=SMALL)
    for step in range(4):
        network.zero_grad()
        alone = model()
        with network.no_sync():
            loss_of(network, *map(my_part, batch(step))).backward()
        loss_of(network, *map(my_part, batch(step + 50))).backward()
        for number in (step, step + 50):
            loss_of(alone, *batch(number)).backward()
        for parameter, right in zip(network.parameters(), alone.parameters(), strict=True):
            same(parameter.grad, right.grad, 2e-6)


@check(ranks=(2, 3))
def buffers_are_broadcast():
    network = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    network = DistributedDataParallel(network)
    for step in range(3):
        loss_of(network, *map(my_part, batch(step))).backward()
    network(torch.randn(8, 12))
    network.eval()
    network(torch.zeros(2, 12))
    network.train()
    network.module[1].momentum = 0.0
    network(torch.randn(8, 12))  # the forward pass broadcasts rank 0's running averages; this rank's step adds nothing
    same_on_all_ranks(network.module[1].running_mean)


@check(ranks=(2, 3))
def half_precision_parameters():
    for dtype in (torch.bfloat16, torch.float16):
        network = DistributedDataParallel(torch.nn.Linear(8, 4).to(dtype), bucket_cap_mb=SMALL)
        for _ in range(3):
            network.zero_grad()
            network(torch.ones(2, 8, dtype=dtype) * (rank() + 1)).sum().backward()
            same_on_all_ranks(network.module.weight.grad)
            same(network.module.bias.grad, torch.full((4,), 2.0, dtype=dtype), 1e-2)
            same(network.module.weight.grad, torch.full((4, 8), float(world() + 1), dtype=dtype), 1e-2)


@check(ranks=(3,))
def in_a_sub_group():
    group = dist.new_group([0, 2])
    if rank() == 1:
        return
    network = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=SMALL)
    for step in range(3):
        network.zero_grad()
        loss_of(network, *(part.chunk(2)[rank() // 2] for part in batch(step))).backward()
        alone = model()
        loss_of(alone, *batch(step)).backward()
        for parameter, right in zip(network.parameters(), alone.parameters(), strict=True):
            same(parameter.grad, right.grad, 2e-6)


@check(ranks=(2, 3), timeout_s=90)
def join_with_uneven_inputs():
    """Rank r has 3 + r batches. A rank that has finished takes part in the collectives of the other ranks."""
    for by_initial in (True, False):
        network = DistributedDataParallel(torch.nn.Linear(4, 2, bias=False), bucket_cap_mb=SMALL)
        with torch.no_grad():
            network.module.weight.zero_()
        dist.barrier()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.25)
        with Join([network], divide_by_initial_world_size=by_initial):
            for _ in range(3 + rank()):
                optimizer.zero_grad()
                network(torch.full((1, 4), float(rank() + 1))).sum().backward()
                optimizer.step()
        expected = 0.0
        for step in range(3 + world() - 1):
            living = [of for of in range(world()) if step < 3 + of]
            expected -= 0.25 * sum(of + 1 for of in living) / (world() if by_initial else len(living))
        same(network.module.weight.detach(), torch.full((2, 4), expected), 1e-6)


@check(ranks=(2, 3), timeout_s=90)
def zero_redundancy_optimizer():
    network = DistributedDataParallel(model(), bucket_cap_mb=SMALL)
    optimizer = ZeroRedundancyOptimizer(network.parameters(), torch.optim.Adam, lr=0.01)
    losses = train_together(network, 10, optimizer)
    equal_to_alone(network, losses, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01), tolerance=1e-4)
    optimizer.consolidate_state_dict(to=0)
    if rank() == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(network.parameters()))


@check(ranks=(2,), timeout_s=90)
def zero_redundancy_optimizer_with_parameters_as_bucket_view():
    network = DistributedDataParallel(model(), bucket_cap_mb=SMALL, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(network.parameters(), torch.optim.SGD, parameters_as_bucket_view=True, lr=0.1)
    equal_to_alone(network, train_together(network, 10, optimizer))


@check(ranks=(2,))
def logging_data():
    network = DistributedDataParallel(model(), bucket_cap_mb=SMALL)
    for step in range(11):
        loss_of(network, *map(my_part, batch(step))).backward()
    log = network._get_ddp_logging_data()
    expected = {"world_size": world(), "rank": rank(), "module_name": "Sequential", "dtypes": "float", "has_rebuilt_buckets": 1}
    assert expected.items() <= log.items(), log
    assert log["iteration"] >= 10 and sum(map(int, buckets(network))) == sum(p.numel() * 4 for p in network.parameters())
    assert log["avg_backward_comm_time"] > 0 and log["backend_name"]


@check(ranks=(2,), timeout_s=90)
def two_models_in_one_step():
    """The buckets of two models are in flight at once."""
    networks = [DistributedDataParallel(model(seed), bucket_cap_mb=SMALL) for seed in (0, 1)]
    for step in range(5):
        inputs, targets = map(my_part, batch(step))
        for network in networks:
            network.zero_grad()
        (loss_of(networks[0], inputs, targets) + loss_of(networks[1], inputs, targets)).backward()
        for seed, network in enumerate(networks):
            alone = model(seed)
            loss_of(alone, *batch(step)).backward()
            for parameter, right in zip(network.parameters(), alone.parameters(), strict=True):
                same(parameter.grad, right.grad, 2e-6)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((12,), index / 64)


@check(ranks=(2,), timeout_s=120)
def forked_data_loaders():
    """Worker processes are forked in every epoch, while a group exists and a collective is in flight."""
    network = DistributedDataParallel(model(), bucket_cap_mb=SMALL)
    sampler = torch.utils.data.distributed.DistributedSampler(Numbers(), shuffle=True)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        running = torch.full((1 << 16,), 1.0)
        work = dist.all_reduce(running, async_op=True)
        seen = 0
        for inputs in torch.utils.data.DataLoader(
            Numbers(), batch_size=8, sampler=sampler, num_workers=2, multiprocessing_context="fork"
        ):
            network.zero_grad()
            network(inputs).pow(2).mean().backward()
            seen += len(inputs)
        work.wait()
        same(running, torch.full((1 << 16,), float(world())))
        assert seen == 64 // world()
        for parameter in network.parameters():
            same_on_all_ranks(parameter.grad)
