#!/usr/bin/env python3
"""tools/docs: builds the site, and refuses one that is broken. Tests that need the site's tool skip themselves, and say so,
where it is not installed."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from support import ROOT, program

DOCS = program("tools/docs")
TOOL_IS_HERE = DOCS.find_python() is not None
SITE_SOURCES = [
    "docs",
    "examples",
    "include",
    "bench/results",
    "tools",
    "mkdocs.yml",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "STYLE.md",
]


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="unisono-docs-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


class Check(Folder):
    """The check of finished pages."""

    def setUp(self):
        super().setUp()
        self.write(
            "index.html",
            '<link rel="stylesheet" href="a/style.css"><h1 id="top">x</h1><a href="b.html#there">b</a> <a href="https://example.org">far</a>',
        )
        self.write(
            "b.html",
            '<img src="data:image/png;base64,AA"><p id="there"><a href="index.html#top">back</a> <a href="#there">here</a>',
        )
        self.write("a/style.css", "p { background: url(picture.png) }")
        self.write("a/picture.png", "")

    def refuses(self, *words):
        problems = DOCS.check_site(self.folder)
        self.assertEqual(len(problems), 1, problems)
        for word in words:
            self.assertIn(word, problems[0])

    def test_a_good_site_is_good(self):
        self.assertEqual(DOCS.check_site(self.folder), [])

    def test_no_page(self):
        with tempfile.TemporaryDirectory() as empty:
            self.assertEqual(len(DOCS.check_site(empty)), 1)

    def test_link_to_a_missing_page(self):
        self.write("c.html", '<a href="d.html">d</a>')
        self.refuses("c.html", "d.html", "not there")

    def test_link_to_a_missing_anchor(self):
        self.write("c.html", '<a href="b.html#nowhere">b</a>')
        self.refuses("c.html", "b.html#nowhere", "no such anchor")

    def test_script_from_elsewhere(self):
        self.write("c.html", '<script src="https://example.org/x.js"></script>')
        self.refuses("c.html", "https://example.org/x.js", "from elsewhere")

    def test_picture_from_elsewhere_without_scheme(self):
        self.write("c.html", '<img src="//example.org/x.png">')
        self.refuses("c.html", "from elsewhere")

    def test_picture_that_is_missing(self):
        self.write("c.html", '<img src="x.png">')
        self.refuses("c.html", "x.png", "not there")

    def test_font_from_elsewhere(self):
        self.write("a/fonts.css", '@import "https://example.org/font.css";')
        self.refuses("fonts.css", "from elsewhere")

    def test_snippet_that_was_not_put_in(self):
        self.write("c.html", "<pre>--8&lt;-- x --8<-- x</pre>")
        self.refuses("c.html", "snippet")


@unittest.skipUnless(TOOL_IS_HERE, "the site's tool is not installed: tools/install_dependencies docs")
class Build(Folder):
    """The real site, and copies of it with one mistake each."""

    def copy(self):
        for name in SITE_SOURCES:
            source, target = os.path.join(ROOT, name), os.path.join(self.folder, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copytree(source, target) if os.path.isdir(source) else shutil.copy(source, target)

    def build(self, root):
        return subprocess.run(
            [DOCS.find_python(), "-B", os.path.join(root, "tools", "docs"), "--out", os.path.join(self.folder, "site")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )

    def append(self, name, text):
        with open(os.path.join(self.folder, name), "a", encoding="utf-8") as file:
            file.write(text)

    def built(self, name):
        with open(os.path.join(self.folder, "site", name), encoding="utf-8") as file:
            return file.read()

    def refused(self, *words):
        done = self.build(self.folder)
        self.assertEqual(done.returncode, 1, done.stdout)
        for word in words:
            self.assertIn(word, done.stdout)

    def test_the_site_is_built_without_a_complaint_twice_and_not_over_other_files(self):
        for _ in range(2):
            done = self.build(ROOT)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertRegex(done.stdout, r"^\S+index\.html: \d\d pages\n$")
        self.assertIn('<a href="design/schedules.html">Schedules</a>', self.built("ARCHITECTURE.html"))
        self.assertIn('<svg class="plot"', self.built("design/schedules.html"))
        shutil.rmtree(os.path.join(self.folder, "site"))
        self.write("site/letter.txt", "mine")
        done = self.build(ROOT)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no site of ours", done.stdout)
        self.assertEqual(os.listdir(os.path.join(self.folder, "site")), ["letter.txt"])

    def test_broken_links_and_a_page_that_is_not_in_the_navigation(self):
        self.copy()
        self.append("docs/start/concepts.md", "\n[gone](gone.md) [gone](install.md#gone)\n")
        self.append("docs/forgotten.md", "# Forgotten\n")
        self.refused("start/concepts.md", "'gone.md'", "install.md#gone", "forgotten.md")

    def test_example_that_is_missing(self):
        self.copy()
        os.remove(os.path.join(self.folder, "examples", "api", "order.cc"))
        self.refused("order.cc")

    def test_plot_that_is_missing(self):
        self.copy()
        os.remove(os.path.join(self.folder, "docs", "plots", "size_shm_4.svg"))
        self.refused("size_shm_4.svg")


if __name__ == "__main__":
    if not TOOL_IS_HERE:
        print("SKIPPED in part: the site's tool is not installed; tools/install_dependencies docs", file=sys.stderr)
    outcome = unittest.main(exit=False).result
    sys.exit(1 if not outcome.wasSuccessful() else 0 if TOOL_IS_HERE else DOCS.NOT_INSTALLED)
