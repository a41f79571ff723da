// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/fully_shard.h"

#include "partition/error.h"
#include "sharding/parameters/fully_shard_state.h"
#include "sharding/parameters/module_sync.h"
#include "sharding/parameters/stored_parameter.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <fmt/core.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace meshard {
namespace {

constexpr std::int64_t kAlignedValues = 64;  // no parameter needs a larger alignment

using Entry = FullyShardedModule::State::Entry;
using Group = FullyShardedModule::State::Group;

std::vector<std::string> unit_names(const torch::nn::Module& module, const FullyShardOptions& options)
{
    std::vector<std::string> names;
    if (options.is_unit) {
        for (const auto& item : module.named_modules()) {
            if (!item.key().empty() && options.is_unit(item.key(), *item.value())) names.push_back(item.key());
        }
        return names;
    }
    for (const auto& child : module.named_children()) {
        const auto* submodule = child.value().get();
        const bool is_list = dynamic_cast<const torch::nn::ModuleListImpl*>(submodule) ||
                             dynamic_cast<const torch::nn::SequentialImpl*>(submodule);
        if (!is_list)
            names.push_back(child.key());
        else
            for (const auto& item : submodule->named_children()) names.push_back(child.key() + "." + item.key());
    }
    return names;
}

/// The innermost unit that a parameter belongs to; empty for those outside all.
std::string unit_of(const std::string& parameter, const std::vector<std::string>& units)
{
    std::string best;
    for (const auto& unit : units) {
        if (parameter.starts_with(unit + ".") && unit.size() > best.size()) best = unit;
    }
    return best;
}

/// Divides the row of a group evenly among the ranks; the cuts may fall inside a parameter.
void cut(Group& group, const std::vector<at::Tensor>& values, const RankGroup& ranks)
{
    std::int64_t total = 0;
    for (auto& entry : group.entries) {
        entry.begin = total;
        total += entry.count;
    }
    group.extents = even_extents(total, ranks.size());
    std::vector<at::Tensor> flat;
    for (const auto& value : values) flat.push_back(value.detach().reshape({-1}));
    const auto first = std::accumulate(group.extents.begin(), group.extents.begin() + ranks.rank(), std::int64_t{0});
    group.part = at::cat(flat).narrow(0, first, group.extents[ranks.rank()]).clone();
    for (auto& entry : group.entries) {
        std::int64_t begin = 0;
        for (int r = 0; r < ranks.size(); ++r) {
            const auto end = begin + group.extents[r];
            const auto low = std::max(begin, entry.begin), high = std::min(end, entry.begin + entry.count);
            entry.extents.push_back(std::max<std::int64_t>(0, high - low));
            if (r == ranks.rank()) {
                const auto at = std::clamp<std::int64_t>(low - begin, 0, group.extents[r]);
                entry.local = group.part.narrow(0, at, entry.extents.back()).detach();
            }
            begin = end;
        }
    }
}

}  // namespace

FullyShardedModule::FullyShardedModule(std::shared_ptr<State> state) : state_(std::move(state)) {}

const std::vector<at::Tensor>& FullyShardedModule::local_parameters() const
{
    return state_->local_parameters;
}
const RankGroup& FullyShardedModule::group() const
{
    return state_->ranks();
}
std::int64_t FullyShardedModule::gathered_bytes() const
{
    return state_->gathered_bytes();
}
std::int64_t FullyShardedModule::peak_gathered_bytes() const
{
    return state_->peak;
}

namespace {

template <class Take>
void for_each_entry(const FullyShardedModule::State& state, const Take& take)
{
    for (const auto& unit : state.units) {
        for (const auto& group : unit) std::ranges::for_each(group.entries, take);
    }
    std::ranges::for_each(state.kept, take);
}

}  // namespace

at::IntArrayRef FullyShardedModule::whole_shape(const at::Tensor& parameter) const
{
    const auto found =
        std::ranges::find_if(state_->kept, [&](const Entry& entry) { return entry.local.is_same(parameter); });
    return found == state_->kept.end() ? parameter.sizes() : at::IntArrayRef(found->shape);
}

std::vector<std::string> FullyShardedModule::local_parameter_names() const
{
    std::vector<std::string> names;
    for (const auto* entry : state_->trained) names.push_back(entry->name);
    return names;
}

std::vector<std::pair<std::string, at::Tensor>> FullyShardedModule::named_shards() const
{
    std::vector<std::pair<std::string, at::Tensor>> shards;
    state_->take_assigned();
    for_each_entry(*state_, [&](const Entry& entry) {
        shards.emplace_back(entry.name, wrap(entry.local.detach(), state_->spec_of_part(entry)));
    });
    return shards;
}

at::Tensor FullyShardedModule::as_shard(std::size_t i, const at::Tensor& local) const
{
    const auto& entry = *state_->trained.at(i);
    if (local.sizes() != entry.local.sizes()) {
        throw InvalidInput("as_shard: {} values for the part of '{}', which has {}. Pass a state of that parameter.",
                           local.numel(), entry.name, entry.local.numel());
    }
    return wrap(local.detach(), state_->spec_of_part(entry));
}

std::vector<std::pair<std::string, at::Tensor>> FullyShardedModule::full_parameters() const
{
    const at::NoGradGuard no_grad;
    std::vector<std::pair<std::string, at::Tensor>> all;
    state_->drop();
    state_->take_assigned();
    for (auto& unit : state_->units) {
        for (auto& group : unit) {
            state_->bring(group);
            for (const auto& entry : group.entries) all.emplace_back(entry.name, group.gathered_value(entry).clone());
            state_->let_go(group);
        }
    }
    for (const auto& entry : state_->kept)
        all.emplace_back(entry.name, full_tensor(wrap(entry.local.detach(), state_->spec_of_part(entry))));
    return all;
}

