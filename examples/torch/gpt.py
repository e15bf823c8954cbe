"""A small GPT over bytes, and the text from which it learns."""

import math
import pathlib

import torch
import torch.nn.functional as functional
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mixing = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wider, self.narrower = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.attention(self.before_attention(x)).chunk(3, dim=2)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joined(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrower(functional.gelu(self.wider(self.before_mixing(x))))


class GPT(nn.Module):
    """Maps (batch, length) bytes to (batch, length, 256) logits of the next bytes. Has 10.9 million parameters by default."""

    def __init__(self, layers: int = 6, width: int = 384, heads: int = 6, context: int = 256) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.last, self.logits = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # Weights of layers that add to the residual stream are smaller, the more layers there are, as in GPT-2.
                adds = name.endswith(("joined.weight", "narrower.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if adds else 0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.bytes(text) + self.places(torch.arange(text.shape[1], device=text.device))
        return self.logits(self.last(self.blocks(x)))


def loss_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Returns the mean loss in nats per byte."""
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


class Text:
    """The bytes of a file: the first nine tenths for training, the rest held out."""

    def __init__(self, path: pathlib.Path, context: int) -> None:
        everything = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
        split = len(everything) * 9 // 10
        self.training, self.held_out, self.context = everything[:split], everything[split:], context
        if len(self.held_out) <= context + 1:
            raise ValueError(f"{path} has {len(everything)} bytes, and each sequence has {context}: a longer text is needed")

    def sequences(self, part: torch.Tensor, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(part) - self.context - 1, (count,), generator=generator)
        chosen = torch.stack([part[start:start + self.context + 1] for start in starts.tolist()]).long()
        return chosen[:, :-1], chosen[:, 1:]

    def batch(self, seed: int, step: int, rank: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a random batch. It depends on the arguments only, not on earlier calls."""
        return self.sequences(self.training, count, torch.Generator().manual_seed(seed * 1_000_003 + step * 1009 + rank))

    def held_out_batch(self, number: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.sequences(self.held_out, count, torch.Generator().manual_seed(number))
