"""Shared by the tests of the documentation."""

import glob
import importlib.machinery
import importlib.util
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOLS = {"unisono": os.environ.get("UNISONO_TOOL", os.path.join(ROOT, "build", "release", "unisono")),
         "unisono-lab": os.environ.get("UNISONO_LAB", os.path.join(ROOT, "build", "release", "unisono-lab"))}


def tool(*words, name="unisono"):
    """Standard output of a tool, which must succeed."""
    return subprocess.run([TOOLS[name], *words], stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout


def program(path):
    """A program of the tree without ending, as a module."""
    name = os.path.basename(path)
    loader = importlib.machinery.SourceFileLoader(name, os.path.join(ROOT, path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    sys.modules[name] = module  # dataclasses look for themselves there
    loader.exec_module(module)
    return module


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def find(pattern):
    """Paths below the root, sorted."""
    return sorted(os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, pattern), recursive=True))


def pages():
    """Every page of the site by its path; STYLE.md and CHANGELOG.md are not about use."""
    return {path: read(path) for path in [*find("docs/**/*.md"), "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]}
