// Python classes for options and reports. Options can be made from a text or from single fields, and they can be compared and
// printed. Reports are read-only.
#pragma once

#include "core.h"

namespace unisono_python {

// Accepts an object of the class T, or a text that T::parse() can read.
template <typename T>
T option_of(py::handle value, const char* what) {
  if (py::isinstance<T>(value)) return value.cast<T>();
  if (py::isinstance<py::str>(value)) return check(T::parse(value.cast<std::string>()));
  throw py::type_error(std::string(what) + " is of the type " + Py_TYPE(value.ptr())->tp_name);
}
template <>
StepCodec option_of<StepCodec>(py::handle value, const char* what);

// The options `key` and `security` of groups and elastic runs. key_text() throws a cast_error, whose text does not contain the
// key, if the value is not a str.
std::string key_text(py::handle value);
Security security_word(py::handle value);

// Sets attributes of the object. Throws TypeError if the object does not have such an attribute.
void set_fields(py::handle object, const py::kwargs& fields);

// Binds a class of options. In Python, its objects can be made from a text, from single fields, or from both. They can be
// compared, and they are printed in the form that parse() can read.
template <typename T>
void add_options(py::class_<T>& bound, const std::string& name) {
  bound.def(py::init([](py::handle text, const py::kwargs& fields) {
              auto object = py::cast(text.is_none() ? T{} : option_of<T>(text, "options"));
              set_fields(object, fields);
              return py::cast<T>(object);
            }),
            py::arg("text") = py::none());
  bound.def_static(
      "parse", [](const std::string& text) { return check(T::parse(text)); }, py::arg("text"));
  bound.def("__str__", &T::to_string);
  bound.def("__repr__", [name](const T& self) { return name + "('" + self.to_string() + "')"; });
  bound.def(
      "__eq__", [](const T& self, const T& other) { return self == other; }, py::is_operator());
  bound.attr("__hash__") = py::none();
}
template <typename T, typename E>
void add_word(py::class_<T>& bound, const char* name, E T::*field, std::span<const char* const> list) {
  bound.def_property(
      name, [field, list](const T& self) { return list[static_cast<size_t>(self.*field)]; },
      [field, name, list](T& self, py::handle word) { self.*field = static_cast<E>(word_index(word, name, list)); });
}
template <typename T, typename Time>
void add_seconds(py::class_<T>& bound, const char* name, Time T::*field) {
  bound.def_property(
      name, [field](const T& self) { return std::chrono::duration<double>(self.*field).count(); },
      [field, name](T& self, double seconds) { self.*field = std::chrono::duration_cast<Time>(milliseconds(seconds, name)); });
}
template <typename T, typename Option>
void add_option(py::class_<T>& bound, const char* name, Option T::*field) {
  bound.def_property(
      name, [field](const T& self) { return self.*field; },
      [field, name](T& self, py::handle value) { self.*field = option_of<Option>(value, name); });
}
template <typename T>
void add_text(py::class_<T>& bound) {
  bound.def("__str__", &T::to_string);
  bound.def("__repr__", [](const py::object& self) {
    return "<unisono." + std::string(py::str(py::type::of(self).attr("__name__"))) + ": " +
           py::cast<const T&>(self).to_string() + ">";
  });
}

template <typename T, typename... Extra>
void add_fields_text(py::class_<T, Extra...>& bound) {
  bound.def("__repr__", fields_text);
}

}  // namespace unisono_python
