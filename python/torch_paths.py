"""Prints, separated by semicolons, what compiling against the installed torch needs: its library folder, its C++ ABI, its include folders."""

import pathlib

import torch
from torch.utils import cpp_extension

libraries = pathlib.Path(torch.__file__).parent / "lib"
print(";".join([str(libraries), str(int(torch.compiled_with_cxx11_abi())), *cpp_extension.include_paths()]))
