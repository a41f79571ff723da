// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/fully_shard.h"

#include "partition/error.h"
#include "sharding/parameters/gather_order.h"
#include "sharding/parameters/gradient_share.h"
#include "sharding/parameters/module_sync.h"
#include "sharding/parameters/stored_parameter.h"
#include "sharding/ranks/type_limits.h"
#include "sharding/tensor/graph_node.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace meshard {
namespace {

constexpr std::int64_t kAlignedValues = 64;  // no parameter needs a larger alignment

struct Entry {
    std::string name;
    std::vector<std::int64_t> shape;
    std::int64_t begin = 0;  // offset in the row of its group
    std::int64_t count = 0;
    Extents extents;   // number of its values on each rank
    at::Tensor local;  // this rank's part, a leaf
    bool trains = false;
    // Dimension that is sharded, for a kept part; -1 for parameters that are flattened into a row.
    std::int64_t cut_dim = -1;
};

/// Gradients of a group that are being sent to the ranks that store them.
struct SentGradients {
    std::vector<char> has_gradient;       // for each entry, on this rank
    std::vector<PlainGradientSum> plain;  // for each entry
    at::Tensor sent, received;
    PendingCollective message;
    // This rank's part for each entry after the exchange; undefined if no rank has a gradient.
    std::vector<at::Tensor> local;
};

/// Parameters of one type, flattened and concatenated to one row, which is gathered in one message.
struct Group {
    std::vector<Entry> entries;
    Extents extents;            // length of each rank's part of the row
    at::Tensor part;            // this rank's part of the row, which contains every `local`
    at::Tensor whole;           // the gathered row
    PendingCollective pending;  // the all-gather that fills `whole`
    std::int64_t version = 0;   // version counter of `part` when the gather started
    bool is_used = false;       // whether the group has been used since its unit became `resident`
    // By graph task: the backward of a reentrant checkpoint is a task of its own, within the one that goes on.
    std::map<int, SentGradients> sent_gradients;

    at::Tensor gathered_value(const Entry& entry) const
    {
        return whole.narrow(0, entry.begin, entry.count).view(entry.shape);
    }
};

/// Sums by which ranks check that plain gradients are equal on all of them.
struct PlainGradients {
    at::Tensor num_ranks;  // number of ranks that have plain gradients
    std::vector<PlainGradientSum> sums;
    const Group* group = nullptr;
};

}  // namespace

struct FullyShardedModule::State : std::enable_shared_from_this<FullyShardedModule::State> {
    std::shared_ptr<const DeviceMesh> mesh;
    // Parameters are sharded over its axis `cut_axis`: `mesh`, or a mesh of one axis with all ranks.
    std::shared_ptr<const DeviceMesh> cut_mesh;
    std::int64_t cut_axis = 0;
    std::int64_t num_data = 1;
    std::vector<std::vector<Group>> units;
    std::vector<Entry> kept;              // parts that the module uses as its own parameters
    std::optional<std::size_t> resident;  // the unit in use
    std::optional<std::size_t> ahead;     // the next unit, which is being gathered
    std::int64_t writes_before_ahead = 0;
    bool overlaps = true;
    GatherOrder forward_order, backward_order;
    bool is_backward = false;           // phase of the last use of a parameter
    bool has_end_callback = false;      // whether a callback at the end of the running backward is queued
    Group* reducing_group = nullptr;    // the group whose gradients are being sent
    int reducing_task = -1;             // by this graph task
    std::vector<PlainGradients> plain;  // collected in this backward
    std::vector<at::Tensor> local_parameters;
    std::vector<const Entry*> trained;  // entry of each local parameter
    std::vector<std::pair<c10::weak_intrusive_ptr<c10::StorageImpl>, std::int64_t>> gathered;
    std::int64_t peak = 0;

    const RankGroup& ranks() const { return cut_mesh->group(cut_axis); }
    std::int64_t me() const { return cut_mesh->coordinate(cut_axis); }

    at::Tensor value(std::size_t unit, std::size_t group, std::size_t entry)
    {
        begin_phase();
        if (resident == unit && !is_backward)
            for (auto& group : units[unit]) take_assigned(group);
        begin_unit(unit);
        auto& g = units[unit][group];
        bring(g);
        if (overlaps && !std::exchange(g.is_used, true)) {
            order().use({unit, group});
            start_next_unit();
        }
        return g.gathered_value(g.entries[entry]);
    }

