"""Registers Gloo under the name "disguised", which torch does not know, to find the bodies that depend on Gloo's name.

python/tests/torch_suite.py --backends gloo,disguised --bound
"""

import os

import torch.distributed as dist

os.environ["UNISONO_TORCH_SUITE_NO_PROFILING"] = "1"  # profiling events are still called gloo:…
dist.Backend.register_backend(
    "disguised", lambda store, rank, size, timeout: dist.ProcessGroupGloo(store, rank, size, timeout=timeout), devices=["cpu"]
)
