"""Helpers that the studies (compare_*) share: options of the model, curves, spreads over seeds, axes, the commit."""

import bisect
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from versus_lib import results_file  # noqa: E402

LOSSES = (("training_loss", "training loss"), ("validation_loss", "held-out text"))
STUDENT = {
    2: 12.706,
    3: 4.303,
    4: 3.182,
    5: 2.776,
    6: 2.571,
    7: 2.447,
    8: 2.365,
    9: 2.306,
    10: 2.262,
}  # 97.5 % quantiles, of so many values
PROGRAM = "research/train_model"


def add_model_options(parser, model):
    """An option for each of the model's sizes; None where it is not given."""
    for name, value in model.items():
        parser.add_argument(f"--{name}", type=type(value), help=f"as of train_model (default: {value})")


def set_defaults(options, model):
    for name, value in model.items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def program_words(options, model, folder, seed, steps, validate_every, more):
    """train_model with its options: all that differs between two settings is `more`."""
    words = [
        options.build / PROGRAM,
        "--text",
        options.text,
        "--out",
        folder,
        "--steps",
        steps,
        "--validate-every",
        validate_every,
        "--seed",
        seed,
        "--reference-steps",
        0,
        "--sample",
        0,
        *more,
    ]
    words += [word for name in model for word in (f"--{name}", getattr(options, name))]
    return [str(word) for word in words]


def launched(options, words, variables=None):
    """Runs them on as many processes of this host as there are ranks. variables: of the environment, beside this process's.
    RuntimeError: what they said, if one failed."""
    launch = [str(word) for word in (options.build / "unisono", "launch", "-n", options.ranks, "--")]
    done = subprocess.run(
        [*launch, *words], capture_output=True, text=True, check=False, env={**os.environ, **(variables or {})}
    )
    if done.returncode != 0:
        raise RuntimeError(f"status {done.returncode}\n{done.stdout}{done.stderr}")


def on_this_host(options, words, what):
    """The same; ends the program if that fails."""
    try:
        launched(options, words)
    except RuntimeError as error:
        sys.exit(f"{what}: {error}")


def summary_in(folder):
    return json.loads((pathlib.Path(folder) / "summary.json").read_text())


def curves_of(rows, axes):
    """Losses of every step of a loss.csv, and what the axes (name: digits) say of it."""
    window = max(1, len(rows) // 20)
    losses = [float(row["loss"]) for row in rows]
    return {
        "step": list(range(1, len(rows) + 1)),
        "loss": [round(loss, 5) for loss in losses],
        "smooth_loss": [round(statistics.mean(losses[max(0, i + 1 - window) : i + 1]), 5) for i in range(len(losses))],
        **{
            axis: [round(float(row[axis]), digits) if digits else int(row[axis]) for row in rows]
            for axis, digits in axes.items()
        },
        "held_out": [[int(row["step"]), round(float(row["validation"]), 5)] for row in rows if row["validation"]],
    }


def series(run, loss, axis):
    """Positions on the axis, and the losses there: the held-out loss, or the training loss averaged over a twentieth of the
    steps."""
    if loss == "validation_loss":
        return [run[axis][step - 1] for step, _ in run["held_out"]], [value for _, value in run["held_out"]]
    return run[axis], run["smooth_loss"]


def loss_at(run, loss, axis, position):
    """The loss at a position of the axis, interpolated linearly; None before the first point."""
    positions, values = series(run, loss, axis)
    if position < positions[0]:
        return None
    after = bisect.bisect_left(positions, position)
    if after >= len(positions) or positions[after] == position:
        return values[min(after, len(positions) - 1)]
    share = (position - positions[after - 1]) / (positions[after] - positions[after - 1])
    return values[after - 1] + share * (values[after] - values[after - 1])


def seconds_to(run, target):
    """The time when the held-out loss was first this low; None if it never was."""
    positions, values = series(run, "validation_loss", "seconds")
    for i, value in enumerate(values):
        if value <= target:
            if i == 0:
                return positions[0]
            share = (values[i - 1] - target) / (values[i - 1] - value)
            return positions[i - 1] + share * (positions[i] - positions[i - 1])
    return None


def cell(value, digits=4, sign="+"):
    return "" if value is None else f"{value['mean']:{sign}.{digits}f} ± {value['deviation']:.{digits}f}"


def spread(values):
    return {"mean": statistics.mean(values), "deviation": statistics.stdev(values) if len(values) > 1 else 0.0, "each": values}


def interval(values):
    """The mean, and how far around it the true one is with 95 % confidence; None for a single value."""
    half = STUDENT[len(values)] * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {**spread(values), "half": half}


def tick_distance(span):
    """1, 2 or 5 times a power of ten, so that there are about eight."""
    power = 10.0 ** -9
    while True:
        for factor in (1, 2, 5):
            if span <= 8 * factor * power:
                return factor * power
        power *= 10


def commit():
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def dumps(value):
    """JSON with a line per entry, but lists of numbers in one line."""
    return re.sub(r"\[[-+\d.eE,\s]*\]", lambda found: re.sub(r"\s+", "", found[0]), json.dumps(value, indent=1)) + "\n"


def write_results(folder, name, result, table, svg):
    for ending, content in ((".json", dumps(result)), (".md", table), (".svg", svg)):
        results_file.write_whole(folder / (name + ending), content)


def cores():
    return os.cpu_count()
