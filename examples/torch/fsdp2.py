"""Parameters, gradients and the optimizer's state sharded over all ranks (FSDP2's fully_shard), with the backend unisono. Then
one process trains the same model for comparison.

torchrun --nproc-per-node 4 examples/torch/fsdp2.py
"""

import copy
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import unisono.torch  # noqa: F401  # registers the backend

STEPS, BATCH, WIDTH = 20, 8, 64


def make_model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = [torch.nn.Linear(16, WIDTH)]
    for _ in range(3):
        layers.append(
            torch.nn.Sequential(
                torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)
            )
        )
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1))


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(1000 * step + rank))
    return inputs, inputs.square().sum(1, keepdim=True).sqrt()


def train(model: torch.nn.Module, ranks: list[int]) -> list[float]:
    """Trains the model. Each step uses the batches of all given ranks as one batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        inputs, targets = (torch.cat(parts) for parts in zip(*(batch(step, rank) for rank in ranks)))
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> int:
    dist.init_process_group("unisono")
    rank, world = dist.get_rank(), dist.get_world_size()
    sharded = make_model()
    alone = copy.deepcopy(sharded)
    mesh = init_device_mesh("cpu", (world,))
    for layer in [*sharded, sharded]:
        fully_shard(layer, mesh=mesh)
    mine = sum(parameter.to_local().numel() for parameter in sharded.parameters() if isinstance(parameter, DTensor))
    losses = torch.tensor(train(sharded, [rank]))
    dist.all_reduce(losses)
    expected = torch.tensor(train(alone, list(range(world))))
    whole = {name: value.full_tensor() for name, value in sharded.state_dict().items()}
    difference = max(float((whole[name] - value).detach().abs().max()) for name, value in alone.state_dict().items())
    right = torch.allclose(losses / world, expected, rtol=1e-3) and difference < 1e-2
    if rank == 0:
        print(
            f"{world} ranks with {mine:,} of {sum(value.numel() for value in whole.values()):,} parameters here: loss {expected[0]:.4f} -> {losses[-1] / world:.4f}; one process {expected[-1]:.4f}; "
            f"largest difference of a parameter {difference:.1e}: {'the same up to rounding' if right else 'NOT THE SAME'}"
        )
    dist.destroy_process_group()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
