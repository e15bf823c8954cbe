"""What compare_codecs and compare_compression have in common: options of the model, spreads over seeds, axes, the commit."""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))

LOSSES = (("training_loss", "training loss"), ("validation_loss", "held-out text"))
PROGRAM = "examples/language_model/language_model"


def add_model_options(parser, model):
    """An option for each of the model's sizes; None where it is not given."""
    for name, value in model.items():
        parser.add_argument(f"--{name}", type=type(value), help=f"as of language_model (default: {value})")


def set_defaults(options, model):
    for name, value in model.items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def program_words(options, model, place, seed, steps, validate_every, more):
    """language_model with its options: all that differs between two settings is `more`."""
    words = [options.build / PROGRAM, "--text", options.text, "--out", place, "--steps", steps, "--validate-every", validate_every,
             "--seed", seed, "--reference-steps", 0, "--sample", 0, *more]
    words += [word for name in model for word in (f"--{name}", getattr(options, name))]
    return [str(word) for word in words]


def on_this_host(options, words, what):
    """Runs them on as many processes of this host as there are ranks; ends the program if that fails."""
    launch = [str(word) for word in (options.build / "unisono", "launch", "-n", options.ranks, "--")]
    done = subprocess.run([*launch, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{what}: status {done.returncode}\n{done.stdout}{done.stderr}")


def summary_in(place):
    return json.loads((pathlib.Path(place) / "summary.json").read_text())


def spread(values):
    return {"mean": statistics.mean(values), "deviation": statistics.stdev(values) if len(values) > 1 else 0.0, "each": values}


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
    folder.mkdir(parents=True, exist_ok=True)
    for ending, content in ((".json", dumps(result)), (".md", table), (".svg", svg)):
        (folder / (name + ending)).write_text(content)


def cores():
    return os.cpu_count()
