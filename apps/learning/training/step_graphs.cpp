// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/step_graphs.h"

#include "sharding/tensor/shard_spec.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string_view>
#include <utility>

namespace meshard {
namespace {

constexpr double kSpread =
    8;  // a graph may be so many times as far from the step as the step is from itself, where sums have no order

const at::Tensor& own(const at::Tensor& tensor)
{
    return is_sharded(tensor) ? local_of(tensor) : tensor;
}

/// A tensor of the same layout with memory of its own.
at::Tensor copy_of(const at::Tensor& tensor)
{
    if (!tensor.defined()) return {};
    const auto copy = own(tensor).detach().clone();
    return is_sharded(tensor) ? from_local(copy, spec_of(tensor)) : copy;
}

/// Shapes, strides, types and layouts. Cut among ranks, tensors of other rows are of another kind: what ranks send each
/// other depends on them.
std::string text_of(const StepInputs::Tensors& tensors)
{
    std::ostringstream text;
    const IndexMap* known = nullptr;
    for (const auto& tensor : tensors) {
        if (!tensor.defined()) {
            text << "|none";
            continue;
        }
        text << '|' << tensor.sizes() << own(tensor).sizes() << own(tensor).strides() << tensor.scalar_type();
        if (!is_sharded(tensor) || spec_of(tensor)->device_mesh->num_ranks() == 1) continue;
        const auto& spec = *spec_of(tensor);
        text << to_string(spec);
        if (!spec.index_map || spec.index_map.get() == std::exchange(known, spec.index_map.get())) continue;
        const auto& ids = spec.index_map->global_ids;
        text << std::hash<std::string_view>()({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof ids[0]});
    }
    return text.str();
}

std::string first_line(const std::string& text)
{
    return text.substr(0, text.find('\n'));
}

/// Collective: the error of the lowest rank that has one, on all ranks; empty if none has.
std::string shared_error(const std::string& error, const RankGroup& group)
{
    if (group.size() == 1) return error;
    const auto lengths = group.all_gather_integers(std::ssize(error));
    const auto found = std::ranges::find_if(lengths, [](auto length) { return length > 0; });
    if (found == lengths.end()) return {};
    const auto rank = static_cast<int>(found - lengths.begin());
    auto text = at::zeros({*found}, at::kByte);
    if (group.rank() == rank) std::ranges::copy(error, text.mutable_data_ptr<std::uint8_t>());
    group.broadcast(text, rank);
    return "rank " + std::to_string(rank) + ": " +
           std::string(reinterpret_cast<const char*>(text.const_data_ptr<std::uint8_t>()), *found);
}

/// Whether all numbers are the same, NaN among them.
bool are_equal(const StepInputs::Tensors& a, const StepInputs::Tensors& b)
{
    at::Tensor all;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (a[i].defined() != b[i].defined()) return false;
        if (!a[i].defined()) continue;
        const auto &x = own(a[i]), &y = own(b[i]);
        const auto same = x.eq(y).logical_or_(x.isnan().logical_and_(y.isnan())).all();
        all = all.defined() ? all.logical_and(same) : same;
    }
    return !all.defined() || all.item<bool>();
}

/// Of the first `count` tensors, taken as one vector.
double distance(const StepInputs::Tensors& a, const StepInputs::Tensors& b, std::size_t count)
{
    at::Tensor sum;
    for (std::size_t i = 0; i < count; ++i) {
        if (!a[i].defined() || !b[i].defined()) continue;
        const auto square = (own(a[i]).to(at::kDouble) - own(b[i]).to(at::kDouble)).square().sum();
        sum = sum.defined() ? sum + square : square;
    }
    return sum.defined() ? std::sqrt(sum.item<double>()) : 0;
}

double norm_of(const StepInputs::Tensors& a, std::size_t count)
{
    StepInputs::Tensors zeros;
    for (const auto& tensor : a) zeros.push_back(tensor.defined() ? at::zeros_like(own(tensor)) : at::Tensor());
    return distance(a, zeros, count);
}

void put_back(const StepInputs::Tensors& state, const StepInputs::Tensors& before)
{
    for (std::size_t i = 0; i < state.size(); ++i) own(state[i]).copy_(own(before[i]));
}

StepInputs::Tensors copies_of(const StepInputs::Tensors& tensors)
{
    StepInputs::Tensors copies;
    for (const auto& tensor : tensors) copies.push_back(copy_of(tensor));
    return copies;
}

}  // namespace

std::size_t StepGraphs::num_graphs() const
{
    return static_cast<std::size_t>(
        std::ranges::count_if(kinds_, [](const auto& item) { return item.second.graph.has_value(); }));
}

/// The same text on all ranks exactly if no rank has another kind than before.
std::string StepGraphs::kind_of(const StepInputs& inputs) const
{
    auto kind = inputs.key + text_of(inputs.tensors);
    for (const auto& kept : inputs.kept) kind += "|" + std::to_string(reinterpret_cast<std::uintptr_t>(kept.get()));
    if (is_by_subject_) kind += "|" + inputs.subject;
    if (group_.size() == 1) return kind;
    std::string all;
    const auto hash = static_cast<std::int64_t>(std::hash<std::string>()(kind));
    for (const auto of_rank : group_.all_gather_integers(hash)) all += std::to_string(of_rank) + " ";
    return all;
}

