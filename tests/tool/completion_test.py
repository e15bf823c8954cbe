#!/usr/bin/env python3
"""The completion scripts of both tools, asked by the shells they are for."""

import os
import pty
import select
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from support import COMMANDS, TOOL, options_of, tool

COLLECTIVES = [
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all-to-all",
    "send-recv",
    "barrier",
]
SCHEDULES = ["auto", "ring", "two_step", "halving_doubling", "hierarchical", "one_shot", "direct", "tree", "double_tree"]
# The words typed, and all words that may then be offered. The same for all shells.
CASES = {
    ("unisono", "lau"): ["launch"],
    ("unisono", "launch", "--transport", ""): ["auto", "shm", "tcp", "udp"],
    ("unisono", "launch", "-n", "2", "--transport", "s"): ["shm"],
    ("unisono", "bench", ""): COLLECTIVES,
    ("unisono-lab", "bench", "compress", "--data", ""): ["gaussian", "decay", "rank-one"],
    ("unisono-lab", "bench", "compress", "--feed"): ["--feedback"],
    ("unisono", "bench", "--feed"): [],
    ("unisono", "bench", "all-reduce", "--schedule", ""): SCHEDULES,
    ("unisono", "bench", "-d", "b"): ["bf16"],
    ("unisono", "simulate", "--faults", ""): ["none", "light", "heavy", "kill", "stop", "partition", "mixed"],
    ("unisono", "simulate", ""): ["all-reduce", "random", "wrong", "reform"],
    ("unisono-lab", "simulate", ""): ["arc", "averaging", "loss", "elastic", "churn-trace"],
    ("unisono-lab", "bench", ""): ["compress"],
    ("unisono-lab", "simulate", "loss", "--estimator", "c"): ["count", "count_all"],
    ("unisono-lab", "simulate", "elastic", "--times", ""): ["lan", "wan"],
    ("unisono-lab", "simulate", "arc", "--method", ""): ["dense", "arc", "exact", "random-k", "top-k"],
    ("unisono-lab", "simulate", "arc", "--fee"): ["--feedback"],
    ("unisono-lab", "simulate", "arc", "--fau"): [],
    ("unisono", "simulate", "random", "--fee"): [],
    ("unisono-lab", "drop"): ["drop-compute"],
    ("unisono-lab", "drop-compute", ""): ["plan", "search", "simulate"],
    ("unisono-lab", "drop-compute", "plan", "--rule", ""): ["at", "after", "before"],
    ("unisono-lab", "drop-compute", "search", "--sl"): ["--slack"],
    ("unisono-lab", "drop-compute", "simulate", "--objective", ""): ["step_mean", "total"],
    ("unisono-lab", "drop-compute", "--sl"): [],
    ("unisono", "codec", ""): ["roundtrip", "encode", "decode", "compare"],
    ("unisono", "codec", "encode", "--group", ""): ["32", "64", "128", "256"],
    ("unisono", "completion", ""): ["bash", "zsh", "fish"],
    ("unisono", "launch", "--keep"): ["--keep-going"],
    ("unisono", "help", "ren"): ["rendezvous"],
}


class Terminal:
    """A shell on a terminal of its own: words are typed, and what appears is waited for."""

    def __init__(self, argv, environment):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, {**os.environ, "TERM": "dumb", **environment})
        self.seen = ""

    def type(self, text):
        self.seen = ""
        os.write(self.master, text.encode())

    def wait_for(self, text, seconds=30):
        """Whether it appears after what was typed last."""
        end = time.monotonic() + seconds
        while text not in self.seen and time.monotonic() < end:
            if not select.select([self.master], [], [], max(0, end - time.monotonic()))[0]:
                break
            try:
                got = os.read(self.master, 65536)
            except OSError:
                break
            if not got:
                break
            self.seen += got.decode(errors="replace")
        return text in self.seen

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.master)


