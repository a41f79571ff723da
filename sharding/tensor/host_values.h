// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

/// Copies the values of a plain tensor of any device and numeric type.
template <class T>
std::vector<T> values_on_host(const at::Tensor& tensor)
{
    const auto here = tensor.to(at::kCPU, c10::CppTypeToScalarType<T>::value).contiguous();
    const auto* begin = here.template const_data_ptr<T>();
    return {begin, begin + here.numel()};
}

}  // namespace meshard
