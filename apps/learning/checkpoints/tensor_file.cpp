// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/checkpoints/tensor_file.h"

#include "partition/error.h"

#include <ATen/ATen.h>

#include <array>
#include <memory>
#include <utility>

namespace meshard {
namespace {

constexpr auto kTypes = std::to_array<std::pair<ArrayType, at::ScalarType>>({
    {ArrayType::F64, at::kDouble},
    {ArrayType::F32, at::kFloat},
    {ArrayType::F16, at::kHalf},
    {ArrayType::BF16, at::kBFloat16},
    {ArrayType::I64, at::kLong},
    {ArrayType::I32, at::kInt},
    {ArrayType::I16, at::kShort},
    {ArrayType::I8, at::kChar},
    {ArrayType::U8, at::kByte},
    {ArrayType::BOOL, at::kBool},
});

}  // namespace

std::optional<ArrayType> array_type_of(at::ScalarType type)
{
    for (const auto& [stored, known] : kTypes) {
        if (known == type) return stored;
    }
    return std::nullopt;
}

NamedArray to_named_array(std::string name, const at::Tensor& tensor)
{
    const auto kept = std::make_shared<const at::Tensor>(tensor.detach().cpu().contiguous());
    const auto type = array_type_of(kept->scalar_type());
    if (!type)
        throw InvalidInput("'{}' is {}, which a safetensors file cannot hold. Convert it to a real type.", name,
                           at::toString(kept->scalar_type()));
    return {std::move(name), *type, kept->sizes().vec(), static_cast<const std::byte*>(kept->const_data_ptr()), kept};
}

at::Tensor view_of(const NamedArray& array)
{
    for (const auto& [stored, type] : kTypes) {
        if (stored == array.type) return at::from_blob(const_cast<std::byte*>(array.data), array.shape, type);
    }
    throw IoError("'{}' is {}, expected a floating, signed, U8 or BOOL type.", array.name, to_string(array.type));
}

at::Tensor to_tensor(const NamedArray& array)
{
    return view_of(array).clone();
}

}  // namespace meshard
