"""A multilayer perceptron whose matrices are split over all ranks (DTensor's tensor parallelism), with the backend unisono. For
comparison, each rank also computes the whole perceptron.

  torchrun --nproc-per-node 4 examples/torch/tensor_parallel_mlp.py

The first matrix is split by columns and the second by rows, so the forward and the backward pass need one all-reduce each.
"""

import copy
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import unisono.torch  # noqa: F401  # registers the backend

STEPS, WIDTH = 10, 128


class MLP(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wider, self.narrower = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrower(torch.nn.functional.gelu(self.wider(x)))


def main() -> int:
    dist.init_process_group("unisono")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    whole = MLP()
    split = parallelize_module(
        copy.deepcopy(whole), init_device_mesh("cpu", (world,)), {"wider": ColwiseParallel(), "narrower": RowwiseParallel()}
    )
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (split, whole)]
    largest = 0.0
    for step in range(STEPS):
        # All ranks have the same input, because the model is split and not the data.
        inputs = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(step))
        outputs = [model(inputs) for model in (split, whole)]
        largest = max(largest, float((outputs[0] - outputs[1]).detach().abs().max()))
        for output, optimizer in zip(outputs, optimizers):
            optimizer.zero_grad()
            (output - inputs.flip(1)).square().mean().backward()
            optimizer.step()
    weights = {name: value.full_tensor() for name, value in split.named_parameters()}
    difference = max(float((weights[name] - value).detach().abs().max()) for name, value in whole.named_parameters())
    right = largest < 1e-4 and difference < 1e-4
    if rank == 0:
        print(
            f"{world} ranks with {split.wider.weight.to_local().shape[0]} of {4 * WIDTH} columns each, {STEPS} steps: outputs differ from the whole model's by {largest:.1e} at most, "
            f"parameters by {difference:.1e}: {'the same up to rounding' if right else 'NOT THE SAME'}"
        )
    dist.destroy_process_group()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
