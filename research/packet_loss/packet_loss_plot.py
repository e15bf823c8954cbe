"""The figure of compare_packet_loss: held-out loss by rate of loss, change of perplexity, what is done wrong, and drift beside
its formulae."""

import math
import statistics

from comparison import tick_distance
from versus_lib.plot import rectangle, text

COLOURS = ("#222222", "#1f77b4", "#2ca02c", "#ff7f0e", "#d62728", "#9467bd", "#8c564b", "#7f7f7f")
FORMULAE = ("pair_expected", "paper_form")
WIDTH, HEIGHT, LEFT, TOP, BELOW = 460, 300, 78, 56, 96


class Panel:
    """Axes with what is drawn in them. y_log: powers of ten."""

    def __init__(self, position, title, words, x_range, y_range, y_log=False):
        self.x0, self.y0 = LEFT + position[0] * (WIDTH + LEFT + 20), TOP + position[1] * (HEIGHT + TOP + BELOW)
        self.x_range, self.y_range, self.y_log, self.named = x_range, y_range, y_log, []
        self.out = [
            rectangle(self.x0, self.y0, WIDTH, HEIGHT, 'fill="none" stroke="#444"'),
            text(self.x0 + WIDTH / 2, self.y0 - 12, title, size=13),
            text(self.x0 + WIDTH / 2, self.y0 + HEIGHT + 32, words[0]),
            f'<text transform="translate({self.x0 - 62:.1f},{self.y0 + HEIGHT / 2:.1f}) rotate(-90)" text-anchor="middle" font-size="11">{words[1]}</text>',
        ]
        self.grid()

    def x(self, position):
        low, high = self.x_range
        return self.x0 + (position - low) / (high - low) * WIDTH

    def y(self, value):
        low, high = (math.log10(end) for end in self.y_range) if self.y_log else self.y_range
        at = math.log10(max(value, 1e-300)) if self.y_log else value
        return self.y0 + HEIGHT - (min(max(at, low), high) - low) / (high - low) * HEIGHT

    def grid(self):
        low, high = self.y_range
        if self.y_log:
            values = [10.0 ** power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]
        else:
            distance = tick_distance(high - low)
            values = [
                index * distance for index in range(math.ceil(low / distance - 1e-9), math.floor(high / distance + 1e-9) + 1)
            ]
        for value in values:
            self.out += [
                f'<line x1="{self.x0}" y1="{self.y(value):.1f}" x2="{self.x0 + WIDTH}" y2="{self.y(value):.1f}" stroke="#ddd"/>',
                text(self.x0 - 6, self.y(value) + 4, f"{value:.6g}", "end"),
            ]
        distance = tick_distance(self.x_range[1] - self.x_range[0])
        for index in range(math.ceil(self.x_range[0] / distance - 1e-9), math.floor(self.x_range[1] / distance + 1e-9) + 1):
            self.out.append(text(self.x(index * distance), self.y0 + HEIGHT + 16, f"{index * distance:g}"))

    def line(self, points, colour, name="", dash="", markers=False, width=1.6):
        points = [(x, y) for x, y in points if y is not None and math.isfinite(y) and (y >= self.y_range[0] or not self.y_log)]
        if not points:
            return
        if not markers:
            self.out.append(
                f'<polyline points="{" ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dash}"/>'
            )
        else:
            self.out += [f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="2.4" fill="{colour}"/>' for x, y in points]
        if name:
            self.named.append((name, colour, dash, markers))

    def interval(self, x, value, colour):
        """The mean, and how far the interval reaches."""
        half = value["half"] or 0
        self.out += [
            f'<line x1="{self.x(x):.1f}" y1="{self.y(value["mean"] - half):.1f}" x2="{self.x(x):.1f}" y2="{self.y(value["mean"] + half):.1f}" stroke="{colour}" stroke-width="2"/>',
            f'<circle cx="{self.x(x):.1f}" cy="{self.y(value["mean"]):.1f}" r="4" fill="{colour}"/>',
        ]

    def svg(self):
        for index, (name, colour, dash, markers) in enumerate(self.named):
            x, y = self.x0 + index % 3 * (WIDTH + 20) / 3, self.y0 + HEIGHT + 52 + 16 * (index // 3)
            self.out.append(
                f'<circle cx="{x + 10:.1f}" cy="{y - 4:.1f}" r="2.4" fill="{colour}"/>'
                if markers
                else f'<line x1="{x:.1f}" y1="{y - 4:.1f}" x2="{x + 20:.1f}" y2="{y - 4:.1f}" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
            )
            self.out.append(text(x + 26, y, name, "start"))
        return self.out


def mean_over_seeds(runs, points_of):
    """points_of(run): (position, value)s. The mean at each position where all have one."""
    by_position = {}
    for run in runs:
        for position, value in points_of(run):
            by_position.setdefault(position, []).append(value)
    return [
        (position, statistics.mean(values))
        for position, values in sorted(by_position.items())
        if len(values) == len(runs) and None not in values
    ]


def held_out_panel(position, title, lines):
    """lines: (name, colour, runs). From the lowest to what the best has come down to after a fifth of its way."""
    curves = [(name, colour, mean_over_seeds(runs, lambda run: run["held_out"]["owners"])) for name, colour, runs in lines]
    curves = [curve for curve in curves if curve[2]]
    low, high = min(points[-1][1] for _, _, points in curves), max(points[len(points) // 5][1] for _, _, points in curves[:1])
    high = max(high, low + 1e-3)
    panel = Panel(
        position,
        title,
        ("step", "held-out loss with the owners&#8217; values, nats per byte"),
        (0, curves[0][2][-1][0]),
        (low - 0.03 * (high - low), high),
    )
    for name, colour, points in curves:
        shown = [point for point in points if point[1] <= high * 1.02]
        panel.line(shown or [(0, low)], colour, name if shown else name + " (above)")
    return panel


def change_panel(position, rows):
    """The change of perplexity by rate, with the margins."""
    shown = [row for row in rows if not row["ablation"] and row["loss"] > 0]
    reach = [
        row[which]["change"]["mean"] + sign * (row[which]["change"]["half"] or 0)
        for row in shown
        for which in ("owners", "replica")
        for sign in (-1, 1)
    ]
    reach = [value for value in reach if math.isfinite(value)]
    margins = [row["margin"] for row in shown if row["margin"]]
    low, high = min([0, *reach]), max([1e-3, *reach])
    high = max(high, min(max(margins, default=0), 3 * high))
    panel = Panel(
        position,
        "Change of perplexity, mean and 95 % interval",
        ("packets lost, %", "change from no loss, %"),
        (0, max([1, *(row["loss"] for row in shown)]) * 1.08),
        (low - 0.05 * (high - low), high + 0.05 * (high - low)),
    )
    panel.line([(0, 0), (panel.x_range[1], 0)], "#444", width=1)
    for shift, (which, colour, name) in (
        (-0.15, ("owners", COLOURS[1], "owners' values")),
        (0.15, ("replica", COLOURS[3], "replicas")),
    ):
        for row in shown:
            panel.interval(row["loss"] + shift, row[which]["change"], colour)
        panel.named.append((name, colour, "", True))
    for row in shown:
        if row["margin"]:
            panel.line(
                [(row["loss"] - 0.8, row["margin"]), (row["loss"] + 0.8, row["margin"])],
                COLOURS[4],
                "margin" if row["margin"] == margins[0] else "",
                width=2.5,
            )
    return panel


def drift_range(values, decades=5):
    """Powers of ten around them, from the highest; values that are not positive do not count."""
    values = [value for value in values if value > 0]
    if not values:
        return None
    high = 10.0 ** math.ceil(math.log10(max(values)))
    return max(10.0 ** math.floor(math.log10(min(values))), high / 10 ** decades), high


def drift_of(runs, key):
    """Formulae are about the updates since the measurement before: they are shown in the middle between the two."""
    def points_of(run):
        steps = [0, *(point["step"] for point in run["drift"])]
        return [
            ((before + point["step"]) / 2 if key in FORMULAE else point["step"], point[key])
            for before, point in zip(steps, run["drift"])
        ]
    return mean_over_seeds(runs, points_of)


def drift_panel(position, of):
    """The distance of two replicas, beside the formulae. of: runs by rate."""
    curves = {loss: {key: drift_of(mine, key) for key in ("pair", *FORMULAE)} for loss, mine in of.items() if loss > 0 and mine}
    reach = drift_range([value for lines in curves.values() for points in lines.values() for _, value in points])
    if not reach:
        return None
    last = max(at for lines in curves.values() for points in lines.values() for at, _ in points)
    panel = Panel(position, "Two replicas, mean squared difference", ("step", "per element"), (0, last), reach, y_log=True)
    for index, (loss, lines) in enumerate(curves.items()):
        colour = COLOURS[1 + index % (len(COLOURS) - 1)]
        panel.line(lines["pair"], colour, f"{loss:g} %, measured", markers=True)
        panel.line(lines["pair_expected"], colour, "exact formula")
        panel.line(lines["paper_form"], colour, "2p/(1+p), unconfirmed", dash="4 3", width=1.1)
    return panel


def wrong_drift_panel(position, title, lines):
    """The distance of a replica from the owner. lines: (name, colour, runs)."""
    curves = [(name, colour, drift_of(runs, "owner")) for name, colour, runs in lines]
    reach = drift_range([value for _, _, points in curves for _, value in points], 9)
    if not reach:
        return None
    panel = Panel(
        position, title, ("step", "per element"), (0, max(at for _, _, points in curves for at, _ in points)), reach, y_log=True
    )
    for name, colour, points in curves:
        panel.line(points, colour, name)
    return panel


def figure(runs, rows, ablations):
    if not rows:
        return '<svg xmlns="http://www.w3.org/2000/svg" width="0" height="0"/>\n'

    def those(loss, ablation="", seeds=None):
        return [
            run
            for run in runs
            if (run["loss"], run["ablation"]) == (loss, ablation) and (seeds is None or run["seed"] in seeds)
        ]
    losses = sorted({run["loss"] for run in runs if not run["ablation"]})
    by_loss = [(f"{loss:g} % lost", COLOURS[index % len(COLOURS)], those(loss)) for index, loss in enumerate(losses)]
    panels = [
        held_out_panel((0, 0), "Held-out text by packets lost", by_loss),
        change_panel((1, 0), rows),
        drift_panel((2, 0), {loss: those(loss) for loss in losses}),
    ]
    wrong = max((run["loss"] for run in runs if run["ablation"]), default=None)
    if wrong is not None:
        seeds = {run["seed"] for run in runs if run["ablation"]}
        lines = [
            ("as it should be", COLOURS[1], those(wrong, seeds=seeds)),
            *((name, COLOURS[2 + index], those(wrong, name)) for index, name in enumerate(ablations)),
        ]
        panels += [
            held_out_panel(
                (0, 1),
                f"Done wrong on purpose, {wrong:g} % lost",
                [("nothing lost", COLOURS[0], those(0.0, seeds=seeds)), *lines],
            ),
            wrong_drift_panel((1, 1), f"Replica and owner, mean squared difference, {wrong:g} % lost", lines),
        ]
    panels = [panel for panel in panels if panel]
    width, height = 3 * (WIDTH + LEFT + 20) + 20, (1 if wrong is None else 2) * (HEIGHT + TOP + BELOW) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">',
        rectangle(0, 0, width, height, 'fill="white"'),
        text(width / 2, 22, "Training over links that lose packets; means over seeds", size=14),
    ]
    return "\n".join([*out, *(line for panel in panels for line in panel.svg()), "</svg>"]) + "\n"
