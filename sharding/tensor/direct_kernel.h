// SPDX-License-Identifier: Apache-2.0
// Direct kernels take the arguments of an operator unboxed. A RuleCall boxes them (IValue), which costs as much as a
// small operator. A direct kernel of a frequent operator runs it on the local parts if no tensor needs conversion;
// otherwise it calls the rule.
#pragma once

#include "sharding/tensor/boxed_arguments.h"
#include "sharding/tensor/rule_table.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace meshard {

/// What a direct kernel needs to call the operator's rule.
struct RuleOfOperator {
    c10::OperatorHandle op;
    c10::BoxedKernel kernel;            ///< calls the operator's current rule
    const std::atomic<ShardRule>* now;  ///< the current rule
    ShardRule stands_for;               ///< the rule that the direct kernel replaces
};

/// Returns whether every call must go through its rule: while calls are observed, in exact mode, and if plain tensors
/// are not silently taken as Replicate.
bool must_call_rules();

/// Registers a direct kernel for the operator `full_name` (`aten::add.Tensor`), which is used while the operator's rule
/// is `rule`.
struct DirectRegistration {
    using Make = torch::CppFunction (*)(RuleOfOperator);
    DirectRegistration(std::string full_name, ShardRule rule, Make make);
};

/// Returns null if no direct kernel was registered for this rule.
DirectRegistration::Make find_direct(std::string_view full_name, ShardRule rule);

/// Returns whether the local part of `tensor` may be read as it is: false for plain tensors, and for copies that may be
/// out of date.
inline bool is_ready(const at::Tensor& tensor)
{
    return is_sharded(tensor) && !is_copy(tensor);
}

/// The number of calls on this thread that have gone through rules.
std::int64_t num_rule_calls();

/// The result of a direct kernel that shares no memory with its arguments.
inline at::Tensor fresh(at::Tensor local, const SpecPtr& spec, c10::IntArrayRef strides = {})
{
    auto result = wrap(std::move(local), spec, strides);
    mark_fresh(result);
    return result;
}

/// The result of a direct kernel that shares the memory of its argument `base`.
inline at::Tensor view_of(const at::Tensor& base, at::Tensor local, const SpecPtr& spec, c10::IntArrayRef strides = {})
{
    auto result = wrap(std::move(local), spec, strides);
    share_memory(base, {c10::IValue(result)});
    return result;
}

/// Registers `direct`, a function of the arguments of `Op` (a struct of `at::_ops`). It returns the results, or nothing
/// (a null pointer instead of the tensor that is written to) to let the rule handle the call. It runs below autograd.
template <class Op, auto direct>
DirectRegistration direct_kernel(ShardRule rule);

namespace detail {

template <auto direct, class Schema>
class DirectKernel;

template <auto direct, class Return, class... Args>
class DirectKernel<direct, Return(Args...)> {
public:
    explicit DirectKernel(RuleOfOperator rule) : rule_(std::move(rule)) {}

    Return operator()(c10::DispatchKeySet keys, Args... args)
    {
        if (rule_.now->load(std::memory_order_relaxed) == rule_.stands_for && !must_call_rules()) {
            const BelowRecording below;
            if (auto result = direct(args...)) return *std::move(result);
        }
        return c10::impl::BoxedKernelWrapper<Return(Args...)>::call(rule_.kernel, rule_.op, keys,
                                                                    std::forward<Args>(args)...);
    }

private:
    RuleOfOperator rule_;
};

}  // namespace detail

template <class Op, auto direct>
DirectRegistration direct_kernel(ShardRule rule)
{
    std::string name = Op::name;
    if (*Op::overload_name) name += std::string(".") + Op::overload_name;
    return {name, rule, [](RuleOfOperator of) {
                return torch::CppFunction(detail::DirectKernel<direct, typename Op::schema>(std::move(of)));
            }};
}

}  // namespace meshard
