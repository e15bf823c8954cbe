"""The page and the figure of bench/elastic_training. That script puts the folders of these modules onto the path."""

import statistics

import comparison
from packet_loss_plot import BELOW, COLOURS, HEIGHT, LEFT, TOP, WIDTH, Panel

from .plot import rectangle

LOSS_MARK, USEFUL_MARK = 1.0, 95.0  # percent


def change(run, way):
    """The change of the held-out loss, in percent of steady's; None if one is missing."""
    mine, base = (run["ways"].get(name, {}).get("held_out") for name in (way, "steady"))
    return None if mine is None or base is None else 100 * (mine / base - 1)


def verdict(values, mark, above):
    """values: over seeds. above: the mean may not be."""
    values = [value for value in values if value is not None]
    if not values:
        return ""
    mean = statistics.mean(values)
    return "met" if (mean <= mark if above else mean >= mark) else "missed"


def cell(values, digits, sign=""):
    values = [value for value in values if value is not None]
    if not values:
        return ""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.{digits}f}{deviation}"


def page_of(runs, options, model):
    """Markdown. model: the names of the options that describe the model."""
    model = ", ".join(f"{name} {getattr(options, name):g}" for name in model)
    changes = sum(event[0] > 0 for event in runs[0]["events"])
    lines = [
        "# Training while machines come and go",
        "",
        f"{options.peers} peers on {comparison.cores()} cores; {options.seconds:g} s, {changes} times one came or went; {options.sgd}; {model}; {len(runs)} seeds; commit {comparison.commit()}.",
        "",
        "| way | peer-steps | loss on held-out text | change, % of steady | useful time, % | averaging steps of peers: exact, % | processes |",
        "|---" * 7 + "|",
    ]
    for way in options.ways:
        found = [run["ways"][way] for run in runs]
        exact = [100 * one["exact"] / one["averaging_steps"] for one in found if one["averaging_steps"]]
        lines.append(
            f"| {way} | {cell([one['steps'] for one in found], 0)} | {cell([one['held_out'] for one in found], 4)} | {cell([change(run, way) for run in runs], 2, '+') if way != 'steady' else ''} | "
            f"{cell([one['useful'] for one in found], 1)} | {cell(exact, 1)} | {cell([one['processes'] for one in found], 0)} |"
        )
    lines += [
        "",
        f"- Loss within {LOSS_MARK:g} % of steady: {verdict([change(run, 'elastic') for run in runs], LOSS_MARK, True) or 'not measured'}",
        f"- {USEFUL_MARK:g} % of the time useful: {verdict([run['ways']['elastic']['useful'] for run in runs], USEFUL_MARK, False)}",
    ]
    loads = [seconds for run in runs for seconds in run["ways"]["elastic"]["load_s"]]
    if loads:
        lines.append(
            f"- {len(loads)} processes loaded their state from others, in {statistics.mean(loads):.2f} s on average, {max(loads):.2f} s at most."
        )
    again = [one["made"] - one["steps"] for one in (run["ways"].get("restart") for run in runs) if one]
    if again:
        lines.append(f"- The job made {cell(again, 0)} peer-steps again, or for nothing.")
    for run in runs:
        lines += [
            f"- **Failed**: seed {run['seed']}, {way}: {name}" for way, found in run["ways"].items() for name in found["failed"]
        ]
        lines += [
            f"- **Parameters differ at the end**: seed {run['seed']}, {way}"
            for way, found in run["ways"].items()
            if len(found["hashes"]) > 1
        ]
    return "\n".join(lines) + "\n"


def figure(runs):
    """The loss over time, of each way: of the first seed, with the moments at which the trace changes."""
    run = runs[0]
    curves = {way: found["curve"] for way, found in run["ways"].items() if found["curve"]}
    losses = [loss for curve in curves.values() for _, loss in curve[len(curve) // 20:]]
    if not losses:
        return '<svg xmlns="http://www.w3.org/2000/svg"/>\n'
    end = max(curve[-1][0] for curve in curves.values()) or 1
    panel = Panel(
        (0, 0),
        "Loss while machines come and go",
        ("seconds", "loss of training, nats per byte"),
        (0, end),
        (min(losses), max(losses) + 1e-6),
    )
    for at in {event[0] for event in run["events"] if 0 < event[0] <= end}:
        panel.out.append(
            f'<line x1="{panel.x(at):.1f}" y1="{TOP + HEIGHT - 6}" x2="{panel.x(at):.1f}" y2="{TOP + HEIGHT}" stroke="#888"/>'
        )
    for index, (way, curve) in enumerate(curves.items()):
        panel.line(curve, COLOURS[index], way)
    width, height = LEFT + WIDTH + 30, TOP + HEIGHT + BELOW
    return (
        "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">',
                rectangle(0, 0, width, height, 'fill="white"'),
                *panel.svg(),
                "</svg>",
            ]
        )
        + "\n"
    )
