// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>
#include <string_view>

namespace meshard {

/// Sets the error of this thread to one of the classes of `meshard._core`. Bytes of a damaged file that its message
/// quotes and that are no UTF-8 become U+FFFD, since Python otherwise raises UnicodeDecodeError in place of it.
inline void set_python_error(const char* type, std::string_view message)
{
    const auto text = pybind11::reinterpret_steal<pybind11::object>(
        PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace"));
    PyErr_SetObject(pybind11::module_::import("meshard._core").attr(type).ptr(), text.ptr());
}

}  // namespace meshard
