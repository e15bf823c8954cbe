"""The files that long comparisons write while they run, and from which they continue."""

import json
import sys


def kept(path, settings):
    """The results that an earlier run with these settings wrote; empty if there is no file. SystemExit: the file has other
    settings."""
    if not path.exists():
        return {}
    result = json.loads(path.read_text())
    for name, wanted in settings.items():
        if result.get(name) != wanted:
            sys.exit(f"--resume: {path} has {name}={result.get(name)}, not {wanted}")
    return result


def write_whole(path, text):
    """Whole or not at all: whoever is ended meanwhile has the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    beside.replace(path)
