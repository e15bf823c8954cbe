"""Rounds of hivemind's averaging, for bench/moshpit: installs the library, and runs bench/peers/hivemind_bench.py with each
setting."""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HIVEMIND = "hivemind==1.1.12"


def hivemind_python():
    """An interpreter that has it, installed if need be; RuntimeError says why not."""
    folder = ROOT / "build/hivemind"
    python = folder / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    if subprocess.run([python, "-c", "import hivemind"], capture_output=True, check=False).returncode != 0:
        done = subprocess.run([python, "-m", "pip", "install", HIVEMIND], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{HIVEMIND} is not installed: {done.stderr.strip().splitlines()[-1:]}")
        done = subprocess.run([python, "-c", "import hivemind"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{HIVEMIND} does not start: {done.stderr.strip().splitlines()[-1:]}")
    return python


def measure(options):
    """One result per way of matchmaking. A run that fails has "failed" instead of numbers. RuntimeError: hivemind is not
    there."""
    python = hivemind_python()
    rounds = []
    for matchmaking in options.hivemind_matchmaking.split(","):
        words = [
            python,
            "-B",
            ROOT / "bench/peers/hivemind_bench.py",
            "--peers",
            options.peers,
            "--elements",
            options.elements,
            "--rounds",
            options.hivemind_rounds,
            "--matchmaking",
            matchmaking,
        ]
        try:
            done = subprocess.run(
                [str(word) for word in words],
                capture_output=True,
                text=True,
                timeout=120 + 30 * options.hivemind_rounds,
                check=False,
            )
            rounds.append({"matchmaking": matchmaking, **json.loads(done.stdout.splitlines()[-1])})
        except subprocess.TimeoutExpired:
            rounds.append({"matchmaking": matchmaking, "failed": "no end in time"})
        except (IndexError, json.JSONDecodeError):
            rounds.append(
                {"matchmaking": matchmaking, "failed": f"status {done.returncode}: {done.stderr.strip()[-300:]}"}
            )
    return rounds
