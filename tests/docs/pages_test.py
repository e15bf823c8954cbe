#!/usr/bin/env python3
"""What the pages name exists: options of the tool, variables, files of the tree. And every example is on a page."""

import functools
import os
import re
import subprocess
import unittest

from support import ROOT, find, pages, read, tool

FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def blocks(language):
    """(page, text) of each block of code in a language."""
    return [(path, text) for path, page in pages().items() for name, text in FENCE.findall(page) if name == language]


@functools.cache
def command_names():
    """Those of two words, too: "bench compress"."""
    return re.findall(r"^  ([a-z][a-z-]*(?: [a-z]+)?)  ", tool("help"), re.MULTILINE)


@functools.cache
def options_of(command):
    """Every option of a command's help page."""
    return {name for line in tool(*command.split(), "--help").splitlines() if line.startswith("  -") for name in line.split()[0].split(",")}


def commands_in(text):
    """(command, words) of every use of the tool in a block of shell; what stands behind -- is another program's."""
    text = re.sub(r"\\\n", " ", text)
    for line in text.splitlines():
        line = line.split("  #")[0].split(" # ")[0]
        for match in re.finditer(r"\bunisono ([\w-]+)([^|;&]*)", line):
            words = re.split(r"\s--(?:\s|$)", match.group(2))[0].split()
            if words and f"{match.group(1)} {words[0]}" in command_names():
                yield f"{match.group(1)} {words[0]}", words[1:]
            elif match.group(1) in command_names():
                yield match.group(1), words


class Pages(unittest.TestCase):
    def test_options_of_the_tool_exist(self):
        checked = 0
        shell = blocks("sh") + [(path, read(path)) for path in find("examples/tool/*.console")]
        for path, text in shell:
            for command, words in commands_in(text):
                for word in words:
                    if re.match(r"--?[a-z]", word):
                        self.assertIn(word.split("=")[0], options_of(command), f"{path}: unisono {command} {word}")
                        checked += 1
        self.assertGreater(checked, 30)

    def test_commands_of_the_tool_exist(self):
        for path, page in pages().items():
            for command in re.findall(r"`unisono ([a-z][a-z-]*)[ `]", page):
                self.assertIn(command, [*command_names(), "agent"], path)

    def test_variables_exist(self):
        known = set(re.findall(r"UNISONO_[A-Z_]+", tool("man").replace("\\", "")))
        constants = set(re.findall(r"UNISONO_[A-Z0-9_]+", read("include/unisono/unisono_c.h") + read("include/unisono/export.h")))
        for path in [*find("python/csrc/torch*.cc"), *find("python/unisono/torch/*.py")]:
            known |= set(re.findall(r"""["'](UNISONO_[A-Z_]+)["']""", read(path)))
        for path, page in pages().items():
            for name in re.findall(r"\bUNISONO_[A-Z0-9_]+", page):
                if path not in ("CONTRIBUTING.md", "README.md", "ARCHITECTURE.md") or name in known:
                    self.assertIn(name, known | constants, path)

    def test_files_of_the_tree_exist(self):
        for path, page in pages().items():
            for name in re.findall(r"`((?:src|docs|examples|tests|tools|bench|include|cmake)/[\w./-]*(?:\.\w+|/))`", page):
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
    BEFORE = {"README.md": "", "docs/elastic.md": RUN, "docs/observing.md": HANDLE, "docs/packet_loss.md": GROUP + "std::vector<float> gradient;\n"}

    def test_they_compile(self):
        found = [(path, text) for path, text in blocks("cpp") if "--8<--" not in text]
        self.assertEqual({path for path, _ in found}, set(self.BEFORE))
        for path, text in found:
            lines = [line for line in text.replace(" = ...;", ";").splitlines() if not line.startswith("#include")]
            source = "\n".join([self.GIVEN, "unisono::Status shown() {", self.BEFORE[path], *lines, "return {};", "}"])
            done = subprocess.run(["c++", "-std=c++20", "-fsyntax-only", "-I", os.path.join(ROOT, "include"), "-x", "c++", "-"], input=source, text=True, stderr=subprocess.PIPE,
                                  timeout=120, check=False)
            self.assertEqual(done.returncode, 0, f"{path}: {done.stderr}\n{text}")


class Examples(unittest.TestCase):
    def test_each_is_on_a_page_with_what_it_prints(self):
        text = "".join(pages().values())
        transcripts = find("examples/api/*.console") + find("examples/tool/*.console")
        sources = find("examples/api/*.cc") + find("examples/api/*.c")
        self.assertGreater(len(sources), 10)
        for path in transcripts + sources + find("examples/kubernetes/*.yaml"):
            self.assertIn(f'--8<-- "{path}', text)
        self.assertEqual({os.path.splitext(path)[0] for path in sources}, {os.path.splitext(path)[0] for path in find("examples/api/*.console")})

    def test_each_runs_itself(self):
        for path in find("examples/api/*.console"):
            name = os.path.splitext(os.path.basename(path))[0]
            self.assertRegex(read(path), rf"^\$ (?:[A-Z_]+=\S+ )*unisono launch [^\n]*\./{name}( |\n)", path)


if __name__ == "__main__":
    unittest.main()
