// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/fully_shard_state.h"

#include "partition/error.h"
#include "sharding/parameters/gradient_share.h"
#include "sharding/parameters/stored_parameter.h"
#include "sharding/ranks/type_limits.h"
#include "sharding/tensor/graph_node.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <numeric>

namespace meshard {
namespace {

c10::intrusive_ptr<c10::StorageImpl> storage_of(const at::Tensor& tensor)
{
    return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl());
}

}  // namespace

SpecPtr FullyShardedModule::State::spec_of_part(const Entry& entry) const
{
    std::vector<AxisLayout> axes(cut_mesh->num_axes());
    axes[cut_axis] = {Shard(std::max<std::int64_t>(0, entry.cut_dim)), std::make_shared<const Extents>(entry.extents),
                      1};
    return make_spec(cut_mesh, axes);
}

at::Tensor FullyShardedModule::State::value(std::size_t unit, std::size_t group, std::size_t entry)
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

void FullyShardedModule::State::begin_phase()
{
    const bool now_backward = torch::autograd::get_current_graph_task_id() != -1;
    if (now_backward) await_end_of_backward();
    if (now_backward == is_backward) return;
    is_backward = now_backward;
    let_go(ahead);
    if (!resident) return;
    for (auto& group : units[*resident]) group.is_used = false;
}

void FullyShardedModule::State::begin_unit(std::size_t unit)
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

void FullyShardedModule::State::start_next_unit()
{
    if (ahead) return;
    writes_before_ahead = num_writes();
    for (const auto& [unit, group] : order().of_next_unit()) {
        ahead = unit;
        start(units[unit][group]);
    }
}

std::int64_t FullyShardedModule::State::num_writes() const
{
    std::int64_t sum = 0;
    for (const auto& unit : units) {
        for (const auto& group : unit) sum += group.part._version();
    }
    return sum;
}

void FullyShardedModule::State::start(Group& group)
{
    group.version = group.part._version();
    group.pending = ranks().start_all_gather_rows(group.part, group.extents, group.whole);
    if (ranks().size() > 1)
        gathered.emplace_back(c10::weak_intrusive_ptr<c10::StorageImpl>(storage_of(group.whole)), group.whole.nbytes());
    peak = std::max(peak, gathered_bytes());
}

void FullyShardedModule::State::let_go(Group& group)
{
    group.pending.wait();
    group.whole = at::Tensor();
}

void FullyShardedModule::State::take_assigned(Group& group)
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

void FullyShardedModule::State::take_assigned()
{
    for (auto& unit : units)
        for (auto& group : unit) take_assigned(group);
}

void FullyShardedModule::State::bring(Group& group)
{
    if (group.whole.defined() && group.version != group.part._version()) let_go(group);
    if (!group.whole.defined()) start(group);
    group.pending.wait();
}

void FullyShardedModule::State::let_go(std::optional<std::size_t>& unit)
{
    if (!unit) return;
    for (auto& group : units[*std::exchange(unit, std::nullopt)]) {
        group.is_used = false;
        let_go(group);
    }
}

void FullyShardedModule::State::end_backward()
{
    has_end_callback = is_backward = false;
    drop();
    forward_order.end_step();
    backward_order.end_step();
    check_plain();
}

void FullyShardedModule::State::abandon_backward()
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

void FullyShardedModule::State::drop()
{
    let_go(resident);
    let_go(ahead);
}

std::int64_t FullyShardedModule::State::gathered_bytes()
{
    std::erase_if(gathered, [](const auto& one) { return one.first.expired(); });
    return std::accumulate(gathered.begin(), gathered.end(), std::int64_t{0},
                           [](std::int64_t sum, const auto& one) { return sum + one.second; });
}

void FullyShardedModule::State::start_reduction(Group& group, const std::vector<at::Tensor>& gradients,
                                                const std::vector<GradientOrigin>& origins)
{
    const auto type = group.part.scalar_type();
    const auto total = std::accumulate(group.extents.begin(), group.extents.end(), std::int64_t{0});
    auto row = at::zeros({total}, group.part.options().dtype(sum_type(type)));
    const auto num_entries = std::ssize(gradients);
    auto marks = at::zeros({num_entries + 1}, row.options());  // for each entry whether there is a gradient
    SentGradients sending;
    sending.plain.resize(gradients.size());
    for (std::size_t k = 0; k < gradients.size(); ++k) {
        const auto& entry = group.entries[k];
        sending.has_gradient.push_back(gradients[k].defined());
        check_origin(origins[k], entry.name);
        auto place = row.narrow(0, entry.begin, entry.count);
        if (!gradients[k].defined()) {
            fill_as_absent(marks[static_cast<std::int64_t>(k)]);
            continue;
        }
        if (!is_sharded(gradients[k]) && origins[k].share_axes.empty()) sending.plain[k].add(gradients[k]);
        place.add_(gradient_share(gradients[k], *mesh, origins[k]).reshape({-1}));
    }
    // The number of ranks with plain gradients is sent with each rank's part, so that either all ranks compare them
    // or none; and which gradients there are, so that it is known on ranks that have no values of a parameter, too.
    const bool has_plain = std::ranges::any_of(sending.plain, [](const PlainGradientSum& one) { return one.exists; });
    marks[num_entries].fill_(has_plain ? 1.0 : 0.0);
    const auto own = group.extents[me()] + marks.numel();
    std::vector<at::Tensor> pieces;
    Extents send;
    for (const auto& part : row.split_with_sizes(group.extents)) {
        pieces.insert(pieces.end(), {part, marks});
        send.push_back(part.numel() + marks.numel());
    }
    sending.sent = at::cat(pieces);
    const Extents receive(ranks().size(), own);
    sending.received = at::empty({ranks().size() * own}, sending.sent.options());
    sending.message = ranks().start_exchange(sending.sent, send, sending.received, receive, "all_to_all");
    reducing_task = torch::autograd::get_current_graph_task_id();
    group.sent_gradients.insert_or_assign(reducing_task, std::move(sending));
    reducing_group = &group;
}

