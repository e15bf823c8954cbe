"""Runs the PyTorch code of docs/start/pytorch.md and the guides unchanged."""

import itertools
import pathlib
import re

import torch

from .ddp import batch, loss_of, model
from .methods_common import check, ut

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
PAGES = [DOCS / "start" / "pytorch.md", *sorted((DOCS / "guides").glob("*.md"))]


def run_blocks(kind, **names):
    """Runs the page's code blocks and returns their number."""
    fence = "{.python ." + kind + "}" if kind else "python"
    blocks = [
        block
        for page in PAGES
        for block in re.findall(rf"^```{re.escape(fence)}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    ]
    for block in blocks:
        if "init_process_group" in block:
            continue
        given = {
            "torch": torch,
            "ut": ut,
            "DistributedDataParallel": torch.nn.parallel.DistributedDataParallel,
            "model": model(),
            "loader": [batch(step) for step in range(3)],
            "steps": 3,
            "batches": itertools.cycle([batch(0), batch(1), batch(2)]),
            "loss_of": lambda network, pair: loss_of(network, *pair),
            "endless": lambda loader: itertools.chain.from_iterable(itertools.repeat(loader)),
        }
        print(block)
        exec(block, given | names)  # the code comes from this repository
    return len(blocks)


@check(ranks=(2,), timeout_s=90)
def examples():
    assert run_blocks("") > 5


@check(ranks=(2,), timeout_s=90, env={"UNISONO_TRANSPORT": "udp"})
def examples_over_datagrams():
    assert run_blocks("udp") == 2


@check(ranks=(1,), group=False)
def examples_without_a_group():
    assert run_blocks("elastic", first=True, seeds=[]) == 1
