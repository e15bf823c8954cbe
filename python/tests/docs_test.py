"""Runs the programs of docs/start/python.md, and the example, unchanged."""

import os
import re
import subprocess
import sys

import pytest
import ranks

ROOT = os.path.dirname(os.path.dirname(ranks.FOLDER))
PAGE = os.path.join(ROOT, "docs", "start", "python.md")


def programs():
    with open(PAGE) as file:
        return re.findall(r"^```python\n(.*?)^```", file.read(), re.MULTILINE | re.DOTALL)


def run_all(argv, folder, world=2):
    processes = [
        subprocess.Popen(
            argv, env=ranks.environment(rank, world, str(folder)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(world)
    ]
    try:
        return [(process.communicate(timeout=120)[0], process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("number", range(len(programs())))
def test_programs_of_the_page_run(tmp_path, number):
    path = tmp_path / "program.py"
    path.write_text(programs()[number])
    for text, code in run_all([sys.executable, str(path)], tmp_path):
        assert code == 0, text


def test_the_example_finds_the_weights(tmp_path):
    (first, code), *others = run_all(
        [sys.executable, os.path.join(ROOT, "examples", "python", "linear_regression.py")], tmp_path, world=4
    )
    assert code == 0 and all(each == ("", 0) for each in others), first
    assert "ranks agree to the bit: True" in first
    assert float(re.search(r"largest error of a weight ([\d.]+)", first).group(1)) < 0.02