    /// Forward and backward use units in different orders. The unit in use stays gathered at the transition.
    void begin_phase()
    {
        const bool now_backward = torch::autograd::get_current_graph_task_id() != -1;
        if (now_backward) await_end_of_backward();
        if (now_backward == is_backward) return;
        is_backward = now_backward;
        let_go(ahead);
        if (!resident) return;
        for (auto& group : units[*resident]) group.is_used = false;
    }

    void begin_unit(std::size_t unit)
    {
        if (resident == unit) return;
        if (!is_backward) take_assigned();  // backward is of the values that forward had
        let_go(resident);
        // A gathered unit is dropped if a parameter has been written to since. In forward all ranks write together,
        // though perhaps to parts of other units. In backward an optimiser may write to parts whose gradients are
        // complete; their units are not used again.
        if (ahead != unit || (!is_backward && num_writes() != writes_before_ahead)) let_go(ahead);
        ahead.reset();
        resident = unit;
    }

    GatherOrder& order() { return is_backward ? backward_order : forward_order; }

    void start_next_unit()
    {
        if (ahead) return;
        writes_before_ahead = num_writes();
        for (const auto& [unit, group] : order().of_next_unit()) {
            ahead = unit;
            start(units[unit][group]);
        }
    }

    /// The number of writes to the parts of all units.
    std::int64_t num_writes() const
    {
        std::int64_t sum = 0;
        for (const auto& unit : units) {
            for (const auto& group : unit) sum += group.part._version();
        }
        return sum;
    }

    void start(Group& group)
    {
        group.version = group.part._version();
        group.pending = ranks().start_all_gather_rows(group.part, group.extents, group.whole);
        if (ranks().size() > 1)
            gathered.emplace_back(c10::weak_intrusive_ptr<c10::StorageImpl>(storage_of(group.whole)),
                                  group.whole.nbytes());
        peak = std::max(peak, gathered_bytes());
    }

    static void let_go(Group& group)
    {
        group.pending.wait();
        group.whole = at::Tensor();
    }

    /// Takes values that were assigned to local parameters (`.data = ...`) into this rank's part of the row. The part
    /// gets new memory: what was assigned, or lay there before, may be kept elsewhere.
    void take_assigned(Group& group)
    {
        auto& part = group.part;
        std::int64_t offset = 0;
        bool is_assigned = false;
        for (const auto& entry : group.entries) {
            const auto& local = entry.local;
            const auto count = entry.extents[me()];
            is_assigned = is_assigned || !local.is_alias_of(part) || local.dim() != 1 || local.numel() != count ||
                          !local.is_contiguous() || local.storage_offset() != part.storage_offset() + offset;
            offset += count;
        }
        if (!is_assigned) return;
        const at::NoGradGuard no_grad;
        std::vector<at::Tensor> values;
        for (const auto& entry : group.entries) {
            const auto& local = entry.local;
            const auto count = entry.extents[me()];
            if (local.dim() != 1 || local.numel() != count || local.scalar_type() != part.scalar_type() ||
                local.device() != part.device())
                throw InvalidInput(
                    "fully_shard: the part of '{}' was replaced by {} values of {} on {}; expected {} of {} on {}.",
                    entry.name, local.numel(), c10::toString(local.scalar_type()), local.device().str(), count,
                    c10::toString(part.scalar_type()), part.device().str());
            values.push_back(local.detach());
        }
        part.set_data(at::cat(values));
        part.unsafeGetTensorImpl()->bump_version();
        offset = 0;
        for (auto& entry : group.entries) {
            entry.local.set_data(part.narrow(0, offset, entry.extents[me()]).detach());
            offset += entry.extents[me()];
        }
    }

    void take_assigned()
    {
        for (auto& unit : units)
            for (auto& group : unit) take_assigned(group);
    }

    void bring(Group& group)
    {
        if (group.whole.defined() && group.version != group.part._version()) let_go(group);
        if (!group.whole.defined()) start(group);
        group.pending.wait();
    }

    void let_go(std::optional<std::size_t>& unit)
    {
        if (!unit) return;
        for (auto& group : units[*std::exchange(unit, std::nullopt)]) {
            group.is_used = false;
            let_go(group);
        }
    }

    /// Queues a callback at the end of backward that drops all gathered units, before the optimiser changes the parts.
    void await_end_of_backward();
    void end_backward()
    {
        has_end_callback = is_backward = false;
        drop();
        forward_order.end_step();
        backward_order.end_step();
        check_plain();
    }

    /// Called when backward has thrown.
    void abandon_backward()
    {
        has_end_callback = is_backward = false;
        try {
            drop();
            abandon_reductions();
        } catch (const std::exception&) {  // the error of backward is already being thrown
        }
        forward_order.abandon_step();
        backward_order.abandon_step();
    }

