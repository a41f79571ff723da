// SPDX-License-Identifier: Apache-2.0
#include "sharding/tensor/boxed_arguments.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <mutex>
#include <set>
#include <tuple>

namespace meshard {
namespace {

thread_local GatherPolicy policy_now = GatherPolicy::Warn;

/// Warns once for each operator, on the first of several ranks.
void tell_of_gathering(RuleCall& call)
{
    call.note_gathering();
    if (policy_now == GatherPolicy::Refuse)
        call.refuse("every rank would have to gather the whole, which set_gather_policy forbids");
    const auto& all = call.device_mesh()->all();
    if (policy_now == GatherPolicy::Silent || all.rank() != 0 || all.size() == 1) return;
    static std::mutex mutex;
    static std::set<std::string> told;
    const std::lock_guard lock(mutex);
    if (told.insert(call.full_name()).second) {
        TORCH_WARN(call.full_name(), " has no rule of its own for tensors that are cut in this way: every rank gathers "
                                     "the whole. The result is exact, at the cost "
                                     "of memory. set_gather_policy refuses or silences this.");
    }
}

void check_is_dense(const RuleCall& call, const at::Tensor& result)
{
    if (result.layout() != at::kStrided) {
        throw MissingShardRule("MissingShardRule: " + call.full_name() +
                               " makes a sparse tensor, and sharded ones are dense. Use it on full_tensor(x).");
    }
    if (result.is_nested()) {
        throw MissingShardRule(
            "MissingShardRule: " + call.full_name() +
            " makes a nested tensor, and sharded ones are dense. Use it on full_tensor(x), or pad rows to one length; "
            "nn.TransformerEncoder makes none with enable_nested_tensor=False.");
    }
}

/// Returns whether the operator is a collective of torch.distributed that writes to its first argument; the schema does
/// not say so.
bool writes_first_argument(const RuleCall& call)
{
    return call.name().starts_with("c10d::") && call.name() != "c10d::send";
}

/// Waits until such collectives have written their results, before parts of these are taken.
void wait_for_work(const torch::jit::Stack& results)
{
    for (const auto& result : results) {
        if (result.isObject() && result.type() == c10::getCustomClassType<c10::intrusive_ptr<c10d::Work>>())
            result.toCustomClass<c10d::Work>()->wait();
    }
}

}  // namespace

void set_gather_policy(GatherPolicy policy)
{
    policy_now = policy;
}
GatherPolicy gather_policy()
{
    return policy_now;
}

void gathered_rule(RuleCall& call)
{
    const auto tensors = call.tensors();
    bool cut = false;
    for (const auto& tensor : tensors) cut |= is_sharded(tensor) && spec_of(tensor)->has_shard();
    if (call.is_random()) call.refuse("it draws random numbers, which would differ between ranks");
    call.reduce(tensors);
    if (cut) tell_of_gathering(call);

    if (call.is_view()) call.keep_strides();

    // After the call, arguments that are written to get their part of the new value. The base of a view stays sharded:
    // the view is one of a gathered copy.
    const auto& arguments = call.schema().arguments();
    std::vector<std::pair<at::Tensor, at::Tensor>> written;  // as passed by the caller, as passed to the operator
    at::Tensor base, base_whole;
    const auto whole = [&](const at::Tensor& tensor, std::int64_t i) -> at::Tensor {
        const auto* alias = arguments[i].alias_info();
        const bool writes = (alias && alias->isWrite()) || (i == 0 && writes_first_argument(call));
        if (!is_sharded(tensor)) {
            if (writes) written.emplace_back(tensor, tensor);
            return tensor;
        }
        if (!spec_of(tensor)->has_shard()) {
            if (writes) written.emplace_back(tensor, local_of(tensor));
            return local_of(tensor);
        }
        const auto gathered = convert(tensor, call.replicated());
        // A `view` that is valid on the whole must be valid here, though the gathered tensor may have other strides.
        const auto value =
            tensor.is_contiguous() || call.is_view() ? local_of(gathered).contiguous() : local_of(gathered);
        if (writes)
            written.emplace_back(tensor, value);
        else if (alias)
            std::tie(base, base_whole) = std::tie(tensor, value);
        return value;
    };
    for (std::int64_t i = 0; i < call.num_args(); ++i)
        map_tensors(call.arg(i), [&](const at::Tensor& tensor) { return whole(tensor, i); });

    auto results = call.run_local();
    wait_for_work(results);
    for (const auto& [tensor, value] : written) {
        if (!is_sharded(tensor)) continue;
        if (value.sizes() != tensor.sizes()) {
            throw MissingShardRule(
                "MissingShardRule: " + call.full_name() +
                " changes the shape of a sharded tensor in place. Use the form that returns a new tensor.");
        }
        const auto part = own_part(value, *spec_of(tensor));
        if (!part.is_same(local_of(tensor))) local_of(tensor).copy_(part);
        if (call.mutated_arg() < 0) note_write(tensor);
    }
    std::size_t k = 0;
    const auto wrapped = [&](const at::Tensor& result) {
        for (const auto& [tensor, value] : written) {
            if (result.is_same(value)) return tensor;
        }
        check_is_dense(call, result);
        return wrap(result, call.replicated(), call.strides(k++));
    };
    for (auto& result : results) map_tensors(result, wrapped);
    if (base.defined()) mark_moved_copy(results, base, base_whole, call.replicated());
    call.push(std::move(results));
}

}  // namespace meshard
