"""The backend "unisono" with tensors of an accelerator: on a device that fake_device/fake_device.cc simulates, and on a CUDA
device if there is one.

The simulated device is compiled once, into build/fake_device.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("unisono.torch", reason="the backend for torch is not installed", exc_type=ImportError)
import torch  # noqa: E402

TESTS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS))
from torch_checks import common, launcher  # noqa: E402

common.import_checks()
from torch_checks import device as _  # noqa: E402, F401

CASES = [
    (function, ranks)
    for module, function in common.CHECKS
    if module == "device"
    for ranks in common.CHECKS[module, function]["ranks"]
]


@pytest.fixture(scope="module")
def fake_device():
    if shutil.which(os.environ.get("CXX", "c++")) is None or shutil.which("ninja") is None:
        pytest.skip("no compiler, or no ninja, to build the simulated device with")
    directory = TESTS.parent.parent / "build" / "fake_device"
    directory.mkdir(parents=True, exist_ok=True)
    source = TESTS / "fake_device" / "fake_device.cc"
    program = f"""from torch.utils.cpp_extension import load
load("unisono_fake_device", [{str(source)!r}], extra_cflags=["-std=c++20", "-O1"], build_directory={str(directory)!r}, is_python_module=False)"""
    subprocess.run(
        [sys.executable, "-c", program], check=True
    )  # a child process builds and loads the device, so that this process does not load it
    yield str(directory / "unisono_fake_device.so")
    launcher.stop()


@pytest.mark.parametrize("function,ranks", [case for case in CASES if case[0] != "cuda"])
def test_on_a_simulated_device(fake_device, function, ranks):
    options = common.CHECKS["device", function]
    launcher.run_ranks(
        "device",
        function,
        ranks,
        "unisono",
        options["timeout_s"],
        {"FAKE_DEVICE": fake_device},
        (1,) if function == "a_rank_that_is_lost" else (),
    ).raise_if_failed()


# Tests the order of streams on a real device. Where there is none, only the simulated device above is tested.
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_cuda_device():
    launcher.run_ranks("device", "cuda", 2, "unisono", fresh=True).raise_if_failed()
