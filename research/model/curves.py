"""An SVG with curves over several axes, a panel each: the mean over seeds, and its standard deviation shaded."""

import bisect
import math
import statistics

from comparison import tick_distance
from versus_lib.plot import rectangle, text

COLOURS = ("#222222", "#7f7f7f", "#9467bd", "#ff7f0e", "#2ca02c", "#d62728", "#1f77b4", "#8c564b")
WIDTH, HEIGHT, LEFT, TOP = 400, 320, 66, 64
GRID = 60  # number of points at which the curves of different seeds are compared


def value_at(positions, values, position):
    """The linear interpolation between the two nearest points; None outside."""
    if not positions[0] <= position <= positions[-1]:
        return None
    after = max(1, bisect.bisect_left(positions, position))
    if len(positions) == 1:
        return values[0]
    share = (position - positions[after - 1]) / ((positions[after] - positions[after - 1]) or 1)
    return values[after - 1] + share * (values[after] - values[after - 1])


def band(curves):
    """(position, mean, deviation) where all seeds have a value."""
    low, high = max(positions[0] for positions, _ in curves), min(positions[-1] for positions, _ in curves)
    points = []
    for index in range(GRID + 1):
        position = high if index == GRID else low + (high - low) * index / GRID
        values = [value_at(positions, values, position) for positions, values in curves]
        if None not in values:
            points.append((position, statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0))
    return points


def losses_shown(lines, axis):
    """The range from the lowest value to where the curves are after a tenth of their way: before that they only differ by their
    start."""
    ends = [mean for line in lines for _, mean, _ in band(line["curves"][axis])[-1:]]
    tops = [points[len(points) // 10][1] for points in (band(line["curves"][axis]) for line in lines) if points]
    low, high = min(ends), max(tops)
    distance = tick_distance(high - low or 1e-6)
    return math.floor(low / distance) * distance, math.ceil(high / distance) * distance, distance


def ticks(span):
    distance = tick_distance(span)
    return [index * distance for index in range(int(span / distance + 1e-9) + 1)]


def panel(lines, axis, words, x0, losses):
    low, high, distance = losses
    right = max(points[-1][0] for points in (band(line["curves"][axis]) for line in lines) if points)

    def x_of(position):
        return x0 + position / right * WIDTH

    def y_of(loss):
        return TOP + HEIGHT - (min(max(loss, low), high) - low) / (high - low) * HEIGHT
    out = []
    for index in range(round((high - low) / distance) + 1):
        y = y_of(low + index * distance)
        out += [
            f'<line x1="{x0}" y1="{y:.1f}" x2="{x0 + WIDTH}" y2="{y:.1f}" stroke="#ddd"/>',
            text(x0 - 6, y + 4, f"{low + index * distance:.6g}", "end"),
        ]
    for position in ticks(right):
        out += [
            f'<line x1="{x_of(position):.1f}" y1="{TOP + HEIGHT}" x2="{x_of(position):.1f}" y2="{TOP + HEIGHT + 4}" stroke="#444"/>',
            text(x_of(position), TOP + HEIGHT + 16, f"{position:g}"),
        ]
    for line in lines:
        colour, dash = COLOURS[line["colour"]], "5 3" if line["dashed"] else ""
        points = [point for point in band(line["curves"][axis]) if point[1] <= high]
        upper = [f"{x_of(position):.1f},{y_of(mean + deviation):.1f}" for position, mean, deviation in points]
        lower = [f"{x_of(position):.1f},{y_of(mean - deviation):.1f}" for position, mean, deviation in reversed(points)]
        out.append(f'<polygon points="{" ".join(upper + lower)}" fill="{colour}" fill-opacity="0.15"/>')
        out.append(
            f'<polyline points="{" ".join(f"{x_of(position):.1f},{y_of(mean):.1f}" for position, mean, _ in points)}" fill="none" stroke="{colour}" stroke-width="1.6" stroke-dasharray="{dash}"/>'
        )
        if points:
            out.append(f'<circle cx="{x_of(points[-1][0]):.1f}" cy="{y_of(points[-1][1]):.1f}" r="3" fill="{colour}"/>')
    return [
        *out,
        rectangle(x0, TOP, WIDTH, HEIGHT, 'fill="none" stroke="#444"'),
        text(x0 + WIDTH / 2, TOP + HEIGHT + 34, words),
    ]


def curves_svg(lines, axes, heading):
    """lines: name, number of the colour, dashed or not, and curves: per axis, (positions, values) of each seed. axes: (key,
    words). A panel has the lines that have its axis; the legend those that have a name and are not dashed."""
    columns, named = 4, [line for line in lines if line["name"] and not line["dashed"]]
    width = len(axes) * (WIDTH + LEFT) + 30
    height = TOP + HEIGHT + 60 + 20 * math.ceil(len(named) / columns)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">',
           rectangle(0, 0, width, height, 'fill="white"'), text(width / 2, 26, heading, size=14)]
    lines_on = {axis: [line for line in lines if axis in line["curves"]] for axis, _ in axes}
    losses = losses_shown(lines_on[axes[0][0]], axes[0][0])
    for index, (axis, words) in enumerate(axes):
        out += panel(lines_on[axis], axis, words, LEFT + index * (WIDTH + LEFT), losses)
    for index, line in enumerate(named):
        colour = COLOURS[line["colour"]]
        x, y = LEFT + index % columns * (width - LEFT) / columns, TOP + HEIGHT + 62 + 20 * (index // columns)
        out.append(f'<line x1="{x:.1f}" y1="{y - 4}" x2="{x + 24:.1f}" y2="{y - 4}" stroke="{colour}" stroke-width="2"/>')
        out.append(text(x + 30, y, line["name"], "start"))
    return "\n".join([*out, "</svg>"]) + "\n"
