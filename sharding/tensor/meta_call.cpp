// SPDX-License-Identifier: Apache-2.0
#include "sharding/tensor/meta_call.h"

#include "sharding/tensor/boxed_arguments.h"
#include "sharding/tensor/rule_table.h"

#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>
#include <c10/util/hash.h>

#include <exception>
#include <unordered_set>

namespace meshard {
namespace {

constexpr std::size_t kMaxForms = 1 << 16;
constexpr std::int64_t kMaxWholeNumbers = 1 << 26;

at::Tensor meta_tensor(const at::Tensor& tensor)
{
    auto meta =
        at::empty_strided(tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()).device(at::kMeta));
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
    return meta;
}

/// A meta tensor with the shape and strides of a pointwise operator's result.
at::Tensor pointwise_result(const torch::jit::Stack& operands)
{
    auto config = at::TensorIteratorConfig();
    config.set_check_mem_overlap(false)
        .check_all_same_dtype(false)
        .declare_static_dtype_and_device(at::kFloat, at::kMeta)
        .add_owned_output(at::Tensor());
    for (const auto& value : operands) {
        for_each_tensor(value, [&](const at::Tensor& tensor) { config.add_owned_const_input(tensor); });
    }
    return config.build().output();
}

/// A hash of all that LibTorch may find wrong in a call without a look at the values of its tensors.
std::size_t hash_of_form(const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments)
{
    std::size_t hash = reinterpret_cast<std::size_t>(&facts.op.schema());
    const auto add = [&](std::int64_t number) { hash = c10::hash_combine(hash, static_cast<std::size_t>(number)); };
    for (const auto& value : arguments) {
        add(-1);
        if (value.isInt()) add(value.toInt());
        if (value.isBool()) add(value.toBool());
        if (value.isDouble()) hash = c10::hash_combine(hash, std::hash<double>()(value.toDouble()));
        if (value.isString()) hash = c10::hash_combine(hash, std::hash<std::string>()(value.toStringRef()));
        if (value.isNone()) add(-2);
        if (value.isIntList()) {
            for (const auto number : value.toIntVector()) add(number);
        }
        for_each_tensor(value, [&](const at::Tensor& tensor) {
            add(static_cast<std::int64_t>(tensor.scalar_type()));
            add(tensor.dim());
            for (const auto extent : tensor.sizes()) add(extent);
        });
    }
    return hash;
}

/// Returns whether a pointwise operator's tensors have one shape, as nearly always.
bool have_one_shape(c10::ArrayRef<c10::IValue> arguments)
{
    const at::Tensor* first = nullptr;
    bool alike = true;
    for (const auto& value : arguments) {
        for_each_tensor(value, [&](const at::Tensor& tensor) {
            if (!first)
                first = &tensor;
            else
                alike &= tensor.sizes() == first->sizes();
        });
    }
    return alike;
}

bool has_cut_and_dense_tensors(c10::ArrayRef<c10::IValue> arguments)
{
    bool is_cut = false, are_dense = true;
    for (const auto& value : arguments) {
        for_each_tensor(value, [&](const at::Tensor& tensor) {
            is_cut |= is_sharded(tensor) && spec_of(tensor)->has_shard();
            are_dense &= tensor.layout() == at::kStrided && !tensor.is_nested();
        });
    }
    return is_cut && are_dense;
}

/// The error of the plain operator on whole tensors on the CPU, with `fill` in place of values that other ranks hold.
std::exception_ptr error_on_whole(const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments, int fill)
{
    torch::jit::Stack stack(arguments.begin(), arguments.end());
    for (auto& value : stack) {
        if (value.isDevice()) value = at::Device(at::kCPU);
        map_tensors(value, [&](const at::Tensor& tensor) {
            if (is_sharded(tensor) && spec_of(tensor)->has_shard())
                return at::full(tensor.sizes(), fill, at::TensorOptions(tensor.scalar_type()));
            return local_of(tensor).to(at::kCPU, tensor.scalar_type(), false, true);
        });
    }
    try {
        facts.op.callBoxed(&stack);
    } catch (...) {
        return std::current_exception();
    }
    return nullptr;
}

/// Throws what the plain operator throws. Kernels for meta tensors refuse some calls that plain tensors allow: such a
/// call is right if it passes with zeros or ones.
void confirm(const std::exception_ptr& found, const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments)
{
    std::int64_t count = 0;
    for (const auto& value : arguments)
        for_each_tensor(value, [&](const at::Tensor& tensor) { count += tensor.numel(); });
    if (count > kMaxWholeNumbers) std::rethrow_exception(found);
    const auto error = error_on_whole(facts, arguments, 0);
    if (error && error_on_whole(facts, arguments, 1)) std::rethrow_exception(error);
}

}  // namespace

std::optional<std::vector<at::Tensor>> meta_results(const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments)
{
    torch::jit::Stack stack(arguments.begin(), arguments.end());
    for (auto& value : stack) {
        if (value.isDevice()) value = at::Device(at::kMeta);  // conversions may have a device argument
        map_tensors(value, meta_tensor);
    }
    // Some pointwise operators have a meta kernel that fails; their strides follow from the operands, unless the call
    // has a memory format.
    const bool told_a_format =
        !facts.takes_tensors.empty() && facts.op.schema().arguments().back().name() == "memory_format";
    if (!told_a_format && !facts.is_view && facts.is_pointwise)
        return std::vector<at::Tensor>(facts.num_returns, pointwise_result(stack));
    if (!facts.has_meta) return std::nullopt;
    facts.op.callBoxed(&stack);
    std::vector<at::Tensor> results;
    for (const auto& result : stack) {
        for_each_tensor(result, [&](const at::Tensor& tensor) { results.push_back(tensor); });
    }
    return results;
}

void check_as_whole(const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments)
{
    if (!facts.is_checked || !has_cut_and_dense_tensors(arguments)) return;
    if (facts.is_pointwise && have_one_shape(arguments)) return;
    static thread_local std::unordered_set<std::size_t> right;
    const auto form = hash_of_form(facts, arguments);
    if (right.contains(form)) return;
    std::exception_ptr found;
    try {
        const auto results = meta_results(facts, arguments);
        if (facts.is_pointwise && facts.mutated_arg >= 0 && results) {
            const auto& written = arguments[facts.mutated_arg].toTensor();
            TORCH_CHECK(results->front().sizes() == written.sizes(), facts.op.schema().name(), ": output with shape ",
                        written.sizes(), " doesn't match the broadcast shape ", results->front().sizes());
        }
    } catch (const c10::NotImplementedError&) {  // no kernel for meta tensors after all: the rule is asked alone
    } catch (...) {
        found = std::current_exception();
    }
    if (found) confirm(found, facts, arguments);
    if (right.size() >= kMaxForms) right.clear();
    right.insert(form);
}

}  // namespace meshard
