// unisono._core: the C++ API over NumPy arrays.
#include <pybind11/pybind11.h>

#include "unisono/version.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ API of Unisono.";
  m.attr("__version__") = UNISONO_VERSION;
}