    void drop()
    {
        let_go(resident);
        let_go(ahead);
    }

    static c10::intrusive_ptr<c10::StorageImpl> storage_of(const at::Tensor& tensor)
    {
        return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl());
    }

    /// Bytes of all gathered rows that are still in memory, whoever holds them.
    std::int64_t gathered_bytes()
    {
        std::erase_if(gathered, [](const auto& one) { return one.first.expired(); });
        return std::accumulate(gathered.begin(), gathered.end(), std::int64_t{0},
                               [](std::int64_t sum, const auto& one) { return sum + one.second; });
    }

    /// Starts to send each rank its part of the group's gradients.
    void start_reduction(Group& group, const std::vector<at::Tensor>& gradients,
                         const std::vector<GradientOrigin>& origins)
    {
        const auto type = group.part.scalar_type();
        const auto total = std::accumulate(group.extents.begin(), group.extents.end(), std::int64_t{0});
        auto row = at::zeros({total}, group.part.options().dtype(sum_type(type)));
        SentGradients sending;
        sending.plain.resize(gradients.size());
        for (std::size_t k = 0; k < gradients.size(); ++k) {
            const auto& entry = group.entries[k];
            sending.has_gradient.push_back(gradients[k].defined());
            check_origin(origins[k], entry.name);
            auto place = row.narrow(0, entry.begin, entry.count);
            if (!gradients[k].defined()) {
                fill_as_absent(place);
                continue;
            }
            if (!is_sharded(gradients[k]) && origins[k].share_axes.empty()) sending.plain[k].add(gradients[k]);
            place.add_(gradient_share(gradients[k], *mesh, origins[k]).reshape({-1}));
        }
        // The number of ranks with plain gradients is sent with each rank's part, so that either all ranks compare them
        // or none.
        const bool has_plain =
            std::ranges::any_of(sending.plain, [](const PlainGradientSum& one) { return one.exists; });
        const auto num_plain = at::full({1}, has_plain ? 1.0 : 0.0, row.options());
        const auto own = group.extents[me()] + 1;
        std::vector<at::Tensor> pieces;
        Extents send;
        for (const auto& part : row.split_with_sizes(group.extents)) {
            pieces.insert(pieces.end(), {part, num_plain});
            send.push_back(part.numel() + 1);
        }
        sending.sent = at::cat(pieces);
        const Extents receive(ranks().size(), own);
        sending.received = at::empty({ranks().size() * own}, sending.sent.options());
        sending.message = ranks().start_exchange(sending.sent, send, sending.received, receive, "all_to_all");
        reducing_task = torch::autograd::get_current_graph_task_id();
        group.sent_gradients.insert_or_assign(reducing_task, std::move(sending));
        reducing_group = &group;
    }

    /// Waits for the last message and adds the parts that ranks have sent.
    void finish_reduction()
    {
        if (!reducing_group) return;
        auto& group = *std::exchange(reducing_group, nullptr);
        auto& sending = group.sent_gradients.at(reducing_task);
        sending.message.wait();
        sending.sent = at::Tensor();
        const auto own = group.extents[me()] + 1;
        const auto parts = std::exchange(sending.received, at::Tensor()).view({ranks().size(), own});
        auto mine = parts[0].clone();
        for (int r = 1; r < ranks().size(); ++r) mine.add_(parts[r]);  // in rank order
        for (std::int64_t axis = 0; has_other_axes() && axis < mesh->num_axes(); ++axis) {
            if (axis != cut_axis) mesh->group(axis).all_reduce(mine);
        }
        plain.push_back({mine.narrow(0, own - 1, 1).clone(), std::move(sending.plain), &group});
        const auto sums = mine.narrow(0, 0, own - 1);
        if (num_data > 1) sums.div_(num_data);
        const auto rounded = sums.to(group.part.scalar_type());

        std::int64_t offset = 0;
        for (std::size_t k = 0; k < group.entries.size(); ++k) {
            const auto count = group.entries[k].extents[me()];
            const bool nobody = !sending.has_gradient[k] && is_absent(sums.narrow(0, offset, count));
            sending.local.push_back(nobody ? at::Tensor() : rounded.narrow(0, offset, count));
            offset += count;
        }
    }

    bool has_other_axes() const { return cut_mesh == mesh && mesh->num_ranks() > ranks().size(); }

    /// Called once in a backward, since the host waits for the device here.
    void check_plain()
    {
        for (const auto& one : std::exchange(plain, {})) {
            if (one.num_ranks.item<double>() == 0) continue;
            std::vector<std::string> names;
            for (const auto& entry : one.group->entries) names.push_back(entry.name);
            check_plain_gradients(one.sums, names,
                                  std::vector<at::ScalarType>(names.size(), one.group->part.scalar_type()), *mesh);
        }
    }

    void abandon_reductions()
    {
        plain.clear();
        if (reducing_group) std::exchange(reducing_group, nullptr)->sent_gradients.at(reducing_task).message.wait();
        for (auto& unit : units) {
            for (auto& group : unit) group.sent_gradients.clear();
        }
    }
};

