"""What the library reports that no call returns: to on_event, to logging, and to the log that UNISONO_LOG names."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

NO_FOLDER = "/proc/no/such"
TEXT = f"the record of this group is not in UNISONO_RECORD_DIR ({NO_FOLDER}), so it is lost when this process ends: No such file or directory ({NO_FOLDER})"


def run(script, **environment):
    # A group of one process needs no rendezvous.
    words = {"UNISONO_RANK": "0", "UNISONO_WORLD_SIZE": "1", "UNISONO_RECORD_DIR": NO_FOLDER, **environment}
    clean = {name: value for name, value in os.environ.items() if name != "UNISONO_LOG"}
    return subprocess.run([sys.executable, "-c", script], env={**clean, **words}, capture_output=True, text=True, timeout=120)


class Events(unittest.TestCase):
    def test_a_function_gets_the_events_in_order(self):
        done = run(
            """
import threading, unisono
got, both = [], threading.Event()
def on_event(event):
    got.append(event)
    if len(got) == 2:
        both.set()
group = unisono.join(on_event=on_event)
assert both.wait(60), got
for event in got:
    print(event.kind, event.level, event.rank, event.source.startswith("rank 0 (host "), event.time > 1e9, event.text, sep="|")
"""
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(
            done.stdout.splitlines(),
            [
                f"record_unavailable|warning|None|True|True|{TEXT}",
                "joined|info|None|True|True|joined a group of 1 rank on 1 host, epoch 1",
            ],
        )
        self.assertEqual(done.stderr, "")

    def test_without_a_function_the_logger_unisono_gets_the_events(self):
        done = run(
            """
import logging, threading, unisono
arrived = threading.Event()
class Handler(logging.Handler):
    def emit(self, record):
        print(record.name, record.levelname, record.unisono_event.kind, record.getMessage(), sep="|")
        if record.unisono_event.kind == "joined":
            arrived.set()
logger = logging.getLogger("unisono")
logger.setLevel(logging.INFO)
logger.addHandler(Handler())
group = unisono.join()
assert arrived.wait(60)
"""
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 2, done.stdout)
        self.assertTrue(
            lines[0].startswith(f"unisono|WARNING|record_unavailable|{TEXT} (record_unavailable; rank 0 (host "), lines[0]
        )
        self.assertTrue(lines[1].startswith("unisono|INFO|joined|joined a group of 1 rank"), lines[1])

    def test_with_UNISONO_LOG_the_library_writes_the_lines_itself(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "events.log"
            done = run("import unisono; group = unisono.join(); del group", UNISONO_LOG=str(path))
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            lines = path.read_text().splitlines()
        self.assertEqual(len(lines), 2, lines)
        self.assertTrue(lines[0].startswith(f"unisono: warning: {TEXT} (record_unavailable; rank 0 (host "), lines[0])
        self.assertTrue(lines[1].startswith("unisono: joined a group of 1 rank on 1 host, epoch 1 (joined; rank 0"), lines[1])

    def test_a_log_that_cannot_be_opened_is_reported_on_standard_error(self):
        done = run("import unisono; group = unisono.join(); del group", UNISONO_LOG="/proc/no/events.log", UNISONO_RECORD_DIR="")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(
            "unisono: warning: UNISONO_LOG: No such file or directory (/proc/no/events.log); events go to standard error instead",
            done.stderr,
        )

    def test_a_misspelt_level_is_refused(self):
        done = run("import unisono; unisono.join()", UNISONO_LOG="warnings")
        self.assertIn("unisono.Invalid: invalid: UNISONO_LOG is 'warnings'; needed: warning, info, or a path with a slash", done.stderr)

    def test_events_at_the_end_of_the_program_are_handed_on(self):
        done = run(
            """
import atexit, unisono
@atexit.register
def ends():
    unisono.join(on_event=lambda event: print(event.kind, flush=True))
unisono.join()
"""
        )
        self.assertEqual((done.returncode, done.stdout.splitlines()), (0, ["record_unavailable", "joined"]), done.stderr)

    def test_an_exception_of_the_function_is_logged_and_the_next_event_comes(self):
        done = run(
            """
import threading, unisono
arrived = threading.Event()
def on_event(event):
    if event.kind == "joined":
        arrived.set()
    raise RuntimeError("of the user")
group = unisono.join(on_event=on_event)
assert arrived.wait(60)
"""
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("on_event raised an exception", done.stderr)
        self.assertIn("RuntimeError: of the user", done.stderr)


if __name__ == "__main__":
    unittest.main()
