"""Gloo under a name that torch does not know, "disguised": what is bound to the name.

python/tests/torch_suite.py --backends gloo,disguised --bound
"""

import os

import torch.distributed as dist

os.environ["UNISONO_TORCH_SUITE_NO_PROFILING"] = "1"  # its events are called gloo:…
dist.Backend.register_backend(
    "disguised", lambda store, rank, size, timeout: dist.ProcessGroupGloo(store, rank, size, timeout=timeout), devices=["cpu"]
)
