#!/usr/bin/env python3
"""Rules for the options of all commands of both tools.

Results: --json takes no value, and makes standard output JSON. --output FILE writes the results to a file: JSON where the
command has --json, otherwise the one form that its result has. Errors: a wrong option or value is named in plain words.

Commands and options are read from the help pages. A new command belongs into RESULTS, or into NO_RESULT with the reason."""

import concurrent.futures
import json
import os
import re
import subprocess
import tempfile
import unittest

from support import PROGRAMS, tool

# For each command that has a result: a call that takes a moment.
RESULTS = {
    "unisono bench": "-n 1 --sizes 4 --iters 1",
    "unisono tune": "all-reduce -n 1 --sizes 1K --rounds 1 --round-time 1ms",
    "unisono doctor": "-n 1",
    "unisono top": "{records} --once --interval 10ms",
    "unisono explain": "{records}",
    "unisono trace": "{records}",
    "unisono metrics": "{records}",
    "unisono simulate": "all-reduce --peers 2 --bytes 1K --faults none --seeds 0",
    "unisono codec": "compare {elements}",
    "unisono key": "",
    "unisono completion": "bash",
    "unisono man": "",
    "unisono-lab simulate arc": "--problem quadratic --method dense --ranks 2 --steps 2",
    "unisono-lab simulate averaging": "--peers 8 --absence 0 --algorithm gossip --restarts 1",
    "unisono-lab simulate loss": "--problem drift --peers 2 --steps 100",
    "unisono-lab simulate elastic": "--peers 4 --averaging-steps 1",
    "unisono-lab simulate churn-trace": "--peers 4 --min 2",
    "unisono-lab drop-compute plan": "--workers 8 --micro-batches 2 --mean 1s --sd 250ms --comm 500ms",
    "unisono-lab drop-compute search": "{trace}",
    "unisono-lab drop-compute simulate": "--workers 2 --steps 5",
    "unisono-lab bench compress": "-n 1 --shape 8x8 --steps 1 --method dense",
    "unisono-lab completion": "bash",
    "unisono-lab man": "",
}
NO_RESULT = {
    "unisono launch": "shows what its ranks print",
    "unisono rendezvous": "serves until it is stopped",
    "unisono lab": "runs the other tool",
}
CALLS = {**RESULTS, "unisono launch": "-n 1 -- true", "unisono rendezvous": ""}
MISSING, FULL = "/nonexistent/x", "/dev/full"
HUGE = "99999999999999999999999"
DRAWN = {"unisono key"}  # each call has another result of the same length, and a file that exists stays as it is
ANY_TEXT = {"--job", "--interface"}  # every text is a valid value
WRONG = {"--ssh": "'", "--hosts": "a:0", "--env": "=x"}  # where a question mark would be valid
# Options that need another call than the usual one, because they do not go with its words.
ALONE = {
    "unisono bench --begin": "-n 1",
    "unisono bench --end": "-n 1",
    "unisono bench --factor": "-n 1",
    "unisono bench --step": "-n 1",
    "unisono bench --compare": "",
    "unisono rendezvous --key-file": "--listen 127.0.0.1:0",
    "unisono tune --begin": "-n 1",
    "unisono tune --end": "-n 1",
    "unisono tune --factor": "-n 1",
    "unisono-lab drop-compute plan --from-trace": "--workers 8",
}


class Option:
    def __init__(self, head):
        names, *value = head.split()
        self.names = names.split(",")
        self.name = self.names[-1]
        self.value = value[0] if value else None
        self.count = 2 if value[1:] == ["x", "2"] else 1

    def is_file(self):
        return self.value in ("FILE", "PREFIX")


def options_of(command):
    """The options on a command's help page. What they mean begins in the 35th column, or on the next line."""
    program, *words = command.split()
    lines = [line for line in tool(*words, "--help", name=program).splitlines() if line.startswith("  -")]
    return [Option(line[:34] if len(line) > 34 and line[33] == " " else line) for line in lines]


def all_commands():
    found = []
    for name in PROGRAMS:
        listed = tool("help", name=name).split("\nCommands:\n")[1].split("\n\n")[0]
        names = re.findall(r"^  ([a-z][a-z-]*(?: [a-z][a-z-]*)?) ", listed, re.MULTILINE)
        groups = {words.split()[0] for words in names if " " in words}
        found += [f"{name} {words}" for words in names if words not in groups | {"help"}]
    return found


