"""Prints the values for compiling against the installed torch, separated by semicolons: library folder, C++ ABI, include
folders."""

import pathlib

import torch
from torch.utils import cpp_extension

libraries = pathlib.Path(torch.__file__).parent / "lib"
print(";".join([str(libraries), str(int(torch.compiled_with_cxx11_abi())), *cpp_extension.include_paths()]))
