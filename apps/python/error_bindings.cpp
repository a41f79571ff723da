// SPDX-License-Identifier: Apache-2.0
#include "apps/python/bindings.h"
#include "partition/error.h"
#include "sharding/tensor/operator_errors.h"
#include "sharding/tensor/rule_table.h"

#include <torch/csrc/Exceptions.h>

namespace py = pybind11;

namespace meshard {
namespace {

/// Python's classes of meshard's errors, which live as long as the process.
struct ErrorTypes {
    PyObject* error = nullptr;
    PyObject* invalid_input = nullptr;
    PyObject* missing_rule = nullptr;
    PyObject* communication = nullptr;
    PyObject* io = nullptr;
};

ErrorTypes& error_types()
{
    static ErrorTypes types;
    return types;
}

PyObject* make_type(py::module_& module, const char* name, const char* doc, PyObject* also)
{
    const auto full_name = std::string("meshard.") + name;
    py::tuple bases = py::make_tuple(py::handle(also));
    if (error_types().error) bases = py::make_tuple(py::handle(error_types().error), py::handle(also));
    PyObject* const type = PyErr_NewExceptionWithDoc(full_name.c_str(), doc, bases.ptr(), nullptr);
    if (!type) throw py::error_already_set();
    module.attr(name) = py::reinterpret_borrow<py::object>(type);
    return type;
}

PyObject* type_of(const Error& error)
{
    const auto& types = error_types();
    if (dynamic_cast<const InvalidInput*>(&error)) return types.invalid_input;
    if (dynamic_cast<const MissingShardRule*>(&error)) return types.missing_rule;
    if (dynamic_cast<const CommunicationError*>(&error)) return types.communication;
    if (dynamic_cast<const IoError*>(&error)) return types.io;
    return types.error;
}

/// An error that torch turns into the Python class of the one that it was made of.
struct TranslatedError : torch::PyTorchError {
    explicit TranslatedError(const Error& error) : PyTorchError(error.what()), type(type_of(error)) {}
    PyObject* python_type() override { return type; }

    PyObject* type;
};

}  // namespace

void bind_errors(py::module_& module)
{
    auto& types = error_types();
    types.error = make_type(module, "Error", "Base of the errors of meshard.", PyExc_Exception);
    types.invalid_input =
        make_type(module, "InvalidInput", "An argument that the caller can mend: a wrong shape, type, extent or name.",
                  PyExc_ValueError);
    types.missing_rule = make_type(module, "MissingShardRule",
                                   "An operator met sharded tensors in placements for which there is no exact rule.",
                                   PyExc_NotImplementedError);
    types.communication = make_type(module, "CommunicationError", "Another rank is missing, has ended, or is too late.",
                                    PyExc_ConnectionError);
    types.io =
        make_type(module, "IoError", "A file is absent, unreadable, damaged, or cannot be written.", PyExc_OSError);
    set_error_translation([](const Error& error) { throw TranslatedError(error); });
    py::register_exception_translator([](std::exception_ptr error) {
        try {
            if (error) std::rethrow_exception(error);
        } catch (const Error& known) {
            PyErr_SetString(type_of(known), known.what());
        }
    });
}

}  // namespace meshard