class ShellTest(unittest.TestCase):
    shell = ""

    @classmethod
    def setUpClass(cls):
        if not cls.shell:
            raise unittest.SkipTest("the base of the others")
        if not shutil.which(cls.shell):
            raise unittest.SkipTest(f"{cls.shell} is not installed (tools/install_dependencies test)")
        cls.folder = tempfile.TemporaryDirectory(prefix="unisono-completion-")
        cls.addClassCleanup(cls.folder.cleanup)
        # Both in one shell, where neither may disturb the other.
        cls.script = os.path.join(cls.folder.name, "completion_scripts")
        with open(cls.script, "w", encoding="utf-8") as file:
            for name in COMMANDS:
                with open(os.path.join(cls.folder.name, "_" + name), "w", encoding="utf-8") as one:
                    one.write(tool("completion", cls.shell, name=name))
                file.write(f". {cls.folder.name}/_{name}\n")
        for name in ("result.json", "other.txt", "a file"):
            with open(os.path.join(cls.folder.name, name), "w", encoding="utf-8") as file:
                file.write("")

    def run_shell(self, *argv):
        done = subprocess.run(argv, cwd=self.folder.name, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""), argv)
        return done.stdout.splitlines()

    def open_terminal(self, *argv, **environment):
        terminal = Terminal(
            argv, {"PATH": os.path.dirname(TOOL) + ":" + os.environ["PATH"], "HOME": self.folder.name, **environment}
        )
        self.addCleanup(terminal.close)
        return terminal

    def expect_shown(self, terminal, typed, shown):
        terminal.type(typed)
        self.assertTrue(terminal.wait_for(shown), f"typed {typed!r}, waited for {shown!r}, saw {terminal.seen!r}")


