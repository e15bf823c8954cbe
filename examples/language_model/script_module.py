"""For tests: a program of this folder, whose name has no ending, as a module."""

import importlib.machinery
import importlib.util
import pathlib


def script_module(name):
    loader = importlib.machinery.SourceFileLoader(name, str(pathlib.Path(__file__).resolve().parent / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module
