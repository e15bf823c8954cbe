#!/usr/bin/env python3
"""Draws the plot of the README, bench/results/packet_loss.svg, from the table of bench/results/packet_loss.md.

  tools/site/packet_loss_plot.py            writes the plot
  tools/site/packet_loss_plot.py --check    changes nothing; exit code 1 if the plot is not what the table says

The plot has no background, and grey text, so that it suits light and dark pages.
"""

import argparse
import math
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RESULTS = os.path.join(ROOT, "bench", "results")
TABLE, PLOT = os.path.join(RESULTS, "packet_loss.md"), os.path.join(RESULTS, "packet_loss.svg")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 540, 350, 48, 12, 98, 46
LOSSES = ("0", "1", "5", "10", "20")
LEAST_MS, MOST_MS, TICKS = 120, 6000, ((200, "0.2 s"), (500, "0.5 s"), (1000, "1 s"), (2000, "2 s"), (5000, "5 s"))
LINES = (("over TCP, best of four settings", "#e0672f", ("tcp cubic", "tcp cubic tuned", "tcp bbr", "tcp bbr tuned")),
         ("over UDP, exact", "#2f86e0", ("udp frames",)),
         ("over UDP, nothing repaired", "#2fa05c", ("lossy both",)))


def read_rows():
    """{(way, loss): (p50, p99)} in ms; a way that failed at a loss is not there."""
    rows = {}
    with open(TABLE, encoding="utf-8") as file:
        for line in file:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) == 13 and cells[1] in LOSSES and cells[2].isdecimal():
                rows[cells[0], cells[1]] = float(cells[4]), float(cells[5].split()[0])
    return rows


def best_by_loss(rows, ways, which):
    """The least value of the ways at each loss, as far as there is one."""
    found = [(index, [rows[way, loss][which] for way in ways if (way, loss) in rows]) for index, loss in enumerate(LOSSES)]
    return [(index, min(values)) for index, values in found if values]


def x_of(index):
    return LEFT + 24 + index * (WIDTH - LEFT - RIGHT - 48) / (len(LOSSES) - 1)


def y_of(ms):
    return (
        HEIGHT
        - BOTTOM
        - (math.log(ms) - math.log(LEAST_MS)) / (math.log(MOST_MS) - math.log(LEAST_MS)) * (HEIGHT - BOTTOM - TOP)
    )


def text(x, y, words, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{words}</text>'


def draw(rows):
    title = "Unisono's all-reduce of 1 MiB, 8 ranks, links of 100 Mbit/s"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="13" fill="#808080"><title>{title}</title>',
        text(LEFT, 16, title, "start", ' font-size="15" font-weight="bold"'),
        text(LEFT, 36, "time when packets are lost: solid, median; dashed, 99th percentile", "start"),
    ]
    for (name, colour, _), (x, y) in zip(LINES, ((LEFT, 60), (LEFT, 82), (LEFT + 170, 82))):
        out.append(
            f'<line x1="{x}" y1="{y - 4}" x2="{x + 24}" y2="{y - 4}" stroke="{colour}" stroke-width="2.6"/>'
            + text(x + 30, y, name, "start")
        )
    for ms, words in TICKS:
        out.append(
            f'<line x1="{LEFT}" y1="{y_of(ms):.1f}" x2="{WIDTH - RIGHT}" y2="{y_of(ms):.1f}" stroke="#808080" stroke-opacity="0.25"/>'
            + text(LEFT - 7, y_of(ms) + 4, words, "end")
        )
    out += [text(x_of(index), HEIGHT - BOTTOM + 18, loss + " %") for index, loss in enumerate(LOSSES)]
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "packets lost"))
    for name, colour, ways in LINES:
        for which, style in ((0, 'stroke-width="2.6"'), (1, 'stroke-width="1.6" stroke-dasharray="6 4"')):
            points = best_by_loss(rows, ways, which)
            line = " ".join(f"{x_of(index):.1f},{y_of(ms):.1f}" for index, ms in points)
            out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" {style}/>')
            if which == 0 and len(points) < len(LOSSES):
                index, ms = points[-1]
                out.append(text(x_of(index) + 12, y_of(ms) + 4, "at 20 %: rank lost", "start", f' fill="{colour}"'))
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    picture = draw(read_rows())
    if not options.check:
        with open(PLOT, "w", encoding="utf-8") as file:
            file.write(picture)
        return 0
    with open(PLOT, encoding="utf-8") as file:
        current = file.read() == picture
    print(
        "" if current else "bench/results/packet_loss.svg is not what packet_loss.md says: tools/site/packet_loss_plot.py",
        end="",
    )
    return 0 if current else 1


if __name__ == "__main__":
    sys.exit(main())
