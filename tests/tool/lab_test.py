#!/usr/bin/env python3
"""`unisono lab` runs the second tool, and the words that have moved there say so."""

import os
import shutil
import subprocess
import tempfile
import unittest

from support import LAB, TOOL, tool

MOVED = (
    "bench compress",
    "simulate arc",
    "simulate averaging",
    "simulate loss",
    "simulate elastic",
    "simulate churn-trace",
    "drop-compute",
    "drop-compute plan",
)


def run(*argv, **environment):
    return subprocess.run(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


class LabCommand(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="unisono-lab-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.alone = os.path.join(self.folder, "bin", "unisono")  # /proc/self/exe names the file itself, not a link to it
        os.mkdir(os.path.dirname(self.alone))
        shutil.copy(TOOL, self.alone)

    def test_lab_command_has_the_arguments_output_and_exit_code_of_the_second_tool(self):
        self.assertEqual(tool("lab", "--help"), tool("--help", name="unisono-lab"))
        self.assertEqual(tool("lab", "help", "simulate", "loss"), tool("simulate", "loss", "--help", name="unisono-lab"))
        done = run(TOOL, "lab", "simulate", "los")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn(
            "unisono-lab simulate: 'los' is none of arc, averaging, loss, elastic, churn-trace; did you mean 'loss'?",
            done.stderr,
        )

    def test_lab_tool_is_found_in_path(self):
        self.assertEqual(
            run(self.alone, "lab", "--version", PATH=os.path.dirname(LAB)).stdout, tool("--version", name="unisono-lab")
        )

    def test_without_the_lab_tool_the_user_learns_how_to_get_it(self):
        done = run(self.alone, "lab", "simulate", "loss", PATH=self.folder)
        self.assertEqual((done.returncode, done.stdout), (127, ""))
        self.assertIn("unisono-lab is not installed", done.stderr)
        self.assertIn("UNISONO_LAB", done.stderr)

    def test_a_file_that_cannot_be_executed_is_not_reported_as_missing(self):
        with open(os.path.join(os.path.dirname(self.alone), "unisono-lab"), "w", encoding="utf-8") as file:
            file.write("")
        done = run(self.alone, "lab", PATH=self.folder)
        self.assertEqual(done.returncode, 126)
        self.assertIn("cannot start unisono-lab: Permission denied", done.stderr)

    def test_moved_commands_name_the_new_tool(self):
        for words in MOVED:
            for argv in ((TOOL, *words.split(), "--loud"), (TOOL, "help", *words.split())):
                done = run(*argv)
                self.assertEqual((done.returncode, done.stdout), (2, ""), argv)
                self.assertIn("unisono-lab " + " ".join(words.split()[:1 if words.startswith("drop") else 2]), done.stderr)


if __name__ == "__main__":
    unittest.main()