namespace {

/// Ends the backward when the engine calls it; if it is destroyed uncalled, backward has failed.
class EndOfBackward {
public:
    explicit EndOfBackward(std::shared_ptr<FullyShardedModule::State> state) : state_(std::move(state)) {}
    EndOfBackward(const EndOfBackward&) = delete;
    EndOfBackward& operator=(const EndOfBackward&) = delete;
    ~EndOfBackward()
    {
        if (state_) state_->abandon_backward();
    }
    void reach() { std::exchange(state_, nullptr)->end_backward(); }

private:
    std::shared_ptr<FullyShardedModule::State> state_;
};

}  // namespace

void FullyShardedModule::State::await_end_of_backward()
{
    if (std::exchange(has_end_callback, true)) return;
    torch::autograd::Engine::get_default_engine().queue_callback(
        [end = std::make_shared<EndOfBackward>(shared_from_this())] { end->reach(); });
}

namespace {

/// Returns this rank's part of the reduced gradients to the local parameters. The engine runs the ready node with the
/// highest sequence number first; number 0 lets this node run last.
struct TakeReduced : torch::autograd::Node {
    TakeReduced() : Node(/*sequence_nr=*/0) {}

    std::shared_ptr<FullyShardedModule::State> state;
    std::size_t unit = 0, group = 0;
    std::vector<std::size_t> entries;  // entry of the group for each output

    torch::autograd::variable_list apply(torch::autograd::variable_list&&) override
    {
        const at::NoGradGuard no_grad;
        auto& g = state->units[unit][group];
        const auto task = torch::autograd::get_current_graph_task_id();
        if (state->reducing_group == &g && state->reducing_task == task) state->finish_reduction();
        auto sent = g.sent_gradients.extract(task);
        torch::autograd::variable_list results;
        for (const auto entry : entries) results.push_back(std::move(sent.mapped().local[entry]));
        return results;
    }

    std::string name() const override { return "FullyShardTakeBackward"; }
};

/// Takes the whole gradients of a group's parameters, once all uses have added theirs, and starts to send them to the
/// ranks of the local parts. The highest sequence number lets it run before all other ready nodes: otherwise the whole
/// gradients of all units would stay in memory until the end.
struct ReduceGradients : torch::autograd::Node {
    ReduceGradients() : Node(/*sequence_nr=*/std::numeric_limits<std::uint64_t>::max()) {}

    std::shared_ptr<FullyShardedModule::State> state;
    std::size_t unit = 0, group = 0;
    std::vector<std::size_t> entries;  // entry of the group for each input

    torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override
    {
        if (at::GradMode::is_enabled())
            throw InvalidInput("fully_shard: create_graph records no graph of gradients of sharded parameters. Give "
                               "the module to replicate, or ask for gradients of its inputs alone.");
        const at::NoGradGuard no_grad;
        auto& g = state->units[unit][group];
        state->await_end_of_backward();
        if (state->resident == unit) state->let_go(state->resident);
        std::vector<at::Tensor> of_all(g.entries.size());
        std::vector<GradientOrigin> origins(g.entries.size());
        const GradientOrigins known;
        for (std::size_t i = 0; i < entries.size(); ++i) {
            of_all[entries[i]] = std::move(gradients[i]);
            origins[entries[i]] = known.at(this, static_cast<std::uint32_t>(i));
        }
        state->finish_reduction();
        state->start_reduction(g, of_all, origins);
        // Sums over other axes exchange messages between those of the model; their order must not depend on when
        // TakeReduced runs.
        if (!state->overlaps || state->has_other_axes()) state->finish_reduction();
        return {g.part.detach()};  // the value is not used; its device decides on which thread TakeReduced runs
    }