def is_json(text):
    """Whether every line is a JSON object, and there is one at least."""
    try:
        return bool(text) and all(isinstance(json.loads(line), dict) for line in text.splitlines())
    except ValueError:
        return False


class OptionsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="unisono-options-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.files = {name: os.path.join(cls.folder, name) for name in ("records", "elements", "trace")}
        with open(cls.files["elements"], "wb") as file:
            file.write(bytes(4096))
        cls.run_words("unisono bench", RESULTS["unisono bench"].split(), UNISONO_RECORD_DIR=cls.files["records"])
        cls.run_words("unisono-lab drop-compute simulate", ["--workers", "2", "--steps", "1", "--trace", cls.files["trace"]])
        cls.options = {command: options_of(command) for command in all_commands()}

    @classmethod
    def run_words(cls, command, words, **environment):
        program, *names = command.split()
        return subprocess.run(
            [PROGRAMS[program], *names, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
            check=False,
            cwd=cls.folder,
            env={**os.environ, **environment},
        )

    def words_of(self, call):
        return call.format(**self.files).split()

    def run_result(self, command, *words):
        """Standard output of the command's usual call, which must succeed. With nothing wrong, only `doctor` may end otherwise:
        it judges this machine."""
        done = self.run_words(command, [*self.words_of(RESULTS[command]), *words])
        self.assertIn(done.returncode, (0, 1) if command == "unisono doctor" else (0,), (command, words, done.stderr))
        return done.stdout

    def path(self, name="result"):
        path = os.path.join(self.folder, name)
        if os.path.exists(path):
            os.remove(path)
        return path

    def contents(self, path):
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def has(self, command, name):
        return any(name in option.names for option in self.options[command])

    def check_in_parallel(self, checks):
        """Each check returns a text that says what is wrong, or None."""
        with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
            wrong = [text for text in pool.map(lambda check: check(), checks) if text]
        self.assertEqual(wrong, [], "\n".join(wrong))


class Results(OptionsTest):
    def test_every_command_is_in_one_of_the_lists(self):
        self.assertEqual(sorted(self.options), sorted([*RESULTS, *NO_RESULT]))

    def test_json_takes_no_value_and_output_takes_a_file(self):
        for command, options in self.options.items():
            by_name = {option.name: option for option in options}
            self.assertEqual("--output" in by_name, command in RESULTS, command)
            if "--output" in by_name:
                self.assertEqual(by_name["--output"].value, "FILE", command)
            if "--json" in by_name:
                self.assertIsNone(by_name["--json"].value, command)
                self.assertIn("--output", by_name, command)
            letter = next((option for option in options if "-o" in option.names), by_name.get("--output"))
            self.assertIn(letter.name if letter else "--output", ("--output", "--op"), command)

    def test_json_prints_and_output_writes_the_same_beside_the_text(self):
        commands = [command for command in RESULTS if self.has(command, "--json")]
        self.assertGreater(len(commands), 10)
        for command in commands:
            with self.subTest(command=command):
                printed = self.run_result(command, "--json")
                self.assertTrue(is_json(printed), printed)
                for more in ([], ["--json"]):
                    path = self.path()
                    out = self.run_result(command, "--output", path, *more)
                    self.assertEqual(is_json(out), bool(more), out)
                    self.assertNotEqual(out, "")
                    written = self.contents(path)
                    self.assertTrue(is_json(written), written)
                    self.assertEqual(
                        [sorted(json.loads(line)) for line in written.splitlines()],
                        [sorted(json.loads(line)) for line in printed.splitlines()],
                    )
                self.assertTrue(is_json(self.run_result(command, "--output", "-")))
                self.assertFalse(os.path.exists(os.path.join(self.folder, "-")))

    def test_a_result_of_one_form_goes_to_the_file_instead(self):
        for command in RESULTS:
            if self.has(command, "--json") or command == "unisono tune":
                continue
            with self.subTest(command=command):
                printed = self.run_result(command)
                self.assertNotEqual(printed, "")
                same = (lambda text: len(text)) if command in DRAWN else (lambda text: text)
                self.assertEqual(same(self.run_result(command, "--output", "-")), same(printed))
                path = self.path()
                self.assertEqual(self.run_result(command, "-o", path), "")
                self.assertEqual(same(self.contents(path)), same(printed))

    def test_tune_writes_its_file_beside_the_table(self):
        path = self.path()
        self.assertIn("# ", self.run_result("unisono tune", "--output", path))
        self.assertTrue(self.contents(path).startswith("unisono tuning "))
        done = self.run_words("unisono tune", ["-n", "1", "--output", "-"])
        self.assertEqual(done.returncode, 2)
        self.assertIn("--output: expected the name of a file", done.stderr)

    def test_codec_writes_elements_to_the_file_and_numbers_to_standard_output(self):
        path = self.path()
        done = self.run_words("unisono codec", ["roundtrip", self.files["elements"], "--json", "--output", path])
        self.assertTrue(is_json(done.stdout), done.stderr)
        self.assertEqual(os.path.getsize(path), 4096)

    def test_a_file_that_cannot_be_written_is_named_with_its_option_and_the_reason(self):
        for command, call in RESULTS.items():
            for path, reason in ((MISSING, "No such file or directory"), (FULL, "No space left on device")):
                if path == FULL and command in {"unisono tune", *DRAWN}:
                    continue  # it writes another file and renames it, or writes no file that exists
                done = self.run_words(command, [*self.words_of(call), "--output", path])
                self.assertIn(done.returncode, (1, 2), command)
                self.assertIn(f"--output: cannot write {path}", done.stderr, command)
                self.assertIn(reason, done.stderr, command)


class Errors(OptionsTest):
    def values(self):
        """(command, option) of every option that takes a value."""
        for command in CALLS:
            for option in self.options[command]:
                if option.value:
                    yield command, option

    def call_with(self, command, option, value):
        """The words of the usual call, with this value instead of the option's own."""
        words = self.words_of(ALONE.get(f"{command} {option.name}", CALLS[command]))
        for name in option.names:
            if name in words:
                at = words.index(name)
                del words[at : at + 2]
        return [option.name, *[value] * option.count, *words]

    def says_nothing_of_the_option(self, command, option, value, may_be_valid):
        done = self.run_words(command, self.call_with(command, option, value))
        if may_be_valid and done.returncode == 0:
            return None
        message = done.stderr.split("\nTry ")[0]
        named = any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", message) for name in option.names)
        if done.returncode in (1, 2) and named:
            return None
        return f"{command} {option.name} {value}: {done.returncode}: {done.stderr.strip()}"

    def test_a_wrong_value_is_answered_with_the_name_of_its_option(self):
        checks = []
        for command, option in self.values():
            if option.name in ANY_TEXT:
                continue
            wrong = "/nonexistent/x/y" if option.is_file() else WRONG.get(option.name, "?")
            checks.append(lambda c=command, o=option, w=wrong: self.says_nothing_of_the_option(c, o, w, False))
            if not option.is_file() and option.name not in WRONG:
                checks.append(lambda c=command, o=option: self.says_nothing_of_the_option(c, o, HUGE, True))
        self.assertGreater(len(checks), 400)
        self.check_in_parallel(checks)

    def expect(self, command, words, message):
        done = self.run_words(command, words)
        if done.returncode == 2 and done.stderr == f"{command}: {message}\nTry '{command} --help'.\n" and done.stdout == "":
            return None
        return f"{command} {words}: expected {message!r}, got {done.returncode}: {done.stderr}"

    def test_a_missing_value_is_answered_with_the_name_of_its_option(self):
        checks = []
        for command, option in self.values():
            needs = "2 values" if option.count == 2 else "a value"
            message = f"{option.name} needs {needs}: {option.value}"
            checks += [lambda c=command, n=name, m=message: self.expect(c, [n], m) for name in option.names]
        self.check_in_parallel(checks)

    def test_a_flag_takes_no_value(self):
        checks = []
        for command in CALLS:
            for option in self.options[command]:
                if not option.value and option.name != "--help":
                    message = f"{option.name} takes no value"
                    checks.append(lambda c=command, o=option, m=message: self.expect(c, [f"{o.name}=x"], m))
        self.assertGreater(len(checks), 20)
        self.check_in_parallel(checks)

    def test_an_unknown_option_is_named_whether_its_name_is_long_or_short(self):
        checks = []
        for command in CALLS:
            checks.append(lambda c=command: self.expect(c, ["-Q", "x"], "there is no option '-Q'."))
            checks.append(lambda c=command: self.expect(c, ["--qqqqqqqqqq", "x"], "there is no option '--qqqqqqqqqq'."))
        self.check_in_parallel(checks)

    def test_a_number_that_is_too_large_is_named(self):
        message = "--peers '9999999': expected a whole number from 0 to 8192"
        self.assertIsNone(self.expect("unisono simulate", ["--peers", "9999999"], message))


if __name__ == "__main__":
    unittest.main()
