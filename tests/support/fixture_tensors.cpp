// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fixture_tensors.h"

#include "io/checkpoints/safetensors.h"

#include <torch/types.h>

#include <stdexcept>

namespace meshard::test {
namespace {

at::ScalarType scalar_type(ArrayType type)
{
    switch (type) {
    case ArrayType::F64:
        return at::kDouble;
    case ArrayType::F32:
        return at::kFloat;
    case ArrayType::I64:
        return at::kLong;
    case ArrayType::I32:
        return at::kInt;
    case ArrayType::BOOL:
        return at::kBool;
    default:
        throw std::runtime_error("fixture: type " + std::string(to_string(type)) + " is not expected");
    }
}

}  // namespace

NamedTensors read_tensors(const std::filesystem::path& path)
{
    const auto file = read_safetensors(path);
    NamedTensors tensors;
    for (const auto& array : file.arrays) {
        tensors[array.name] =
            torch::from_blob(const_cast<std::byte*>(array.data), array.shape, scalar_type(array.type)).clone();
    }
    // A model that may give several results and gives one has it under the number 0.
    for (const std::string name : {"output", "output64", "grad_output"}) {
        if (!tensors.count(name + ".0") || tensors.count(name + ".1")) continue;
        auto only = tensors.extract(name + ".0");
        only.key() = name;
        tensors.insert(std::move(only));
    }
    return tensors;
}

}  // namespace meshard::test