class Bash(ShellTest):
    shell = "bash"

    def offered(self, *words):
        program = (
            'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); f=_${1//-/_}; $f; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        return [line for line in self.run_shell("bash", "--norc", "-c", program, "bash", self.script, *words) if line]

    def test_commands_options_and_values_are_offered(self):
        for words, expected in CASES.items():
            self.assertEqual(sorted(self.offered(*words)), sorted(expected), words)

    def test_every_option_of_every_command_is_offered(self):
        for name, commands in COMMANDS.items():
            first = (
                [command for command in commands if " " not in command]
                + ["help", "--help", "--version"]
                + (["lab"] if name == "unisono" else [])
            )
            self.assertEqual(sorted(self.offered(name, "")), sorted(first))
            for command in commands:
                self.assertEqual(sorted(self.offered(name, *command.split(), "-")), sorted(options_of(command, name)), command)

    def test_values_after_an_equals_sign_are_offered(self):
        self.assertEqual(self.offered("unisono", "launch", "--transport", "=", "t"), ["tcp"])
        self.assertEqual(self.offered("unisono", "launch", "--transport", "="), ["auto", "shm", "tcp", "udp"])

    def test_files_are_offered_only_where_a_file_is_expected(self):
        self.assertEqual(self.offered("unisono", "bench", "--output", "res"), ["result.json"])
        self.assertEqual(self.offered("unisono", "simulate", "--trace", "a"), ["a file"])
        self.assertEqual(self.offered("unisono", "codec", "encode", "res"), ["result.json"])
        self.assertEqual(self.offered("unisono", "trace", "a"), ["a file"])
        self.assertEqual(self.offered("unisono-lab", "drop-compute", "search", "oth"), ["other.txt"])
        self.assertEqual(self.offered("unisono-lab", "drop-compute", "plan", "--from-trace", "oth"), ["other.txt"])
        self.assertEqual(self.offered("unisono", "bench", "--timeout", "res"), [])
        self.assertNotIn("result.json", self.offered("unisono", "bench", "--json", "res"))

    def test_after_launch_the_program_completes_its_own_arguments(self):
        for words in (["--"], ["-n", "2", "--"], ["-n", "2", "cat"], ["--transport", "=", "shm", "--pin", "cat"]):
            self.assertEqual(self.offered("unisono", "launch", *words, "result"), ["result.json"], words)
        self.assertEqual(
            self.offered("unisono", "launch", "--", "cat", "--transport", "s"), [], "the program's option, not ours"
        )
        self.assertIn("cat", self.offered("unisono", "launch", "-n", "2", "ca"))

    def test_completions_work_on_a_terminal(self):
        terminal = self.open_terminal("bash", "--norc", "--noprofile", "-i", PS1="ready> ", INPUTRC="/dev/null")
        self.expect_shown(terminal, f". {self.script}; echo sou''rced\n", "sourced")
        self.expect_shown(terminal, "echo unisono; unisono launch --transport=s\t", "--transport=shm")


class Fish(ShellTest):
    shell = "fish"

    def offered(self, *words):
        line = " ".join(words).replace("'", "\\'")
        lines = self.run_shell("fish", "--no-config", "-c", f"source {self.script}; complete -C '{line}'")
        return [entry.split("\t")[0] for entry in lines]

    def test_commands_options_and_values_are_offered(self):
        for words, expected in CASES.items():
            self.assertEqual(sorted(self.offered(*words)), sorted(expected), words)

    def test_every_long_option_of_every_command_is_offered(self):
        for name, commands in COMMANDS.items():
            for command in commands:
                wanted = [option for option in options_of(command, name) if option.startswith("--")]
                self.assertEqual(sorted(self.offered(name, *command.split(), "--")), sorted(wanted), command)

    def test_values_after_an_equals_sign_and_files_are_offered(self):
        self.assertEqual(self.offered("unisono", "launch", "--transport=t"), ["--transport=tcp"])
        self.assertEqual(self.offered("unisono", "bench", "--output", "res"), ["result.json"])

    def test_after_dashes_the_program_completes_its_own_arguments(self):
        self.assertEqual(self.offered("unisono", "launch", "-n", "2", "--", "cat", "res"), ["result.json"])
        self.assertEqual(self.offered("unisono", "launch", "--", "unisono", "bench", "--op", "ba"), ["band"])


class Zsh(ShellTest):
    shell = "zsh"

    def test_commands_options_values_and_files_are_offered_on_a_terminal(self):
        terminal = self.open_terminal("zsh", "-f", "-i", COLUMNS="200")
        # The line editor draws only what changes: a key of our own shows the whole line.
        show = "show() { print -r -- \"<$BUFFER>\" }; zle -N show; bindkey '^X' show"
        self.expect_shown(
            terminal,
            f"cd {self.folder.name}; autoload -Uz compinit; compinit -u -D; . {self.script}; {show}; echo sou''rced\n",
            "sourced",
        )
        for typed, rest in (
            ("unisono lau", "nch "),
            ("unisono launch --transport s", "hm "),
            ("unisono launch --transport=t", "cp "),
            ("unisono launch --keep", "-going "),
            ("unisono bench all-r", "educe "),
            ("unisono bench -d b", "f16 "),
            ("unisono-lab bench comp", "ress "),
            ("unisono-lab bench compress --data dec", "ay "),
            ("unisono-lab bench compress --gradients res", "ult.json "),
            ("unisono simulate --faults part", "ition "),
            ("unisono-lab simulate arc --method ran", "dom-k "),
            ("unisono-lab simulate arc --feed", "back="),
            ("unisono simulate rand", "om "),
            ("unisono-lab drop-compute sear", "ch "),
            ("unisono-lab drop-compute search --objective to", "tal "),
            ("unisono-lab drop-compute search oth", "er.txt "),
            ("unisono bench --output res", "ult.json "),
            ("unisono completion f", "ish "),
            ("unisono codec enc", "ode "),
            ("unisono codec encode res", "ult.json "),
            ("unisono help ren", "dezvous "),
            ("unisono launch -n 2 -- cat res", "ult.json "),
            ("unisono launch -n 2 cat res", "ult.json "),
        ):
            shown = typed + rest
            self.expect_shown(terminal, "\x15" + typed + "\t\x18", f"<{shown}>")


if __name__ == "__main__":
    unittest.main()