namespace {

/// Replaces a parameter, in place, by this rank's part of it.
Entry kept_part(const std::string& name, at::Tensor parameter, const AxisLayout& cut,
                const FullyShardedModule::State& state)
{
    const auto dim = cut.is_shard() ? cut.placement.dim : -1;
    const bool fits = dim >= 0 && dim < parameter.dim() && cut.blocks == 1 &&
                      std::ssize(*cut.extents) == state.ranks().size() && cut.total() == parameter.size(dim);
    if (!fits || state.num_data > 1) {
        throw InvalidInput(
            "fully_shard: '{}' cannot be kept in parts: {}", name,
            fits ? fmt::format("there are {} ranks of 'data', and parts are for one. Gather it as the others.",
                               state.num_data)
                 : fmt::format("the extents must be one for each of {} ranks and make up the dimension.",
                               state.ranks().size()));
    }
    Entry entry{.name = name,
                .shape = parameter.sizes().vec(),
                .count = parameter.numel(),
                .extents = *cut.extents,
                .local = parameter,
                .trains = parameter.requires_grad(),
                .cut_dim = dim};
    parameter.mutable_grad() = at::Tensor();
    parameter.set_data(narrow_to_shard(parameter.detach(), cut, state.me()).clone(at::MemoryFormat::Contiguous));
    return entry;
}

}  // namespace

FullyShardedModule fully_shard(torch::nn::Module& module, std::shared_ptr<const DeviceMesh> device_mesh,
                               const FullyShardOptions& options)
{
    const auto state = std::make_shared<FullyShardedModule::State>();
    state->mesh = std::move(device_mesh);
    const auto& mesh = *state->mesh;
    state->cut_mesh = options.over_all_axes ? mesh.in_a_row() : state->mesh;
    if (!options.over_all_axes) state->cut_axis = mesh.axis("data");
    if (mesh.has_axis("data")) state->num_data = mesh.size(mesh.axis("data"));
    state->overlaps = options.overlaps && state->ranks().size() > 1;

    std::vector<std::pair<std::string, at::Tensor>> parameters;
    std::set<const c10::TensorImpl*> seen;  // parameters that two layers share are taken once
    for (const auto& item : module.named_parameters()) {
        const auto& parameter = item.value();
        if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
        if (is_sharded(parameter) || is_stored(parameter) || !parameter.is_leaf() || !parameter.has_storage()) {
            throw InvalidInput("fully_shard: '{}' is sharded already, or no plain leaf. Call fully_shard once, on a "
                               "module as it was built.",
                               item.key());
        }
        parameters.emplace_back(item.key(), parameter);
    }
    broadcast_module(module, *state->mesh);

    for (const auto& [name, cut] : options.kept_parts) {
        const auto found = std::ranges::find(parameters, name, &std::pair<std::string, at::Tensor>::first);
        if (found == parameters.end())
            throw InvalidInput("fully_shard: '{}' is to be kept in parts, and is no parameter of the module.", name);
        state->kept.push_back(kept_part(name, found->second, cut, *state));
        parameters.erase(found);
    }

    const auto names = unit_names(module, options);
    std::vector<std::string> units;
    std::map<std::string, std::vector<std::vector<std::size_t>>> members;  // the parameters of each group of a unit
    for (std::size_t k = 0; k < parameters.size(); ++k) {
        const auto& [name, parameter] = parameters[k];
        const auto unit = unit_of(name, names);
        if (!members.contains(unit)) units.push_back(unit);
        auto& groups = members[unit];
        auto found = std::ranges::find_if(groups, [&](const auto& group) {
            const auto& other = parameters[group.front()].second;
            return other.scalar_type() == parameter.scalar_type() && other.device().type() == parameter.device().type();
        });
        if (found == groups.end()) found = groups.emplace(groups.end());
        found->push_back(k);
    }

    state->units.resize(units.size());
    for (std::size_t u = 0; u < units.size(); ++u) {
        for (auto& indices : members[units[u]]) {
            // Parameters are sorted by the power of two that divides their numbers of values, so that each begins at a
            // multiple of its power in the gathered row: LibTorch views as complex numbers only pairs at even places,
            // and its kernels are fastest on aligned values.
            std::ranges::stable_sort(indices, std::greater{}, [&](std::size_t k) {
                return std::gcd(parameters[k].second.numel(), kAlignedValues);
            });
            auto& group = state->units[u].emplace_back();
            std::vector<at::Tensor> values;
            for (const auto k : indices) {
                const auto& [name, parameter] = parameters[k];
                group.entries.push_back({.name = name,
                                         .shape = parameter.sizes().vec(),
                                         .count = parameter.numel(),
                                         .trains = parameter.requires_grad()});
                values.push_back(parameter);
            }
            cut(group, values, state->ranks());
        }
    }
    for (std::size_t u = 0; u < units.size(); ++u) {
        for (std::size_t g = 0; g < state->units[u].size(); ++g) {
            std::vector<at::Tensor> of_group;
            for (const auto k : members[units[u]][g]) of_group.push_back(parameters[k].second);
            state->store(u, g, of_group);
        }
    }
    for (const auto& entry : state->kept) {
        if (!entry.trains) continue;
        state->local_parameters.push_back(entry.local);
        state->trained.push_back(&entry);
    }
    return FullyShardedModule(state);
}

}  // namespace meshard
