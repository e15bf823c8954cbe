#!/usr/bin/env python3
"""Everything that the pages name exists: options of both tools, variables, files of the tree. Every example is on one page, and
the README stays short."""

import functools
import os
import re
import subprocess
import unittest

from support import ROOT, TOOLS, find, pages, program, read, tool

FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def blocks(language):
    """(page, text) of each block of code in a language."""
    return [(path, text) for path, page in pages().items() for name, text in FENCE.findall(page) if name == language]


@functools.cache
def command_names(name):
    """The commands of a tool, also those of two words: "bench compress"."""
    return re.findall(r"^  ([a-z][a-z-]*(?: [a-z][a-z-]*)?)  ", tool("help", name=name), re.MULTILINE)


@functools.cache
def options_of(name, command):
    """Every option of a command's help page."""
    return {
        word
        for line in tool(*command.split(), "--help", name=name).splitlines()
        if line.startswith("  -")
        for word in line.split()[0].split(",")
    }


def commands_in(text):
    """(tool, command, words) of every use of a tool in a block of shell; what stands behind -- is another program's. `unisono
    lab` is the other tool. KeyError: there is no such command."""
    text = re.sub(r"\\\n", " ", text)
    for line in text.splitlines():
        line = line.split("  #")[0].split(" # ")[0]
        for match in re.finditer(r"\b(unisono(?:-lab| lab)?) ([a-z][\w-]*)([^|;&]*)", line):
            name = match.group(1).replace(" ", "-")
            words = re.split(r"\s--(?:\s|$)", match.group(3))[0].split()
            if words and f"{match.group(2)} {words[0]}" in command_names(name):
                yield name, f"{match.group(2)} {words[0]}", words[1:]
            elif match.group(2) in command_names(name):
                yield name, match.group(2), words
            else:
                raise KeyError(f"{name} {match.group(2)}")


class Pages(unittest.TestCase):
    def test_commands_and_options_of_the_tools_exist(self):
        checked = dict.fromkeys(TOOLS, 0)
        shell = blocks("sh") + [
            (path, "\n".join(line[2:] for line in read(path).splitlines() if line.startswith("$ ")))
            for path in find("examples/tool/*.console")
        ]
        for path, text in shell:
            for name, command, words in commands_in(text):
                for word in words:
                    if re.match(r"--?[a-z]", word):
                        self.assertIn(word.split("=")[0], options_of(name, command), f"{path}: {name} {command} {word}")
                        checked[name] += 1
        self.assertGreater(checked["unisono"], 30)
        self.assertGreater(checked["unisono-lab"], 10)

    def test_commands_that_the_text_names_exist(self):
        for path, page in pages().items():
            for name, command in re.findall(r"`(unisono(?:-lab)?) ([a-z][a-z-]*)[ `]", page):
                self.assertIn(command, [*(word.split()[0] for word in command_names(name)), "lab", "agent", "help"], path)

    def test_variables_exist(self):
        known = set(re.findall(r"UNISONO_[A-Z_]+", tool("man").replace("\\", "")))
        constants = set(
            re.findall(r"UNISONO_[A-Z0-9_]+", read("include/unisono/unisono_c.h") + read("include/unisono/export.h"))
        )
        for path in [*find("python/csrc/torch*.cc"), *find("python/unisono/torch/*.py")]:
            known |= set(re.findall(r"""["'](UNISONO_[A-Z_]+)["']""", read(path)))
        for path, page in pages().items():
            for name in re.findall(r"\bUNISONO_[A-Z0-9_]+", page):
                if path not in ("CONTRIBUTING.md", "README.md", "ARCHITECTURE.md") or name in known:
                    self.assertIn(name, known | constants, path)

    def test_files_of_the_tree_exist(self):
        for path, page in pages().items():
            for name in re.findall(
                r"`((?:src|docs|examples|tests|tools|bench|include|cmake|research)/[\w./-]*(?:\.\w+|/))`", page
            ):
                self.assertTrue(os.path.exists(os.path.join(ROOT, name)), f"{path} names {name}")

    def test_shell_is_shell(self):
        checked = blocks("sh")
        for path, text in checked:
            done = subprocess.run(["sh", "-n"], input=text, text=True, stderr=subprocess.PIPE, timeout=10, check=False)
            self.assertEqual(done.returncode, 0, f"{path}: {done.stderr}\n{text}")
        self.assertGreater(len(checked), 10)


class Fragments(unittest.TestCase):
    """C++ that is on a page itself and not in a file: it is compiled, with what such lines take for granted."""

    GIVEN = """#include <unisono/unisono.h>
        #include <cstdint>
        #include <vector>
        template <typename... T> void log(T&&...) {}
        unisono::Status fail(const std::string&);
        std::vector<unisono::Parameter> parameters;
        std::span<const float> initial;
        std::vector<float> model;
        std::vector<int64_t> counts;
        uint64_t samples = 0;
        """
    GROUP = "auto group = unisono::Group::join();\n"
    HANDLE = "auto joined = unisono::Group::join(); unisono::Group& group = *joined;\n"
    RUN = 'auto run = unisono::Elastic::join({.run_id = "demo"});\n'
    BEFORE = {
        "README.md": "",
        "docs/guides/elastic.md": RUN,
        "docs/guides/operations.md": HANDLE,
        "docs/guides/packet_loss.md": GROUP + "std::vector<float> gradient;\n",
    }

    def test_snippets_compile(self):
        found = [(path, text) for path, text in blocks("cpp") if "--8<--" not in text]
        self.assertEqual({path for path, _ in found}, set(self.BEFORE))
        for path, text in found:
            lines = [line for line in text.replace(" = ...;", ";").splitlines() if not line.startswith("#include")]
            source = "\n".join([self.GIVEN, "unisono::Status shown() {", self.BEFORE[path], *lines, "return {};", "}"])
            done = subprocess.run(
                ["c++", "-std=c++20", "-fsyntax-only", "-I", os.path.join(ROOT, "include"), "-x", "c++", "-"],
                input=source,
                text=True,
                stderr=subprocess.PIPE,
                timeout=120,
                check=False,
            )
            self.assertEqual(done.returncode, 0, f"{path}: {done.stderr}\n{text}")


