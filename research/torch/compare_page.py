"""The methods that compare_methods compares, and the output for its runs: rows, tables, the page, the plot."""

import functools
import itertools
import statistics

from torch_lib import plot
from versus_lib.report import machine_text, markdown_table

SLOW = ["--micro-batches", "4", "--slow", "3:60:0.3"]  # in three of ten steps rank 3 pauses 60 ms in each micro-batch
SGD = ["--optimizer", "sgd", "--momentum", "0", "--rate", "0.1"]
METHODS = {  # name: options of train_gpt.py
    "Gloo": ["--backend", "gloo", "--method", "exact"],
    "exact": ["--method", "exact"],
    "fp16": ["--method", "fp16"],
    "bf16": ["--method", "bf16"],
    "int8": ["--method", "low_bit:int8"],
    "int4 + EF": ["--method", "low_bit:int4+ef"],
    "ARC, EF14": ["--method", "arc:ratio=0.2,rank=4,feedback=ef14"],
    "lossy": ["--method", "lossy"],
    "sharded": ["--method", "sharded"],
    "Moshpit": ["--method", "moshpit"],
    "exact, SGD": ["--method", "exact", *SGD],
    "ARC, EF21M, SGD": ["--method", "arc:ratio=0.2,rank=4,feedback=ef21m", *SGD],
    "exact, late rank": ["--method", "exact", *SLOW],
    "DropCompute, late rank": ["--method", "drop_compute", *SLOW],
}
LAST = 10  # number of steps over which losses are averaged, in the table and in curves
SIZE = (330, 330)
METHOD = f"""Four processes with one thread each share the machine's cores. *Loopback*: started by torchrun on one host. The others: network namespaces, one per process, on one switch; with `tc tbf` in both
directions of every link, or, without a limit of the rate, with nftables dropping that share of the packets that arrive, at random, of all protocols alike. *lossy* and *sharded* go by UDP, all others by TCP, on
loopback through shared memory (whose bytes are not counted). Every row starts from the same parameters. ms per step: median and mean over steps, from the first forward pass to the optimizer's end, mean over ranks.
Loss: mean of the last {LAST} steps; held out: of the same 64 sequences; nats per byte. MB: sent by each rank per step, as its network interface counts. *SGD*: another optimizer than AdamW of all other rows, without
momentum (EF21M has a running mean of its own): its loss is to be held against its own exact row. *Late rank*: as large a batch as 4 micro-batches, of other sequences, and in three of ten steps rank 3 pauses 60 ms
in each of them. Codecs and ARC are left out where they do not pay, as the report says."""


def smooth(values, span=LAST):
    return [statistics.fmean(values[max(0, index - span + 1):index + 1]) for index in range(len(values))]


def row_of(network, method, result):
    """A row from the output of train_gpt.py."""
    steps = result["step_s"]
    return {
        "network": network,
        "method": method,
        "median_ms": 1000 * statistics.median(steps),
        "mean_ms": 1000 * statistics.fmean(steps),
        "last_loss": statistics.fmean(result["loss"][-LAST:]),
        "held_out_loss": result["held_out_loss"],
        "sent_bytes_per_step": result["sent_bytes_per_step"],
        "spread": result["spread"],
        "same_on_all_ranks": result["same_on_all_ranks"],
        "report": result["report"],
        "words": result["report"]["words"],
        "loss": [round(value, 4) for value in result["loss"]],
        "step_s": [round(value, 5) for value in steps],
    }


def together(row):
    return "the same" if row["same_on_all_ranks"] else f"{row['spread']:.2%} apart"


def table(rows):
    lines = [
        [
            "network",
            "method",
            "ms per step",
            "mean",
            "loss",
            "held out",
            "MB sent",
            "parameters of ranks",
            "what it says of itself",
        ]
    ]
    for row in rows:
        if "failed" in row:
            lines.append([row["network"], row["method"], "**failed**", *["-"] * 5, row["failed"]])
        else:
            lines.append(
                [
                    row["network"],
                    row["method"],
                    f"{row['median_ms']:.0f}",
                    f"{row['mean_ms']:.0f}",
                    f"{row['last_loss']:.3f}",
                    f"{row['held_out_loss']:.3f}",
                    f"{row['sent_bytes_per_step'] / 1e6:.2f}",
                    together(row),
                    row["words"],
                ]
            )
    return [[cell.replace("|", "/").replace("\n", " ") for cell in line] for line in lines]


def ordered(runs, networks):
    """Rows by network, then as METHODS has them."""
    names = list(METHODS)
    return sorted(runs, key=lambda row: (networks.index(row["network"]), names.index(row["method"])))


def markdown(data):
    settings = data["settings"]
    facts = f"A GPT of {data['parameters']:,} parameters ({settings['layers']} layers of width {settings['width']}), {settings['steps']} steps, in each {settings['batch']} sequences of {settings['context']} bytes per rank."
    lost = [
        f"{words}: {counts['dropped']:,} of {counts['arrived']:,} packets were dropped ({counts['dropped'] / max(1, counts['arrived']):.2%})."
        for words, counts in data["lost"].items()
    ]
    return "\n".join(
        [
            "# A small GPT with every method",
            "",
            machine_text(data["machine"]),
            "",
            " ".join([facts, *lost]),
            "",
            METHOD,
            "",
            *markdown_table(table(data["runs"])),
            "",
        ]
    )


def draw(data):
    """A row of plots for each network: loss by step, loss by seconds, step times."""
    good = [row for row in data["runs"] if "failed" not in row]
    colours = plot.colours_of(METHODS)
    colours = {name: colours[name] for name in METHODS if any(row["method"] == name for row in good)}
    panels, number = [], (False, lambda value: f"{value:g}")
    for network in dict.fromkeys(row["network"] for row in good):
        mine = [row for row in good if row["network"] == network]
        first = min(LAST, min(len(row["loss"]) for row in mine)) - 1  # index of the first mean over LAST steps
        by_step = [(row["method"], list(enumerate(smooth(row["loss"]), 1))[first:]) for row in mine]
        by_time = [(row["method"], list(zip(itertools.accumulate(row["step_s"]), smooth(row["loss"])))[first:]) for row in mine]
        bars = [
            (row["method"], row["mean_ms"], f"{row['mean_ms']:.0f} ms, {row['sent_bytes_per_step'] / 1e6:.2f} MB sent")
            for row in mine
        ]
        axes = {"colours": colours, "x_axis": number, "y_axis": number, "size": SIZE}
        panels += [
            functools.partial(plot.panel, f"{network}: loss by step", by_step, **axes),
            functools.partial(plot.panel, f"{network}: loss by seconds", by_time, **axes),
            functools.partial(plot.bar_panel, f"{network}: mean step", bars, colours=colours, size=SIZE),
        ]
    if not panels:
        panels = [
            functools.partial(plot.panel, "no run ended well", [], colours=colours, x_axis=number, y_axis=number, size=SIZE)
        ]
    return plot.picture(
        f"A GPT of {data['parameters']:,} parameters by four ranks; losses are means of {LAST} steps, nats per byte",
        panels,
        colours,
        columns=3,
        size=SIZE,
    )
