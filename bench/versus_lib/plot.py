"""An SVG of the summary: one panel per case and collective. Time over message size, both axes logarithmic, where there are
several sizes; else one bar per contender, from zero."""

import math
from xml.sax.saxutils import escape

from .model import Contender, bytes_text, time_text

COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
LIMIT_COLOUR = "#999999"
PANEL_WIDTH, PANEL_HEIGHT, MARGIN, LEFT, TOP = 420, 300, 50, 60, 40


def title(name):
    return Contender.parse(name).title


def series(rows, names):
    """(title, colour, dash, points) per line, points as (bytes, time, low, high)."""
    lines = []
    for index, name in enumerate(names):
        points = [(row["bytes"], entry["median_us"], entry["low_us"], entry["high_us"])
                  for row in rows for entry in [row["cells"][name]] if "median_us" in entry]
        lines.append((title(name), COLOURS[index % len(COLOURS)], "", points))
    limits = [(row["bytes"], row["limit_us"], None, None) for row in rows if row["limit_us"]]
    return [*lines, ("limit of the machine", LIMIT_COLOUR, "4 3", limits)]


def text(x, y, words, anchor="middle", size=11):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'


def rectangle(x, y, width, height, style):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {style}/>'


def decade_text(decade):
    """A power of ten of microseconds, as an axis shows it."""
    for unit, exponent in (("s", 6), ("ms", 3), ("us", 0)):
        if decade >= exponent:
            return f"{10 ** (decade - exponent)} {unit}"
    return f"{10.0 ** decade:g} us"


def curves(rows, names, x0, y0):
    lines = series(rows, names)
    points = [point for _, _, _, line in lines for point in line]
    if not points:
        return [text(x0 + PANEL_WIDTH / 2, y0 + PANEL_HEIGHT / 2, "nothing measured")]
    out = []
    x_low, x_high = math.log2(min(p[0] for p in points)), math.log2(max(p[0] for p in points))
    y_low = math.floor(math.log10(min(p[2] or p[1] for p in points)))
    y_high = math.ceil(math.log10(max(p[3] or p[1] for p in points)))
    x_span, y_span = max(x_high - x_low, 1), max(y_high - y_low, 1)

    def position(size, us):
        return (x0 + 20 + (math.log2(size) - x_low) / x_span * (PANEL_WIDTH - 40),
                y0 + PANEL_HEIGHT - (math.log10(us) - y_low) / y_span * PANEL_HEIGHT)
    for decade in range(y_low, y_high + 1):
        y = position(2 ** x_low, 10.0 ** decade)[1]
        out.append(f'<line x1="{x0}" y1="{y:.1f}" x2="{x0 + PANEL_WIDTH}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(text(x0 - 5, y + 4, decade_text(decade), "end"))
    for size in sorted({p[0] for p in points}):
        out.append(text(position(size, 10.0 ** y_low)[0], y0 + PANEL_HEIGHT + 16, bytes_text(size)))
    for _, colour, dash, line in lines:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (position(p[0], p[1]) for p in line))
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-dasharray="{dash}"/>')
        for size, us, low, high in line:
            x, y = position(size, us)
            if low is None:
                continue
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>')
            out.append(f'<line x1="{x:.1f}" y1="{position(size, low)[1]:.1f}" x2="{x:.1f}" y2="{position(size, high)[1]:.1f}" '
                       f'stroke="{colour}"/>')
    return out


def bars(entries, x0, y0):
    """entries: (title, colour, value, words). A missing value has no bar."""
    longest = max((value for _, _, value, _ in entries if value is not None), default=0) or 1
    step = PANEL_HEIGHT / len(entries)
    out = []
    for index, (name, colour, value, words) in enumerate(entries):
        y = y0 + index * step
        width = (value or 0) / longest * (PANEL_WIDTH - 40)
        out.append(text(x0 + 8, y + step * 0.3, f"{name}: {words}", "start"))
        out.append(rectangle(x0, y + step * 0.4, max(width, 0.5), step * 0.35, f'fill="{colour}"'))
    return out


def bars_of_row(row, names):
    entries = []
    for index, name in enumerate(names):
        cell = row["cells"][name]
        value = cell.get("median_us", cell.get("more_than_us"))
        words = time_text(value) if "median_us" in cell else f"> {time_text(value)}" if value else cell["missing"].split(":")[0]
        entries.append((title(name), COLOURS[index % len(COLOURS)], value, words))
    return [*entries, (f"limit, {row['limit']}", LIMIT_COLOUR, row["limit_us"], time_text(row["limit_us"]))]


def idle_bars(row, names):
    entries = []
    for index, name in enumerate(names):
        cell = row["cells"][name]
        value = cell.get("cpu_percent_max")
        words = cell["missing"].split(":")[0] if value is None else \
            f"{value:.3f} %, {cell['switches_per_second_max']:.1f} switches/s"
        entries.append((title(name), COLOURS[index % len(COLOURS)], value, words))
    return entries


def svg(rows, names, heading):
    groups = {}
    for row in rows:
        groups.setdefault((row["case"], row.get("collective", "")), []).append(row)
    columns = min(2, len(groups))
    width = max(columns * (PANEL_WIDTH + LEFT + MARGIN), 140 * (len(names) + 2))
    height = TOP + math.ceil(len(groups) / columns) * (PANEL_HEIGHT + 2 * MARGIN) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">',
           rectangle(0, 0, width, height, 'fill="white"'), text(width / 2, 22, heading, size=14)]
    legend = []
    for index, ((case, collective), mine) in enumerate(groups.items()):
        x0 = LEFT + index % columns * (PANEL_WIDTH + LEFT + MARGIN)
        y0 = TOP + 30 + index // columns * (PANEL_HEIGHT + 2 * MARGIN)
        what = f"{case}: {collective.replace('_', '-')}"
        if "bytes" not in mine[0]:
            body, what = bars(idle_bars(mine[0], names), x0, y0), f"{case}: processor time while idle"
        elif len({row["bytes"] for row in mine}) == 1:
            body, what = bars(bars_of_row(mine[0], names), x0, y0), what + f", {bytes_text(mine[0]['bytes'])}"
        else:
            body, what, legend = curves(mine, names, x0, y0), what + ", time over message size", series(mine, names)
        out += [text(x0 + PANEL_WIDTH / 2, y0 - 10, what, size=13),
                rectangle(x0, y0, PANEL_WIDTH, PANEL_HEIGHT, 'fill="none" stroke="#444"'), *body]
    for index, (name, colour, dash, _) in enumerate(legend):
        x = LEFT + index * 140
        out.append(f'<line x1="{x}" y1="{height - 20}" x2="{x + 24}" y2="{height - 20}" stroke="{colour}" stroke-width="2" '
                   f'stroke-dasharray="{dash}"/>')
        out.append(text(x + 30, height - 16, name, "start"))
    return "\n".join([*out, "</svg>"]) + "\n"
