"""SVG pictures of panels: curves over linear or logarithmic axes, each with its name at a legend below."""

import math

from versus_lib.plot import COLOURS, rectangle, text

WIDTH, HEIGHT, LEFT, TOP, BELOW = 400, 280, 70, 60, 56
MORE_COLOURS = (
    *COLOURS,
    "#e377c2",
    "#17becf",
    "#bcbd22",
    "#7f7f7f",
    "#000000",
    "#98c1d9",
    "#f4a261",
    "#5e548e",
    "#00441b",
    "#00008b",
    "#b8860b",
)


class Axis:
    """From values to positions along a panel's side."""

    def __init__(self, values, length, logarithmic, words):
        self.length, self.words, self.log = length, words, logarithmic
        low, high = min(values), max(values)
        if logarithmic:
            low, high = math.log10(low), math.log10(high)
        room = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
        self.low, self.high = low - room, high + room

    def position(self, value):
        return ((math.log10(value) if self.log else value) - self.low) / (self.high - self.low) * self.length

    def ticks(self):
        if self.log:
            return [10.0 ** power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]
        rough = (self.high - self.low) / 5
        unit = 10 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
        return [step * index for index in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def panel(title, lines, x0, y0, colours, x_axis, y_axis, x_ticks=None, size=(WIDTH, HEIGHT)):
    """lines: (name, points). colours: by name. An axis: (logarithmic, words of a value)."""
    points, (across, down) = [point for _, line in lines for point in line], size
    out = [text(x0 + across / 2, y0 - 10, title, size=13), rectangle(x0, y0, across, down, 'fill="none" stroke="#444"')]
    if not points:
        return [*out, text(x0 + across / 2, y0 + down / 2, "nothing measured")]
    x, y = Axis([point[0] for point in points], across, *x_axis), Axis([point[1] for point in points], down, *y_axis)
    for value in y.ticks():
        height = y0 + down - y.position(value)
        out += [
            f'<line x1="{x0}" y1="{height:.1f}" x2="{x0 + across}" y2="{height:.1f}" stroke="#ddd"/>',
            text(x0 - 5, height + 4, y.words(value), "end"),
        ]
    for value in x_ticks or x.ticks():
        out.append(text(x0 + x.position(value), y0 + down + 16, x.words(value)))
    for name, line in lines:
        positions = [(x0 + x.position(a), y0 + down - y.position(b)) for a, b in line]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in positions)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="1.6"/>')
        if len(positions) <= 30:
            out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.4" fill="{colours[name]}"/>' for a, b in positions]
    return out


def bar_panel(title, bars, x0, y0, colours, size=(WIDTH, HEIGHT)):
    """bars: (name, value, words)."""
    longest, (across, down) = max((value for _, value, _ in bars), default=0) or 1, size
    step, out = down / max(1, len(bars)), [
        text(x0 + across / 2, y0 - 10, title, size=13),
        rectangle(x0, y0, across, down, 'fill="none" stroke="#444"'),
    ]
    for index, (name, value, words) in enumerate(bars):
        y = y0 + index * step
        out += [
            text(x0 + 6, y + step * 0.38, f"{name}: {words}", "start", 10),
            rectangle(
                x0,
                y + step * 0.48,
                max(0.5, value / longest * (across - 20)),
                step * 0.38,
                f'fill="{colours.get(name, COLOURS[1])}"',
            ),
        ]
    return out


def colours_of(names):
    return {name: MORE_COLOURS[index % len(MORE_COLOURS)] for index, name in enumerate(dict.fromkeys(names))}


def picture(heading, panels, colours, columns=2, size=(WIDTH, HEIGHT)):
    """panels: functions of (x0, y0) that give elements, each of that size; as many in a row as there are columns."""
    columns, rows = min(columns, len(panels)), math.ceil(len(panels) / columns)
    across, down, names = size[0] + LEFT + 20, size[1] + BELOW, 2 * columns
    width, height = columns * across, TOP + rows * down + 20 * (1 + (len(colours) - 1) // names)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">',
        rectangle(0, 0, width, height, 'fill="white"'),
        text(width / 2, 22, heading, size=14),
    ]
    for index, draw in enumerate(panels):
        out += draw(LEFT + index % columns * across, TOP + index // columns * down)
    for index, (name, colour) in enumerate(colours.items()):
        x, y = LEFT + index % names * (width - LEFT) / names, TOP + rows * down + 20 * (index // names)
        out += [
            f'<line x1="{x:.1f}" y1="{y}" x2="{x + 20:.1f}" y2="{y}" stroke="{colour}" stroke-width="2"/>',
            text(x + 26, y + 4, name, "start"),
        ]
    return "\n".join([*out, "</svg>"]) + "\n"
