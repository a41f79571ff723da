// SPDX-License-Identifier: Apache-2.0
#include "sharding/tensor/boxed_arguments.h"
#include "sharding/tensor/rule_table.h"

#include <ATen/ATen.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace meshard {
namespace {

bool is_written(const c10::Argument& argument)
{
    return argument.alias_info() && argument.alias_info()->isWrite();
}

/// Returns whether `form` has the arguments of `schema` without the `out` tensors, and as many results.
bool is_functional_form(const c10::FunctionSchema& schema, const c10::FunctionSchema& form)
{
    std::size_t next = 0, num_out = 0;
    const auto& arguments = form.arguments();
    for (const auto& argument : schema.arguments()) {
        if (argument.is_out()) {
            ++num_out;
            continue;
        }
        if (next == arguments.size()) return false;
        const auto& other = arguments[next++];
        if (other.is_out() || other.name() != argument.name() || *other.type() != *argument.type() ||
            is_written(other) != is_written(argument))
            return false;
    }
    return next == arguments.size() && form.returns().size() == num_out;
}

/// The overload that returns new tensors, or null if there is none.
const c10::OperatorHandle* functional_form(const c10::FunctionSchema& schema)
{
    static std::mutex mutex;
    static std::map<std::string, std::optional<c10::OperatorHandle>> forms;
    const std::lock_guard lock(mutex);
    const auto [entry, is_new] = forms.try_emplace(full_name_of(schema.operator_name()));
    if (is_new) {
        for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
            if (name.name != schema.name()) continue;
            const auto op = c10::Dispatcher::singleton().findOp(name);
            if (op && op->hasSchema() && is_functional_form(schema, op->schema())) entry->second = op;
        }
    }
    return entry->second ? &*entry->second : nullptr;
}

void write_out(const RuleCall& call, const at::Tensor& out, const at::Tensor& result)
{
    if (!out.defined() || !result.defined()) return;
    TORCH_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()), call.full_name(), ": result type ",
                result.scalar_type(), " can't be cast to the desired output type ", out.scalar_type());
    if (out.sizes() != result.sizes()) {
        if (is_sharded(out)) {
            call.refuse("the tensor given for the result has another shape",
                        "Give one of the result's shape, or use the form that returns a new tensor");
        }
        at::native::resize_output(out, result.sizes());
    }
    out.copy_(result);
}

}  // namespace

void out_rule(RuleCall& call)
{
    const auto* form = functional_form(call.schema());
    if (!form) return gathered_rule(call);
    torch::jit::Stack stack, outs;
    const auto& arguments = call.schema().arguments();
    for (std::int64_t i = 0; i < call.num_args(); ++i) (arguments[i].is_out() ? outs : stack).push_back(call.arg(i));
    // Without an explicit type, the operator computes in the type of the `out` tensor.
    const auto dtype = form->schema().argumentIndexWithName("dtype");
    if (dtype && stack[*dtype].isNone() && outs[0].isTensor()) stack[*dtype] = outs[0].toTensor().scalar_type();

    form->callBoxed(&stack);
    for (std::size_t k = 0; k < outs.size(); ++k) {
        std::vector<at::Tensor> given, results;
        for_each_tensor(outs[k], [&](const at::Tensor& tensor) { given.push_back(tensor); });
        for_each_tensor(stack[k], [&](const at::Tensor& tensor) { results.push_back(tensor); });
        if (given.size() != results.size()) continue;  // the overload returns another number of results
        for (std::size_t i = 0; i < given.size(); ++i) write_out(call, given[i], results[i]);
    }
    if (call.schema().returns().empty()) outs.clear();
    call.finish(std::move(outs));
}

}  // namespace meshard