/// Whether these are the tensors of the subject's last run, which they are from now on.
StepGraphs::Seen StepGraphs::see(const StepInputs& inputs)
{
    auto& last = last_[inputs.subject];
    const auto is_same = [](const WeakTensor& before, const at::Tensor& now) {
        return !now.defined() || (!before.expired() && before._unsafe_get_target() == now.unsafeGetTensorImpl());
    };
    const bool are_same = std::equal(last.begin(), last.end(), inputs.tensors.begin(), inputs.tensors.end(), is_same);
    const auto seen = last.empty() ? Seen::First : are_same ? Seen::Same : Seen::Others;
    if (are_same) return seen;
    last.clear();
    for (const auto& tensor : inputs.tensors) last.emplace_back(tensor.getIntrusivePtr());
    return seen;
}

/// Collective: on all ranks what is least like the last run.
StepGraphs::Seen StepGraphs::least_similar(Seen seen) const
{
    for (const auto of_rank : group_.all_gather_integers(static_cast<std::int64_t>(seen)))
        seen = std::max(seen, static_cast<Seen>(of_rank));
    return seen;
}

at::Tensor StepGraphs::run(const StepInputs& inputs, const Step& step)
{
    if (why_not_) return step(inputs.tensors);
    auto seen = see(inputs);
    if (is_by_subject_) seen = least_similar(seen);
    if (is_by_subject_ && seen == Seen::Others) {
        give_up(why_not_from_copies_);
        return step(inputs.tensors);
    }
    const auto key = kind_of(inputs);
    if (kinds_.size() >= kMostKinds && !kinds_.contains(key)) {
        if (num_graphs() == 0) give_up("their shapes do not repeat");
        return step(inputs.tensors);
    }
    auto& kind = kinds_[key];
    const bool is_warm =
        is_by_subject_ ? kind.num_runs >= kWarmUpsOfSubject && seen == Seen::Same : kind.num_runs >= kWarmUps;
    if (!kind.graph && (!is_warm || num_graphs() >= kMostGraphs || !record(kind, inputs, step, seen))) {
        if (const auto found = kinds_.find(key); found != kinds_.end()) ++found->second.num_runs;
        return step(inputs.tensors);
    }
    return kind.num_checked < kChecked ? checked(kind, inputs.tensors, step) : replay(kind, inputs.tensors);
}

/// False if it cannot be; all kinds are then forgotten.
bool StepGraphs::record(Kind& kind, const StepInputs& inputs, const Step& step, Seen seen)
{
    kind.inputs = is_by_subject_ ? inputs.tensors : copies_of(inputs.tensors);
    std::string error;
    try {
        DeviceGraph graph(type_);
        graph.record([&] { kind.loss = step(kind.inputs).detach(); });
        kind.gradients = take_gradients();
        kind.kept = inputs.kept;
        kind.graph.emplace(std::move(graph));
    } catch (const std::exception& failure) {
        error = first_line(failure.what());
        take_gradients();
    }
    error = shared_error(error, group_);
    if (error.empty()) return true;
    kinds_.clear();
    if (is_by_subject_ || least_similar(seen) == Seen::Others) {
        give_up(error);
    } else {
        is_by_subject_ = true;
        why_not_from_copies_ = error;
    }
    return false;
}

at::Tensor StepGraphs::replay(Kind& kind, const Tensors& tensors)
{
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < tensors.size() && !is_by_subject_; ++i) {
        if (tensors[i].defined()) own(kind.inputs[i]).copy_(own(tensors[i]), /*non_blocking=*/true);
    }
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = kind.gradients[i];
    kind.graph->run();
    ++num_replays_;
    return kind.loss;
}

/// The same, beside the step itself, whose results count if they differ.
at::Tensor StepGraphs::checked(Kind& kind, const Tensors& tensors, const Step& step)
{
    ++kind.num_checked;
    const auto before = copies_of(state_);
    const auto results_of = [&](const std::function<at::Tensor()>& run) {
        {
            const at::NoGradGuard no_grad;
            put_back(state_, before);
        }
        Tensors results{run()};
        for (auto& gradient : take_gradients()) results.push_back(std::move(gradient));
        for (const auto& one : state_) results.push_back(copy_of(one));
        return results;
    };
    const auto as_it_is = [&] { return results_of([&] { return step(tensors); }); };
    const auto expected = as_it_is(), found = results_of([&] { return replay(kind, tensors); });
    const bool is_right = group_.all_agree(agrees(found, expected, as_it_is));

    const at::NoGradGuard no_grad;
    const auto& results = is_right ? found : expected;
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = results[1 + i];
    put_back(state_, Tensors(results.begin() + 1 + static_cast<std::ptrdiff_t>(parameters_.size()), results.end()));
    if (is_right) return results[0];
    --num_replays_;
    give_up("run from a graph a step gave other numbers than the step itself");
    return results[0];
}

/// Whether a graph's results are those of the step. @param again   the step once more, on all ranks, where some rank's
/// results are not the same
bool StepGraphs::agrees(const Tensors& found, const Tensors& expected, const std::function<Tensors()>& again) const
{
    if (group_.all_agree(are_equal(found, expected))) return true;
    const auto count = 1 + parameters_.size();
    const auto repeated = again();
    const double apart = distance(found, expected, count);
    if (!std::isfinite(apart)) return !std::isfinite(norm_of(expected, count));  // a step that overflows is not taken
    return apart <= std::max(kSpread * distance(repeated, expected, count), tolerance_ * norm_of(expected, count));
}

/// The gradients, which the parameters no longer have.
StepGraphs::Tensors StepGraphs::take_gradients()
{
    Tensors gradients;
    for (auto& parameter : parameters_) gradients.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
    return gradients;
}

void StepGraphs::give_up(const std::string& why)
{
    why_not_ = why;
    kinds_.clear();
    last_.clear();
}

}  // namespace meshard