void FullyShardedModule::State::finish_reduction()
{
    if (!reducing_group) return;
    auto& group = *std::exchange(reducing_group, nullptr);
    auto& sending = group.sent_gradients.at(reducing_task);
    sending.message.wait();
    sending.sent = at::Tensor();
    const auto count_of_all = group.extents[me()], num_entries = std::ssize(group.entries);
    const auto own = count_of_all + num_entries + 1;
    const auto parts = std::exchange(sending.received, at::Tensor()).view({ranks().size(), own});
    auto mine = parts[0].clone();
    for (int r = 1; r < ranks().size(); ++r) mine.add_(parts[r]);  // in rank order
    for (std::int64_t axis = 0; has_other_axes() && axis < mesh->num_axes(); ++axis) {
        if (axis != cut_axis) mesh->group(axis).all_reduce(mine);
    }
    plain.push_back({mine.narrow(0, own - 1, 1).clone(), std::move(sending.plain), &group});
    const auto sums = mine.narrow(0, 0, count_of_all), marks = mine.narrow(0, count_of_all, num_entries);
    if (num_data > 1) sums.div_(num_data);
    const auto rounded = sums.to(group.part.scalar_type());

    std::int64_t offset = 0;
    for (std::size_t k = 0; k < group.entries.size(); ++k) {
        const auto count = group.entries[k].extents[me()];
        const bool nobody = !sending.has_gradient[k] && is_absent(marks[static_cast<std::int64_t>(k)]);
        sending.local.push_back(nobody ? at::Tensor() : rounded.narrow(0, offset, count));
        offset += count;
    }
}

void FullyShardedModule::State::check_plain()
{
    for (const auto& one : std::exchange(plain, {})) {
        if (one.num_ranks.item<double>() == 0) continue;
        std::vector<std::string> names;
        for (const auto& entry : one.group->entries) names.push_back(entry.name);
        check_plain_gradients(one.sums, names, std::vector<at::ScalarType>(names.size(), one.group->part.scalar_type()),
                              *mesh);
    }
}

void FullyShardedModule::State::abandon_reductions()
{
    plain.clear();
    if (reducing_group) std::exchange(reducing_group, nullptr)->sent_gradients.at(reducing_task).message.wait();
    for (auto& unit : units) {
        for (auto& group : unit) group.sent_gradients.clear();
    }
}

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

/// A node of autograd's graph for the parameters of a group that train.
struct GroupNode : torch::autograd::Node {
    using Node::Node;
    std::shared_ptr<FullyShardedModule::State> state;
    std::size_t unit = 0, group = 0;
    std::vector<std::size_t> entries;  // entries of the group, one for each parameter
};

/// Returns this rank's part of the reduced gradients to the local parameters. The engine runs the ready node with the
/// highest sequence number first; number 0 lets this node run last.
struct TakeReduced : GroupNode {
    TakeReduced() : GroupNode(/*sequence_nr=*/0) {}

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
struct ReduceGradients : GroupNode {
    ReduceGradients() : GroupNode(/*sequence_nr=*/std::numeric_limits<std::uint64_t>::max()) {}

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

}  // namespace

void FullyShardedModule::State::store(std::size_t unit, std::size_t group, std::span<const at::Tensor> parameters)
{
    auto& g = units[unit][group];
    const auto reduce = make_graph_node<ReduceGradients>();
    std::vector<at::Tensor> leaves;
    for (std::size_t e = 0; e < g.entries.size(); ++e) {
        auto& entry = g.entries[e];
        const auto& parameter = parameters[e];
        parameter.mutable_grad() = at::Tensor();
        if (entry.trains) parameter.set_requires_grad(false);
        store_parameter(
            parameter, [state = shared_from_this(), unit, group, e] { return state->value(unit, group, e); },
            [state = shared_from_this(), unit, group, e] {
                auto& own = state->units[unit][group];
                state->take_assigned(own);
                // Writes to it are seen as writes to the part, whether or not this is called below autograd.
                const auto* local = own.entries[e].local.unsafeGetTensorImpl();
                return wrap(at::Tensor(local->shallow_copy_and_detach(local->version_counter(), true)),
                            state->spec_of_part(own.entries[e]));
            });
        if (!entry.trains) continue;
        entry.local.set_requires_grad(true);
        leaves.push_back(entry.local);
        reduce->entries.push_back(e);
        local_parameters.push_back(entry.local);
        trained.push_back(&entry);
    }
    if (leaves.empty()) return;
    // The gradients of the module's parameters flow to the local parts through the two nodes.
    const auto take = make_graph_node<TakeReduced>();
    take->entries = reduce->entries;
    for (auto* node : std::initializer_list<GroupNode*>{&*reduce, &*take}) {
        node->state = shared_from_this();
        node->unit = unit;
        node->group = group;
    }
    take->add_input_metadata(g.part);
    take->set_next_edges(torch::autograd::collect_next_edges(leaves));
    reduce->set_next_edges({torch::autograd::Edge(take, 0)});
    for (const auto e : reduce->entries) torch::autograd::set_history(parameters[e], reduce);
}

}  // namespace meshard
