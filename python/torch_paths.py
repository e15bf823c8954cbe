"""Prints, separated by semicolons, what compiling against the installed torch needs: its library folder, its C++ ABI, its include folders."""

import torch
from torch.utils import cpp_extension

print(";".join([cpp_extension.library_paths()[0], str(int(torch.compiled_with_cxx11_abi())), *cpp_extension.include_paths()]))
