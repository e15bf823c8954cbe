"""The comparisons of bench/torch_training, its marks, and the rows, verdicts and page that it makes of the ranks' steps."""

import statistics

from versus_lib.report import machine_text, markdown_table

ARMS = {  # name: (backend, hook)
    "gloo fp32": ("gloo", "exact"),
    "gloo fp16": ("gloo", "fp16"),
    "gloo bf16": ("gloo", "bf16"),
    "gloo PowerSGD": ("gloo", "powersgd:4"),
    "unisono fp32": ("unisono", "exact"),
    "unisono bf16": ("unisono", "bf16"),
    "unisono int8": ("unisono", "low_bit:int8"),
    "unisono int4": ("unisono", "low_bit:int4"),
    "unisono int4+EF": ("unisono", "low_bit:int4+ef"),
    "unisono ARC": ("unisono", "arc:0.2"),
    "unisono PowerSGD": ("unisono", "powersgd:4"),
}
# PowerSGD's callbacks start collectives in whatever order buckets come, on each rank another, which Gloo aborts on: with it,
# one bucket.
OWN_BUCKETS = {"gloo PowerSGD": {"bucket_mb": 1 << 20}}
MARKS_S = {
    "unisono bf16": 0.24,
    "unisono int8": 0.15,
    "unisono int4": 0.10,
    "unisono int4+EF": 0.10,
    "unisono ARC": 0.13,
}  # communication per step at most; unisono fp32: that of gloo fp32
# The long run: ways of training, in words of train_gpt.py. adamw: short and steep. muon: longer, to a rate of zero.
RECIPES = {
    "adamw": {
        "optimizer": "adamw",
        "steps": 500,
        "batch": 4,
        "context": 64,
        "layers": 4,
        "width": 192,
        "heads": 4,
        "method-start": 20,
        "held-out": 64,
    },
    "muon": {
        "optimizer": "muon",
        "rate": 0.02,
        "last-rate": 0,
        "clip": 1,
        "steps": 12000,
        "batch": 4,
        "context": 64,
        "layers": 2,
        "width": 96,
        "heads": 4,
        "method-start": 1200,
        "held-out": 1024,
    },
}
QUICK = {"steps": 4, "batch": 1, "context": 32, "layers": 1, "width": 32, "heads": 2, "method-start": 2, "held-out": 8}
# Its arms, and by how much the held-out loss may be above that of fp32. The second one sums the same numbers in another order:
# what differs there is what roundings alone come to.
LONG_ARMS = {
    "fp32": ("exact", None),
    "fp32, ring": ("exact", None),
    "int8": ("low_bit:int8+always", 0.002),
    "int4, error feedback": ("low_bit:int4+ef+always", 0.005),
    "ARC 0.2, error feedback": ("arc:0.2+always", 0.005),
}
LONG_ENVIRONMENT = {"fp32, ring": {"UNISONO_SCHEDULE": "ring", "UNISONO_ORDER": "any"}}


def quartiles(values):
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3


def rows_of(steps, arms):
    """One per arm that was measured; steps before 0 warm up. The pass without the exchange is the same work in every arm, so
    its time is that of all of them together."""
    steps = [line for line in steps if line["step"] >= 0]
    by_step = {}
    for line in steps:
        by_step.setdefault(line["step"], []).append(line["alone_s"])
    by_step = {step: statistics.median(times) for step, times in by_step.items()}
    rows = []
    for name in arms:
        mine = [line for line in steps if line["arm"] == name]
        if not mine:
            continue
        exchange, alone = statistics.median(line["exchange_s"] for line in mine), statistics.median(
            line["alone_s"] for line in steps
        )
        low, _, high = quartiles([line["exchange_s"] - by_step[line["step"]] for line in mine])
        rows.append(
            {
                "arm": name,
                "hook": ARMS[name][1],
                "exchange_s": exchange,
                "alone_s": alone,
                "communication_s": exchange - alone,
                "low_s": low,
                "high_s": high,
                "sent_bytes": statistics.median(line["sent_bytes"] for line in mine),
                "steps": len(mine),
                "last_loss": statistics.mean(line["loss"] for line in mine[-5:]),
            }
        )
    return rows


def marks_of(rows):
    by_name = {row["arm"]: row["communication_s"] for row in rows}
    wanted = {"unisono fp32": by_name.get("gloo fp32"), **MARKS_S}
    return [
        {
            "what": f"{name}: communication per step",
            "value": by_name.get(name),
            "mark": mark,
            "met": None if name not in by_name or mark is None else by_name[name] <= mark,
        }
        for name, mark in wanted.items()
    ]


