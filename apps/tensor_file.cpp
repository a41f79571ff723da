// SPDX-License-Identifier: Apache-2.0
#include "apps/tensor_file.h"

#include <array>
#include <memory>
#include <utility>

#include <torch/torch.h>

#include "partition/error.h"

namespace meshard {
namespace {

constexpr auto kTypes = std::to_array<std::pair<ArrayType, at::ScalarType>>({
    {ArrayType::F64, at::kDouble}, {ArrayType::F32, at::kFloat}, {ArrayType::F16, at::kHalf}, {ArrayType::BF16, at::kBFloat16},
    {ArrayType::I64, at::kLong}, {ArrayType::I32, at::kInt}, {ArrayType::I16, at::kShort}, {ArrayType::I8, at::kChar},
    {ArrayType::U8, at::kByte}, {ArrayType::BOOL, at::kBool},
});

}  // namespace

NamedArray to_named_array(std::string name, const at::Tensor& tensor)
{
    const auto kept = std::make_shared<const at::Tensor>(tensor.detach().cpu().contiguous());
    NamedArray array;
    array.name = std::move(name);
    bool known = false;
    for (const auto& [stored, type] : kTypes) {
        if (type != kept->scalar_type()) continue;
        array.type = stored;
        known = true;
    }
    if (!known) throw InvalidInput("'" + array.name + "' is " + at::toString(kept->scalar_type()) + ", which a safetensors file cannot hold. Convert it to a real type.");
    array.shape = kept->sizes().vec();
    array.data = static_cast<const std::byte*>(kept->const_data_ptr());
    array.owner = kept;
    return array;
}

at::Tensor to_tensor(const NamedArray& array)
{
    for (const auto& [stored, type] : kTypes) {
        if (stored == array.type) return torch::from_blob(const_cast<std::byte*>(array.data), array.shape, type).clone();
    }
    throw IoError("'" + array.name + "' is " + std::string(to_string(array.type)) + ", expected a floating, signed, U8 or BOOL type.");
}

}  // namespace meshard
