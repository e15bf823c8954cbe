#!/usr/bin/env python3
"""The manual pages of both tools: they render without a warning, and leave out no command, option or variable."""

import re
import shutil
import subprocess
import unittest

from support import COMMANDS, options_of, read, tool

SECTIONS = ["NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "OPTIONS", "ENVIRONMENT", "EXIT STATUS", "EXAMPLES", "SEE ALSO"]


def rendered(page, width=80):
    """The page as a terminal of that width shows it, and what groff has to say against it."""
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Kutf8", "-Tutf8", "-P-cbou", f"-rLL={width}n"],
        input=page,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    return done.stdout.replace("\u2010", "-"), done.stderr


class Page(unittest.TestCase):
    name = ""

    @classmethod
    def setUpClass(cls):
        if not cls.name:
            raise unittest.SkipTest("the base of the others")
        if not shutil.which("groff"):
            raise unittest.SkipTest("groff is not installed (tools/install_dependencies test)")
        cls.page = tool("man", name=cls.name)
        cls.text, cls.warnings = rendered(cls.page)

    def part(self, section):
        """The lines of one section."""
        following = SECTIONS[SECTIONS.index(section) + 1]
        return "\n" + self.text.split(f"\n{section}\n")[1].split(f"\n{following}\n")[0] + "\n"

    def test_groff_reports_no_warnings(self):
        self.assertEqual(self.warnings, "")
        self.assertEqual(rendered(self.page, 132)[1], "")

    def test_no_line_is_wider_than_the_terminal(self):
        self.assertEqual([line for line in self.text.splitlines() if len(line) > 80], [])

    def test_sections_are_those_of_a_manual_page_in_their_order(self):
        found = [line for line in self.text.splitlines() if line in SECTIONS]
        self.assertEqual(found, SECTIONS)

    def test_every_command_and_each_of_its_options_is_explained(self):
        for command in COMMANDS[self.name]:
            options = options_of(command, self.name)
            self.assertIn("--help", options)
            explained = self.part("OPTIONS").split(f"\n   {self.name} {command}\n")[1].split(f"\n   {self.name} ")[0]
            for name in options:
                self.assertRegex(explained, rf"(?m)^       (-\w, )?{re.escape(name)}\b", f"{name} of {command}")


class Unisono(Page):
    name = "unisono"

    def test_all_variables_that_the_library_reads_are_there_and_in_the_reference(self):
        sources = read("src/rendezvous/environment.cc") + read("src/rendezvous/security_options.cc")
        read_by_library = set(re.findall(r'"(UNISONO_[A-Z_]+)"', sources))
        self.assertGreater(len(read_by_library), 10)
        self.assertEqual(set(re.findall(r"UNISONO_[A-Z_]+", self.part("ENVIRONMENT"))), read_by_library)
        read_by_torch = {"UNISONO_SCHEDULE", "UNISONO_ORDER", "UNISONO_DELIVERY"}
        self.assertEqual(
            set(re.findall(r"UNISONO_[A-Z_]+", read("docs/reference/options.md"))), read_by_library | read_by_torch
        )

    def test_examples_keep_their_words(self):
        self.assertIn("unisono launch -n 4 -- ./train --epochs 3\n", self.part("EXAMPLES"))
        self.assertIn("--ssh 'ssh -p 2222 -i key' --", self.text)  # typewriter quotes, fit to be copied


class Lab(Page):
    name = "unisono-lab"

    def test_page_is_titled_by_its_name(self):
        self.assertTrue(self.page.startswith(".TH UNISONO\\-LAB 1 "), self.page[:40])


if __name__ == "__main__":
    unittest.main()
