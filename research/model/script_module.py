"""For tests: imports a program whose file name has no extension as a module."""

import importlib.machinery
import importlib.util


def script_module(path):
    loader = importlib.machinery.SourceFileLoader(path.name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module
