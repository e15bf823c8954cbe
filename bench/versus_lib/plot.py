"""An SVG of the summary: one panel per transport and world size, time over message size, both axes logarithmic."""

import math
from xml.sax.saxutils import escape

from . import peers, report

COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
LIMIT_COLOUR = "#999999"
PANEL_WIDTH, PANEL_HEIGHT, MARGIN, LEFT, TOP = 420, 300, 50, 60, 40


def series(rows, names):
    """(title, colour, dash, points) per line, points as (bytes, time, low, high)."""
    lines = []
    for index, peer in enumerate(names):
        points = [(row["bytes"], entry["median_us"], entry["low_us"], entry["high_us"])
                  for row in rows for entry in [row["cells"][peer]] if "median_us" in entry]
        lines.append((peers.title(peer), COLOURS[index % len(COLOURS)], "", points))
    limits = [(row["bytes"], row["limit_us"], None, None) for row in rows if row["limit_us"]]
    return [*lines, ("limit of the machine", LIMIT_COLOUR, "4 3", limits)]


def text(x, y, words, anchor="middle", size=11):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'


def decade_text(decade):
    """A power of ten of microseconds, as an axis shows it."""
    for unit, exponent in (("s", 6), ("ms", 3), ("us", 0)):
        if decade >= exponent:
            return f"{10 ** (decade - exponent)} {unit}"
    return f"{10.0 ** decade:g} us"


def panel(rows, names, x0, y0, heading):
    lines = series(rows, names)
    points = [point for _, _, _, line in lines for point in line]
    out = [text(x0 + PANEL_WIDTH / 2, y0 - 10, heading, size=13),
           f'<rect x="{x0}" y="{y0}" width="{PANEL_WIDTH}" height="{PANEL_HEIGHT}" fill="none" stroke="#444"/>']
    if not points:
        return out + [text(x0 + PANEL_WIDTH / 2, y0 + PANEL_HEIGHT / 2, "nothing measured")]
    x_low, x_high = math.log2(min(p[0] for p in points)), math.log2(max(p[0] for p in points))
    y_low = math.floor(math.log10(min(p[2] or p[1] for p in points)))
    y_high = math.ceil(math.log10(max(p[3] or p[1] for p in points)))
    x_span, y_span = max(x_high - x_low, 1), max(y_high - y_low, 1)

    def place(size, us):
        return (x0 + 20 + (math.log2(size) - x_low) / x_span * (PANEL_WIDTH - 40),
                y0 + PANEL_HEIGHT - (math.log10(us) - y_low) / y_span * PANEL_HEIGHT)
    for decade in range(y_low, y_high + 1):
        y = place(2 ** x_low, 10.0 ** decade)[1]
        out.append(f'<line x1="{x0}" y1="{y:.1f}" x2="{x0 + PANEL_WIDTH}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(text(x0 - 5, y + 4, decade_text(decade), "end"))
    for size in sorted({p[0] for p in points}):
        out.append(text(place(size, 10.0 ** y_low)[0], y0 + PANEL_HEIGHT + 16, report.bytes_text(size)))
    for _, colour, dash, line in lines:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(p[0], p[1]) for p in line))
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-dasharray="{dash}"/>')
        for size, us, low, high in line:
            x, y = place(size, us)
            if low is None:
                continue
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>')
            out.append(f'<line x1="{x:.1f}" y1="{place(size, low)[1]:.1f}" x2="{x:.1f}" y2="{place(size, high)[1]:.1f}" '
                       f'stroke="{colour}"/>')
    return out


def svg(rows, names, title):
    cases = list(dict.fromkeys((row["transport"], row["n"]) for row in rows))
    columns = min(2, len(cases))
    width = columns * (PANEL_WIDTH + LEFT + MARGIN)
    height = TOP + math.ceil(len(cases) / columns) * (PANEL_HEIGHT + 2 * MARGIN) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">',
           f'<rect width="{width}" height="{height}" fill="white"/>', text(width / 2, 22, title, size=14)]
    for index, (transport, n) in enumerate(cases):
        x0 = LEFT + index % columns * (PANEL_WIDTH + LEFT + MARGIN)
        y0 = TOP + 30 + index // columns * (PANEL_HEIGHT + 2 * MARGIN)
        mine = [row for row in rows if (row["transport"], row["n"]) == (transport, n)]
        out += panel(mine, names, x0, y0, f"{transport}, {n} ranks: time of an all-reduce over message size")
    for index, (name, colour, dash, _) in enumerate(series(rows, names)):
        x = LEFT + index * 140
        out.append(f'<line x1="{x}" y1="{height - 20}" x2="{x + 24}" y2="{height - 20}" stroke="{colour}" stroke-width="2" '
                   f'stroke-dasharray="{dash}"/>')
        out.append(text(x + 30, height - 16, name, "start"))
    return "\n".join([*out, "</svg>"]) + "\n"
