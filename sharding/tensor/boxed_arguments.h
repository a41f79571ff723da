// SPDX-License-Identifier: Apache-2.0
// For boxed kernels below autograd: dispatch keys, names of operators, and the tensors among arguments and results.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <utility>

namespace meshard {

/// Dispatch keys of autograd, view tracking and autocast. These layers have run before such a kernel, which must
/// exclude them while it calls other operators.
const c10::DispatchKeySet& recording_layers();

/// Excludes the recording layers while a rule runs. In inference mode results are inference tensors, but views of
/// ordinary tensors are ordinary ones, as LibTorch wants them: these alone come by way of the layer ADInplaceOrView.
class BelowRecording {
public:
    BelowRecording();
    ~BelowRecording();
    BelowRecording(const BelowRecording&) = delete;
    BelowRecording& operator=(const BelowRecording&) = delete;

private:
    bool makes_ordinary_;
    c10::impl::ExcludeDispatchKeyGuard guard_;
};

/// `aten::sum.dim_IntList`
std::string full_name_of(const c10::OperatorName& name);

/// Returns false for composite operators: LibTorch replaces them by their parts above autograd.
bool arrives_below_autograd(const c10::OperatorHandle& op);

/// Every aten operator that arrives below autograd.
template <class F>
void for_each_aten_operator(F&& f)
{
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
        if (name.getNamespace() != "aten") continue;
        const auto op = c10::Dispatcher::singleton().findOp(name);
        if (op && arrives_below_autograd(*op)) f(*op);
    }
}

inline bool is_optional_tensor_list(const c10::IValue& value)
{
    return value.isList() && value.type()->containedType(0)->isSubtypeOf(*c10::OptionalType::ofTensor());
}

/// Calls `f(tensor)` for every defined tensor in `value`, which may be a tensor or a list of (optional) tensors.
template <class F>
void for_each_tensor(const c10::IValue& value, F&& f)
{
    if (value.isTensor()) {
        if (value.toTensor().defined()) f(value.toTensor());
    } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorList()) f(tensor);
    } else if (is_optional_tensor_list(value)) {
        for (const auto& element : value.toListRef()) {
            if (element.isTensor() && element.toTensor().defined()) f(element.toTensor());
        }
    }
}

/// Replaces every tensor in `value` by `f(tensor)`. Lists are replaced by new lists.
template <class F>
void map_tensors(c10::IValue& value, F&& f)
{
    if (value.isTensor()) {
        if (value.toTensor().defined()) value = f(value.toTensor());
    } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorList()) list.push_back(f(tensor));
        value = std::move(list);
    } else if (is_optional_tensor_list(value)) {
        c10::List<std::optional<at::Tensor>> list;
        for (const auto& element : value.toListRef()) {
            if (element.isTensor() && element.toTensor().defined())
                list.push_back(f(element.toTensor()));
            else
                list.push_back(std::nullopt);
        }
        value = std::move(list);
    }
}

}  // namespace meshard