class Tree(unittest.TestCase):
    """Few pages, each in its folder; nothing of the source tree is on two of them."""

    FOLDERS = {
        "docs",
        "docs/start",
        "docs/guides",
        "docs/reference",
        "docs/design",
        "docs/design/methods",
        "docs/design/decisions",
    }
    PAGES_MAX = 30  # beside the decision records

    def test_folders_and_number_of_pages(self):
        found = find("docs/**/*.md")
        self.assertLessEqual({os.path.dirname(path) for path in found}, self.FOLDERS)
        self.assertLessEqual(len([path for path in found if not path.startswith("docs/design/decisions/")]), self.PAGES_MAX)

    def test_no_part_of_a_file_is_on_two_pages(self):
        taken = {}
        for path in find("docs/**/*.md"):
            for name in re.findall(r'--8<-- "([^"]+)"', read(path)):
                taken.setdefault(name, []).append(path)
        # The smallest program is on three: what the first page shows, the first one to build, the first example.
        self.assertEqual(
            {
                name: paths
                for name, paths in taken.items()
                if len(paths) > 1 and not name.startswith("examples/api/all_reduce.")
            },
            {},
        )

    def test_no_page_begins_with_prose(self):
        """A guide shows a command, lines that work, or a picture of the problem before its second heading."""
        for path in find("docs/guides/*.md"):
            first = read(path).split("\n## ")[0]
            self.assertTrue("```" in first or "| take |" in first, path)


class Readme(unittest.TestCase):
    LINES_MAX, WORDS_OF_A_CELL_MAX, RESULTS = 120, 12, 6

    def setUp(self):
        self.text = read("README.md")

    def test_is_short(self):
        self.assertLessEqual(len(self.text.splitlines()), self.LINES_MAX)
        for line in self.text.splitlines():
            for cell in line.strip("|").split("|") if line.startswith("|") else []:
                self.assertLessEqual(len(re.sub(r"\]\([^)]*\)", "", cell).split()), self.WORDS_OF_A_CELL_MAX, cell)

    def test_names_the_commands_that_a_new_user_needs(self):
        for command in (
            "./demo",
            "./test",
            "./test quick",
            "./test nightly",
            "tools/install_dependencies",
            "tools/docs",
            "unisono explain",
            "unisono doctor",
        ):
            self.assertIn(command, self.text)

    def test_links_are_not_broken(self):
        links = re.findall(r"\]\(([^)#]+)(?:#([\w-]+))?\)", self.text)
        self.assertGreater(len(links), 15)
        for path, anchor in links:
            if path.startswith("https://"):
                self.assertRegex(path, r"^https://arxiv\.org/abs/\d{4}\.\d{5}$")
                continue
            self.assertTrue(os.path.exists(os.path.join(ROOT, path)), path)
            if anchor:
                headings = re.findall(r"^#+ (.+)$", read(path), re.MULTILINE)
                self.assertIn(
                    anchor, [re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings], path
                )

    def test_six_results(self):
        section = self.text.split("## Six results")[1].split("\n## ")[0]
        self.assertEqual(len(re.findall(r"^\d\. ", section, re.MULTILINE)), self.RESULTS)

    def test_plot_agrees_with_the_table_of_results(self):
        plot = program("tools/site/packet_loss_plot.py")
        self.assertEqual(read("bench/results/packet_loss.svg"), plot.draw(plot.read_rows()))
        self.assertIn("bench/results/packet_loss.svg", self.text)


class Examples(unittest.TestCase):
    def test_each_is_on_a_page_with_what_it_prints(self):
        text = "".join(pages().values())
        transcripts = find("examples/api/*.console") + find("examples/tool/*.console")
        sources = find("examples/api/*.cc") + find("examples/api/*.c")
        self.assertGreater(len(sources), 10)
        self.assertEqual(
            [path for path in transcripts + sources + find("examples/kubernetes/*.yaml") if f'--8<-- "{path}' not in text], []
        )
        self.assertEqual(
            {os.path.splitext(path)[0] for path in sources},
            {os.path.splitext(path)[0] for path in find("examples/api/*.console")},
        )

    def test_each_runs_itself(self):
        for path in find("examples/api/*.console"):
            name = os.path.splitext(os.path.basename(path))[0]
            self.assertRegex(read(path), rf"^\$ (?:[A-Z_]+=\S+ )*unisono launch [^\n]*\./{name}( |\n)", path)


if __name__ == "__main__":
    unittest.main()