    std::string name() const override { return "FullyShardBackward"; }
};

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

SpecPtr entry_spec(const FullyShardedModule::State& state, const Entry& entry)
{
    std::vector<AxisLayout> axes(state.cut_mesh->num_axes());
    axes[state.cut_axis] = {Shard(std::max<std::int64_t>(0, entry.cut_dim)),
                            std::make_shared<const Extents>(entry.extents), 1};
    return make_spec(state.cut_mesh, axes);
}

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
        shards.emplace_back(entry.name, wrap(entry.local.detach(), entry_spec(*state_, entry)));
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
    return wrap(local.detach(), entry_spec(*state_, entry));
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
        all.emplace_back(entry.name, full_tensor(wrap(entry.local.detach(), entry_spec(*state_, entry))));
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
    Entry entry{name,      parameter.sizes().vec(),   0,  parameter.numel(), *cut.extents,
                parameter, parameter.requires_grad(), dim};
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
    if (options.broadcast_at_start)
        broadcast_module(module, *state->mesh);
    else
        verify_module(module, *state->mesh);

    for (const auto& [name, cut] : options.kept_parts) {
        const auto found = std::ranges::find(parameters, name, &std::pair<std::string, at::Tensor>::first);
        if (found == parameters.end())
            throw InvalidInput("fully_shard: '{}' is to be kept in parts, and is no parameter of the module.", name);
        state->kept.push_back(kept_part(name, found->second, cut, *state));
        parameters.erase(found);
    }

    const auto names = unit_names(module, options);
    using Kind = std::tuple<std::string, at::ScalarType, c10::DeviceType>;
    std::vector<std::string> units;
    std::map<std::string, std::vector<std::pair<Kind, std::vector<std::size_t>>>> members;
    for (std::size_t k = 0; k < parameters.size(); ++k) {
        const auto& [name, parameter] = parameters[k];
        const auto unit = unit_of(name, names);
        if (!members.contains(unit)) units.push_back(unit);
        auto& groups = members[unit];
        const Kind kind{unit, parameter.scalar_type(), parameter.device().type()};
        auto found = std::ranges::find_if(groups, [&](const auto& group) { return group.first == kind; });
        if (found == groups.end()) found = groups.insert(groups.end(), {kind, {}});
        found->second.push_back(k);
    }

    state->units.resize(units.size());
    for (std::size_t u = 0; u < units.size(); ++u) {
        for (auto& [kind, indices] : members[units[u]]) {
            // Parameters are sorted by the power of two that divides their numbers of values, so that each begins at a
            // multiple of its power in the gathered row: LibTorch views as complex numbers only pairs at even places,
            // and its kernels are fastest on aligned values.
            std::ranges::stable_sort(indices, std::greater{}, [&](std::size_t k) {
                return std::gcd(parameters[k].second.numel(), kAlignedValues);
            });
            auto& group = state->units[u].emplace_back();
            std::vector<at::Tensor> values;
            for (const auto k : indices) {
                const auto& parameter = parameters[k].second;
                group.entries.push_back({parameters[k].first,
                                         parameter.sizes().vec(),
                                         0,
                                         parameter.numel(),
                                         {},
                                         {},
                                         parameter.requires_grad()});
                values.push_back(parameter);
            }
            cut(group, values, state->ranks());
        }
    }

    for (std::size_t u = 0; u < units.size(); ++u) {
        for (std::size_t g = 0; g < state->units[u].size(); ++g) {
            auto& group = state->units[u][g];
            const auto& indices = members[units[u]][g].second;
            const auto node = make_graph_node<ReduceGradients>();
            node->state = state;
            node->unit = u;
            node->group = g;
            std::vector<at::Tensor> leaves;
            for (std::size_t e = 0; e < group.entries.size(); ++e) {
                auto& entry = group.entries[e];
                auto parameter = parameters[indices[e]].second;
                parameter.mutable_grad() = at::Tensor();
                if (entry.trains) parameter.set_requires_grad(false);
                store_parameter(parameter, [state, u, g, e] { return state->value(u, g, e); });
                if (!entry.trains) continue;
                entry.local.set_requires_grad(true);
                leaves.push_back(entry.local);
                node->entries.push_back(e);
                state->local_parameters.push_back(entry.local);
                state->trained.push_back(&entry);
            }
            if (leaves.empty()) continue;
            // The module's parameters become functions of the local parts, so that their gradients flow through the two
            // nodes.
            const auto take = make_graph_node<TakeReduced>();
            take->state = state;
            take->unit = u;
            take->group = g;
            take->entries = node->entries;
            take->add_input_metadata(group.part);
            take->set_next_edges(torch::autograd::collect_next_edges(leaves));
            node->set_next_edges({torch::autograd::Edge(take, 0)});
            for (const auto e : node->entries) {
                torch::autograd::set_history(parameters[indices[e]].second, node);
            }
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
