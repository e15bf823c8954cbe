"""Adds to mkdocs for our pages: pages from outside of docs/, links from names of pages, plots in the text's colour.

Pages say `docs/design/schedules.md`, as it reads in any editor; on the site that becomes a link with the page's title. Pages
from outside of docs/ link to `docs/…` as they do in the source tree; on the site that is beside them. A picture plots/NAME.svg
becomes part of the page, so that it follows the page's colours. Short cells of tables are marked, so that numbers keep their
units, and long ones, so that they are not narrow columns on a phone.
"""

import os
import re

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ADDED = {name: name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "STYLE.md")}
ADDED |= {
    "bench/" + name: "bench/results/" + name
    for name in os.listdir(os.path.join(ROOT, "bench", "results"))
    if name.endswith(".svg")
}
NAME_OF_PAGE = re.compile(r"<code>(?:docs/)?((?:[\w-]+/)*[\w-]+\.md)</code>(?!</a>)")
CELL = re.compile(r"<td>((?:[^<]|</?(?:em|sup|sub|code|strong)>)*)</td>")
SHORT_LETTERS, LONG_LETTERS = 20, 60
PLOT = re.compile(r'<img alt="([^"]*)" src="[^"]*plots/([\w-]+\.svg)" />')


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def on_files(files, config):
    for name, path in ADDED.items():
        files.append(File.generated(config, name, abs_src_path=os.path.join(ROOT, path)))
    return files


def short_title(text):
    """The first heading, up to a colon."""
    match = re.search(r"^# (.+)$", text, re.MULTILINE)
    return match.group(1).split(":")[0] if match else None


def on_page_markdown(markdown, page, **_):
    return markdown.replace("](docs/", "](") if page.file.src_uri in ADDED else markdown


def on_page_content(html, page, files, **_):
    def link(match):
        target = files.get_file_from_path(match.group(1))
        title = short_title(target.content_string) if target else None
        return (
            f'<a href="{get_relative_url(target.url, page.url)}">{title}</a>'
            if title and target.url != page.url
            else match.group(0)
        )

    def inline(match):
        try:
            return read(os.path.join("docs", "plots", match.group(2)))
        except FileNotFoundError:
            raise PluginError(f"there is no docs/plots/{match.group(2)}: tools/plots/draw makes the plots") from None

    def mark(match):
        letters = len(re.sub(r"<[^>]*>|&\w+;", " ", match.group(1)))
        kind = "short" if letters <= SHORT_LETTERS else "long" if letters >= LONG_LETTERS else ""
        return f'<td class="{kind}">{match.group(1)}</td>' if kind else match.group(0)

    return CELL.sub(mark, PLOT.sub(inline, NAME_OF_PAGE.sub(link, html)))
