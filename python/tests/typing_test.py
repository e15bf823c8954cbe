"""The package's type stubs: they match the module, suffice for a strict user, and reveal wrong programs."""

import subprocess
import sys

import pytest

GOOD = """
import numpy as np
from numpy.typing import NDArray

import unisono


class Momentum(unisono.ShardOptimizer):
    state_count = 1

    def update(self, task: unisono.ShardUpdate) -> None:
        (momentum,) = task.states
        momentum *= 0.9
        momentum += task.scale * task.gradient
        task.values -= np.float32(task.rate) * momentum


def main() -> None:
    options: unisono.JoinOptions = {"rank": 0, "world_size": 1, "timeout": 5.0}
    group: unisono.Group = unisono.join(**options)
    x: NDArray[np.float32] = np.ones(3, np.float32)
    report = group.all_reduce(x, op="avg", schedule="ring", codec=unisono.Codec("int8"), timeout=1)
    same: unisono.CallOptions = {"op": "max"}
    work = group.all_reduce_async(bytearray(4), **same)
    print(work.wait(timeout=3).total_us + report.sent_bytes, report.snr_db(), group.all_gather(x).output.shape)
    group.reduce_scatter(x, counts=[3])
    reducer = unisono.GradientReducer(group, {"w": (3, 4), "b": x}, "arc:ratio=0.2")
    reducer.reduce({"w": np.ones((3, 4), np.float32)})
    print(reducer.finish().costs.collectives, reducer.resume(group).lost[0].member.host)
    drop = unisono.DropCompute(group, 4, unisono.DropOptions("auto", window=50))
    print(drop.run(x, compute=lambda position, gradients: None, apply=lambda gradients, step: None).scale)
    step = unisono.ShardedStep(group, x, Momentum(0.1), "loss_budget=0.2")
    unisono.ShardedStep(group, x, unisono.AdamW(rate=1e-3), unisono.ShardedOptions(values="bf16"))
    drift = step.run(x).drift
    if drift is not None:
        print(drift.owner)
    with unisono.Elastic.join(run_id="x", seeds=["10.0.0.1:4040"], tensor_elements=[3]) as run:
        print(run.average([x], weight=2).rounds[0].outcome, run.average_async(x).wait().exact)
        sgd = unisono.MoshpitSgd(run, x, "local_steps=8")
        sgd.give_state(lambda: {"adam": b""})
        averaged = sgd.after_step(x, samples=8).averaging
        print(None if averaged is None else averaged.seconds)
    try:
        group.barrier()
    except unisono.PeerLost as error:
        code: str = error.code
        print(code, [member.rank for member in group.reform().lost])


main()
"""
BAD = {
    "group.all_reduce([1.0])": "arg-type",
    "group.all_reduce(x, op='mean')": "arg-type",
    "group.all_reduce(x, opp='sum')": "call-arg",
    "group.ranks": "attr-defined",
    "unisono.join(rank='0')": "arg-type",
    "group.broadcast(x, root='a')": "arg-type",
    "group.barrier().total_us = 3": "misc",
}


def mypy(folder, text):
    (folder / "program.py").write_text(text)
    argv = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), "program.py"]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=300)


def test_a_strict_program_has_no_errors_and_wrong_lines_have(tmp_path):
    pytest.importorskip("mypy")
    good = mypy(tmp_path, GOOD)
    assert good.returncode == 0, good.stdout
    head = "import numpy as np\nimport unisono\ngroup = unisono.join()\nx = np.ones(3, np.float32)\n"
    bad = mypy(tmp_path, head + "\n".join(BAD) + "\n")
    for line, (text, kind) in enumerate(BAD.items(), head.count("\n") + 1):
        assert any(
            answer.startswith(f"program.py:{line}: error") and answer.endswith(f"[{kind}]")
            for answer in bad.stdout.splitlines()
        ), f"{text}: {bad.stdout}"


def test_the_stub_says_what_the_module_has(tmp_path):
    pytest.importorskip("mypy")
    answer = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "unisono._core"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    # pybind11's classes have another metaclass. Without a bound constructor they seem to accept any arguments, and then refuse
    # them.
    harmless = ("metaclass differs", 'stub does not have *args parameter "args"')
    problems = [line for line in answer.stdout.splitlines() if line.startswith("error") and not line.endswith(harmless)]
    assert not problems, answer.stdout
    assert "Found" in answer.stdout or "Success" in answer.stdout, answer.stdout + answer.stderr