def long_rows(runs):
    """runs: {"arm", "seed", "held_out_loss", "loss"}. One row per arm: the mean over seeds, and of what it is above fp32 with
    the same seed."""
    exact = {run["seed"]: run["held_out_loss"] for run in runs if run["arm"] == "fp32"}
    rows = []
    for name, (_, mark) in LONG_ARMS.items():
        mine = [run for run in runs if run["arm"] == name and run["seed"] in exact]
        if not mine:
            continue
        above = [run["held_out_loss"] / exact[run["seed"]] - 1 for run in mine]
        mean = statistics.mean(above)
        rows.append(
            {
                "arm": name,
                "seeds": len(mine),
                "held_out_loss": statistics.mean(run["held_out_loss"] for run in mine),
                "above": above,
                "mean_above": mean,
                "mark": mark,
                "met": None if mark is None else mean <= mark,
            }
        )
    return rows


METHOD = """Four hosts (network namespaces) with links of the rate given, `tc tbf` in both directions; one process on each, with one thread, and of each row a copy of the same model with its own
DistributedDataParallel. In each step every row in turn, every other step the other way round: forward and backward with the exchange, and the same under `no_sync`, from when all ranks begin until the last
one is done; communication is the difference of the medians of the former and of the latter, which is the same work in all rows and counted over all of them; beside it the quartiles of the differences by step. Gradients
live in the buckets (`gradient_as_bucket_view`) and buckets are of the size given unless said otherwise, for all rows alike. It is what backward has to wait for, and what the exchange takes of the cores, which all ranks
share. The optimizer's step is not in it. PowerSGD over Gloo has one bucket: with several, its callbacks start collectives in another order on each rank, and Gloo ends the processes."""
WORDS = {True: "met", False: "**missed**", None: "open"}


def step_table(rows):
    lines = [
        [
            "gradients",
            "hook",
            "with exchange",
            "without",
            "communication",
            "quartiles",
            "sent per rank and step",
            "loss at the end",
        ]
    ]
    return lines + [
        [
            row["arm"],
            row["hook"],
            f"{row['exchange_s']:.3f} s",
            f"{row['alone_s']:.3f} s",
            f"{row['communication_s']:.3f} s",
            f"{row['low_s']:.3f} to {row['high_s']:.3f} s",
            f"{row['sent_bytes'] / 1e6:.1f} MB",
            f"{row['last_loss']:.3f}",
        ]
        for row in rows
    ]


def marks_table(marks):
    return [["what", "reached", "mark", ""]] + [
        [
            one["what"],
            "-" if one["value"] is None else f"{one['value']:.3f} s",
            "-" if one["mark"] is None else f"≤ {one['mark']:.3f} s",
            WORDS[one["met"]],
        ]
        for one in marks
    ]


def long_table(rows):
    lines = [["gradients", "held-out loss", "above fp32, mean of seeds", "by seed", "mark", ""]]
    return lines + [
        [
            row["arm"],
            f"{row['held_out_loss']:.4f}",
            f"{row['mean_above']:+.3%}",
            ", ".join(f"{value:+.3%}" for value in row["above"]),
            "-" if row["mark"] is None else f"≤ {row['mark']:.1%}",
            "-" if row["mark"] is None else WORDS[row["met"]],
        ]
        for row in rows
    ]


def markdown(data):
    out = ["# Training by DistributedDataParallel over thin links", ""]
    if data["summary"]:
        out += [
            machine_text(data["machine"]),
            "",
            f"{data['parameters']:,} parameters ({4 * data['parameters'] / 1e6:.1f} MB of gradients), {data['options']['batch']} sequences of {data['options']['context']} bytes per rank, {data['options']['steps']} steps, "
            f"links of {data['options']['rate'] / 1e9:g} Gbit/s, buckets of {data['options']['bucket_mb']:g} MB{'' if data['options']['bucket_view'] else ', gradients copied into them and back'},  TCP congestion control there: {data['options']['congestion_control'] or 'as in the machine'}.",
            "",
            METHOD,
            "",
            *markdown_table(step_table(data["summary"])),
            "",
            "## Marks",
            "",
            *markdown_table(marks_table(data["marks"])),
            "",
        ]
    if data["missing"]:
        out += ["Not measured:", "", *(f"- {name}: {why}" for name, why in data["missing"].items()), ""]
    if data["long"]:
        out += [
            "## What it does to the loss",
            "",
            "Smaller models than above, inside one host, so that all runs end in reasonable time. What is held out is nats per byte, of the same sequences for all.",
            "",
        ]
    for recipe, part in data["long"].items():
        options = part["options"]
        settings = ", ".join(
            f"`--{name} {options[name]:g}`" for name in ("rate", "last-rate", "clip", "method-start") if name in options
        )
        out += [
            f"**{recipe}**: {options['parameters']:,} parameters ({options['layers']} layers of width {options['width']}), {options['steps']} steps of 4 ranks with {options['batch']} sequences of {options['context']} bytes each, "
            f"{options['held-out']} sequences held out; {settings}. {machine_text(part['machine'])}",
            "",
            *markdown_table(long_table(part["rows"])),
            "",
        ]
    return "\n".join(out)
