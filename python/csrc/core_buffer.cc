// Turns arrays into memory for operations, and memory of the library into arrays.
#include <pybind11/numpy.h>

#include <cmath>
#include <cstring>

#include "core.h"

namespace unisono_python {

namespace {

std::string type_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

// Returns the name of an array's element type, such as "float32" or "bfloat16". The text is empty if the object is not an
// array.
std::string dtype_name(py::handle object) {
  if (!py::hasattr(object, "dtype") || !py::hasattr(object.attr("dtype"), "name")) return {};
  return py::str(object.attr("dtype").attr("name"));
}

// Returns the element type for a format letter and an element size of the buffer protocol. Returns nullopt if the library has
// no such type.
std::optional<DType> dtype_of_format(const char* format, py::ssize_t itemsize) {
  if (format == nullptr) return itemsize == 1 ? std::optional(DType::u8) : std::nullopt;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (*format == '\0' || format[1] != '\0') return {};  // this also refuses '>', which means big-endian elements
  const auto of_size = [&](DType one, DType two, DType four, DType eight) -> std::optional<DType> {
    switch (itemsize) {
      case 1: return one;
      case 2: return two;
      case 4: return four;
      case 8: return eight;
      default: return {};
    }
  };
  if (std::strchr("bhilqn", *format)) return of_size(DType::i8, DType::i16, DType::i32, DType::i64);
  if (std::strchr("BHILQN", *format)) return of_size(DType::u8, DType::u16, DType::u32, DType::u64);
  if (*format == 'e') return DType::f16;
  if (*format == 'f') return DType::f32;
  if (*format == 'd') return DType::f64;
  return {};
}

[[noreturn]] void refuse_dtype(py::handle object, const std::string& what, const char* format) {
  auto name = dtype_name(object);
  if (name.empty()) name = std::string("the buffer format '") + (format == nullptr ? "" : format) + "'";
  throw py::type_error(
      what + ": elements are " + name +
      "; wanted: float32, float64, float16, bfloat16, or integers of 8 to 64 bits, in this machine's byte order");
}

std::string shape_text(const Py_buffer& view) {
  std::string text = "(";
  for (int i = 0; i < view.ndim; ++i) text += (i > 0 ? ", " : "") + std::to_string(view.shape[i]);
  if (view.ndim == 1) text += ",";
  return text + ")";
}

}  // namespace

void Buffer::Release::operator()(Py_buffer* view) const {
  PyBuffer_Release(view);
  delete view;
}

Buffer::Buffer(py::handle object, const std::string& what, Access access, std::optional<DType> dtype) {
  // NumPy cannot export arrays of bfloat16 elements (from the package ml_dtypes). So a view of them as uint16 is exported
  // instead.
  const bool is_bfloat16 = dtype_name(object) == "bfloat16";
  const auto exporter = is_bfloat16 ? py::object(object.attr("view")("uint16")) : py::reinterpret_borrow<py::object>(object);
  if (!PyObject_CheckBuffer(exporter.ptr()))
    throw py::type_error(what + ": " + type_name(object) +
                         " is no array (wanted: a NumPy array, or an object with the buffer protocol)");
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(exporter.ptr(), view.get(), PyBUF_FULL_RO) != 0) {
    PyErr_Clear();
    refuse_dtype(object, what, nullptr);
  }
  view_.reset(view.release());
  const auto found = dtype_of_format(view_->format, view_->itemsize);
  if (!found) refuse_dtype(object, what, view_->format);
  dtype_ = is_bfloat16 ? DType::bf16 : *found;
  if (dtype && *dtype != dtype_) {
    if (*dtype != DType::bf16 || dtype_ != DType::u16)
      throw py::type_error(what + ": elements are " + name(dtype_) + ", and dtype says " + name(*dtype) +
                           " (dtype=bf16 is allowed for uint16 only)");
    dtype_ = DType::bf16;
  }
  if (PyBuffer_IsContiguous(view_.get(), 'C') == 0)
    throw py::value_error(what + ": an array of shape " + shape_text(*view_) + " that is not C-contiguous" +
                          (access == Access::read ? " (see numpy.ascontiguousarray)" : ", and so cannot hold a result"));
  if (access == Access::write && view_->readonly)
    throw py::value_error(what + ": an array of shape " + shape_text(*view_) + " that is read-only");
  count_ = static_cast<size_t>(view_->len / view_->itemsize);
}

std::vector<py::ssize_t> Buffer::shape() const { return {view_->shape, view_->shape + view_->ndim}; }

Buffer float_buffer(py::handle object, const std::string& what, Access access) {
  Buffer buffer(object, what, access);
  if (buffer.dtype() != DType::f32) throw py::type_error(what + ": elements are " + name(buffer.dtype()) + "; wanted: float32");
  return buffer;
}

std::vector<Buffer> float_buffers(py::handle arrays, const std::string& what, Access access) {
  std::vector<Buffer> buffers;
  if (PyObject_CheckBuffer(arrays.ptr())) {
    buffers.push_back(float_buffer(arrays, what, access));
    return buffers;
  }
  if (!py::isinstance<py::iterable>(arrays))
    throw py::type_error(what + ": " + type_name(arrays) + " is neither an array nor a sequence of arrays");
  for (const auto array : py::reinterpret_borrow<py::iterable>(arrays))
    buffers.push_back(float_buffer(array, what + " " + std::to_string(buffers.size()), access));
  return buffers;
}

py::object empty_like(py::handle like, DType dtype, const std::vector<py::ssize_t>& shape) {
  constexpr const char* names[] = {"float32", "float64", "float16", "uint16", "int8",   "int16",
                                   "int32",   "int64",   "uint8",   "uint16", "uint32", "uint64"};
  const auto type =
      py::hasattr(like, "dtype") ? py::object(like.attr("dtype")) : py::object(py::str(names[static_cast<size_t>(dtype)]));
  return py::module_::import("numpy").attr("empty")(py::tuple(py::cast(shape)), type);
}

py::object float_view(const float* data, size_t count, py::handle base, Access access) {
  py::array_t<float> array(static_cast<py::ssize_t>(count), data, base);
  if (access == Access::read) array.attr("flags").attr("writeable") = false;
  return array;
}

void CallArray::end(const char* what) const {
  if (array_.ref_count() > 1)
    throw std::runtime_error(std::string(what) + " has kept an array that is valid during the call only; it may keep a copy");
}

py::bytes bytes_of(const std::vector<std::byte>& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::span<const std::byte> span_of(const py::bytes& bytes) {
  const std::string_view text(bytes);
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace unisono_python
