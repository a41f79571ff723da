// SPDX-License-Identifier: Apache-2.0
#include "sharding/rule_table.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "sharding/exact_mode.h"
#include "sharding/redistribute.h"

namespace meshard {
namespace {

struct Registered {
    std::string family;
    ShardRule rule = nullptr;
};

std::map<std::string, Registered, std::less<>>& table()
{
    static std::map<std::string, Registered, std::less<>> rules;
    return rules;
}

ShardRule& pointwise_rule()
{
    static ShardRule rule = nullptr;
    return rule;
}

/// Below this layer nothing records: local tensors are plain, and autocast has already done its part above.
const c10::DispatchKeySet& above()
{
    static const c10::DispatchKeySet keys = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
    return keys;
}

thread_local RuleObserver* observer = nullptr;
thread_local bool has_gathered = false;   // in the call that is observed

/// What is written to while other tensors share its memory (views, their bases) must keep that memory: a rule that put another layout in its
/// place has its result brought back.
class KeepAliases {
public:
    explicit KeepAliases(const at::Tensor& written)
    {
        if (!is_sharded(written)) return;
        written_ = written;
        shape_ = written.sizes().vec();
        local_ = local_of(written);
        spec_ = spec_of(written);
        if (copies_a_row(written)) {
            copies_ = wrap(local_, spec_);
            inherit_row_copy(written, {copies_});
        }
    }

    void restore() const
    {
        if (!written_.defined() || local_of(written_).is_same(local_) || !written_.sizes().equals(shape_)) return;
        // Whether memory is shared may differ between ranks, by the strides of their parts; what follows must not.
        if (spec_->device_mesh->all().all_agree(local_.has_storage() && local_.storage().use_count() == 1)) return;
        auto axes = spec_->axes;
        bool counts = true;   // of a pending sum, the first rank's part is the whole
        for (std::size_t a = 0; a < axes.size(); ++a) {
            if (!axes[a].is_partial()) continue;
            if (axes[a].placement.reduction == Reduction::Sum && spec_->device_mesh->coordinate(a) > 0) counts = false;
            axes[a] = {};
        }
        reduce_partials({written_});
        const auto value = convert(written_, make_spec(spec_->device_mesh, axes, spec_->index_map));
        if (counts) local_.copy_(local_of(value));
        else local_.zero_();
        replace_value(written_, local_, spec_);
        if (copies_.defined()) inherit_row_copy(copies_, {written_});
    }

private:
    at::Tensor written_, local_, copies_;
    std::vector<std::int64_t> shape_;
    SpecPtr spec_;
};

/// Runs a rule, and keeps what shares memory with its arguments true.
void run_rule(ShardRule rule, RuleCall& call, const OperatorFacts& facts, const torch::jit::Stack& stack)
{
    if (facts.mutated_arg >= 0 && !facts.op.hasTag(at::Tag::inplace_view)) {   // transpose_ and alike change what is shown, not what is held
        const KeepAliases keep(call.tensor(facts.mutated_arg));
        rule(call);
        keep.restore();
    } else if (facts.is_view && copies_a_row(call.tensor(0))) {
        const auto base = call.tensor(0);
        rule(call);
        inherit_row_copy(base, torch::jit::last(stack, facts.num_returns));
    } else {
        rule(call);
    }
}

void observe(const OperatorFacts& facts, torch::jit::Stack* stack, RuleCall& call, ShardRule rule);

/// `exact` (may be null) has the word in exact mode, and may leave it to `rule`.
void call_rule(const OperatorFacts& facts, torch::jit::Stack* stack, ShardRule rule, ExactRule exact = nullptr)
{
    const c10::impl::ExcludeDispatchKeyGuard guard(above());
    RuleCall call(facts, stack);
    if (exact && exact_mode() && exact(call)) return;
    if (observer) observe(facts, stack, call, rule);
    else run_rule(rule, call, facts, *stack);
}

/// The rule that an installed operator has now: a later registration replaces it.
using RuleSlot = std::atomic<ShardRule>;

std::string full_name_of(const c10::OperatorName& name) { return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name; }

class RuleKernel : public c10::OperatorKernel {
public:
    RuleKernel(const c10::OperatorHandle& op, const RuleSlot& rule)
        : facts_(op), rule_(&rule), exact_(find_exact_rule(full_name_of(op.operator_name()), op.operator_name().name))
    {
    }

    void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack)
    {
        call_rule(facts_, stack, rule_->load(std::memory_order_relaxed), exact_);
    }

private:
    OperatorFacts facts_;
    const RuleSlot* rule_;
    ExactRule exact_;
};

/// For operators that are not known when the rule is installed: their schema is read at every call.
class UnknownOperatorKernel : public c10::OperatorKernel {
public:
    explicit UnknownOperatorKernel(const RuleSlot& rule) : rule_(&rule) {}

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack)
    {
        call_rule(OperatorFacts(op), stack, rule_->load(std::memory_order_relaxed));
    }

private:
    const RuleSlot* rule_;
};

/// Above the rule of an operator that is defined by what it is composed of: where gradients are wanted the composition runs, since a rule
/// records none; its parts have rules of their own.
class CompositionKernel : public c10::OperatorKernel {
public:
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack)
    {
        bool records = false;
        for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
            if (value.isTensor()) records |= value.toTensor().defined() && value.toTensor().requires_grad();
            else if (value.isTensorList()) {
                for (const at::Tensor& tensor : value.toTensorList()) records |= tensor.requires_grad();
            }
        }
        if (records && at::GradMode::is_enabled()) op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
        else op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
    }
};

Registered find_rule(const c10::OperatorHandle& op)
{
    const auto& name = op.operator_name();
    if (!name.overload_name.empty()) {
        const auto exact = table().find(name.name + "." + name.overload_name);
        if (exact != table().end()) return exact->second;
    }
    const auto family = table().find(name.name);
    if (family != table().end()) return family->second;
    if (op.hasTag(at::Tag::pointwise) && pointwise_rule()) return {"pointwise", pointwise_rule()};
    return {"gathered", &gathered_rule};
}

std::string layout_text(const at::Tensor& tensor) { return !tensor.defined() ? "none" : is_sharded(tensor) ? to_string(*spec_of(tensor)) : "plain"; }

void observe(const OperatorFacts& facts, torch::jit::Stack* stack, RuleCall& call, ShardRule rule)
{
    const auto add = [](std::string& text, const at::Tensor& tensor) { text += (text.empty() ? "" : "; ") + layout_text(tensor); };
    RuleEvent event;
    event.op = call.full_name();
    event.family = find_rule(facts.op).family;
    for (const auto& tensor : call.tensors()) add(event.inputs, tensor);
    const auto& counter = call.device_mesh()->counter();
    const auto messages = counter.num_calls(), bytes = counter.total_bytes();
    has_gathered = false;
    run_rule(rule, call, facts, *stack);
    event.gathered = has_gathered;
    event.num_messages = counter.num_calls() - messages;
    event.num_bytes = counter.total_bytes() - bytes;
    for (const auto& value : torch::jit::last(*stack, static_cast<std::size_t>(facts.num_returns))) {
        if (value.isTensor()) add(event.outputs, value.toTensor());
        else if (value.isTensorList()) {
            for (const at::Tensor& tensor : value.toTensorList()) add(event.outputs, tensor);
        }
    }
    observer->called(event);
}

/// What is in the dispatcher. Never taken out again; guarded by `mutex`, as the table is once rules are installed.
struct Installation {
    std::mutex mutex;
    bool done = false;
    std::map<std::string, RuleSlot, std::less<>> rules;   // by full name
    std::map<std::pair<std::string, c10::DispatchKey>, torch::Library> libraries;

    torch::Library& library(const std::string& name, c10::DispatchKey key)
    {
        const auto ns = name.substr(0, name.find("::"));
        return libraries.try_emplace({ns, key}, torch::Library::IMPL, ns, std::make_optional(key), __FILE__, __LINE__).first->second;
    }

    /// `op` is null where the operator is not defined yet.
    void install(const std::string& name, ShardRule rule, const c10::OperatorHandle* op)
    {
        const auto [slot, is_new] = rules.try_emplace(name, rule);
        if (!is_new) {
            slot->second = rule;
            return;
        }
        const auto short_name = name.substr(name.find("::") + 2);
        auto& rules_of_namespace = library(name, c10::DispatchKey::PrivateUse2);
        if (op) rules_of_namespace.impl(short_name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RuleKernel>(*op, slot->second)));
        else rules_of_namespace.impl(short_name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<UnknownOperatorKernel>(slot->second)));
    }

    /// Every operator that a registration of this name means; one that is not defined yet finds its rule when it is.
    void install_registered(const std::string& registered);

    /// Operators of other namespaces that have no rule are gathered, as aten's are. Those that have no gradients say so when asked for one.
    void install_fallbacks()
    {
        static const RuleSlot gathered{&gathered_rule};
        library("_::", c10::DispatchKey::PrivateUse2).fallback(torch::CppFunction::makeFromBoxedFunctor(std::make_unique<UnknownOperatorKernel>(gathered)));
        library("_::", c10::DispatchKey::AutogradPrivateUse2).fallback(torch::autograd::autogradNotImplementedFallback());
    }
};

Installation& installation()
{
    static auto& one = *new Installation;
    return one;
}

bool reaches_table(const c10::OperatorHandle& op)
{
    return op.hasSchema() && !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

template <class F>
void for_each_aten_operator(F&& f)
{
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
        if (name.getNamespace() != "aten") continue;
        const auto op = c10::Dispatcher::singleton().findOp(name);
        if (op && reaches_table(*op)) f(*op);
    }
}

void Installation::install_registered(const std::string& registered)
{
    const bool is_aten = registered.starts_with("aten::");
    bool found = false;
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
        if (name.name != registered && full_name_of(name) != registered) continue;
        const auto op = c10::Dispatcher::singleton().findOp(name);
        if (!op || !op->hasSchema() || (is_aten && !reaches_table(*op))) continue;
        found = true;
        const auto full_name = full_name_of(name);
        const bool is_new = !rules.contains(full_name);
        install(full_name, find_rule(*op).rule, &*op);
        if (is_new && !is_aten && !reaches_table(*op)) {
            library(full_name, c10::DispatchKey::AutogradPrivateUse2)
                .impl(full_name.substr(full_name.find("::") + 2).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<CompositionKernel>()));
        }
    }
    if (!found && !is_aten) install(registered, table().at(registered).rule, nullptr);
}

const AxisLayout kReplicate{};

bool is_optional_tensor_list(const c10::IValue& value)
{
    return value.isList() && value.type()->containedType(0)->isSubtypeOf(*c10::OptionalType::ofTensor());
}

thread_local GatherPolicy gather_policy_now = GatherPolicy::Warn;

/// Once for every operator, by the first rank only.
void tell_of_gathering(const RuleCall& call)
{
    has_gathered = true;
    if (gather_policy_now == GatherPolicy::Refuse) call.refuse("every rank would have to gather the whole, which set_gather_policy forbids");
    if (gather_policy_now == GatherPolicy::Silent || call.device_mesh()->all().rank() != 0) return;
    static std::mutex mutex;
    static std::set<std::string> told;
    const std::lock_guard lock(mutex);
    if (told.insert(call.full_name()).second) {
        TORCH_WARN(call.full_name(), " has no rule of its own for tensors that are cut in this way: every rank gathers the whole. The result is exact, at the cost "
                                     "of memory. set_gather_policy refuses or silences this.");
    }
}

}  // namespace

OperatorFacts::OperatorFacts(const c10::OperatorHandle& handle)
    : op(handle), num_returns(static_cast<std::int64_t>(handle.schema().returns().size())), is_random(handle.hasTag(at::Tag::nondeterministic_seeded))
{
    for (const auto& argument : op.schema().arguments()) {
        const auto& type = *argument.type();
        const bool optional_tensor = type.isSubtypeOf(*c10::OptionalType::ofTensor());
        Argument kind = optional_tensor ? Argument::Tensor : Argument::Other;
        const auto& inner = type.kind() == c10::TypeKind::OptionalType ? *type.castRaw<c10::OptionalType>()->getElementType() : type;
        if (inner.kind() == c10::TypeKind::ListType) {
            const auto& element = *inner.castRaw<c10::ListType>()->getElementType();
            if (element.kind() == c10::TypeKind::TensorType) kind = Argument::TensorList;
            else if (element.isSubtypeOf(*c10::OptionalType::ofTensor())) kind = Argument::OptionalTensorList;
        }
        if (argument.alias_info() && argument.alias_info()->isWrite() && mutated_arg < 0) mutated_arg = static_cast<std::int64_t>(arguments.size());
        arguments.push_back(kind);
    }
    const auto* alias = arguments.empty() ? nullptr : op.schema().arguments()[0].alias_info();
    is_view = alias && !alias->isWrite();
}

RuleCall::RuleCall(const OperatorFacts& facts, torch::jit::Stack* stack)
    : facts_(facts), stack_(stack), num_args_(static_cast<std::int64_t>(facts.arguments.size()))
{
    if (facts.mutated_arg >= 0) written_ = tensor(facts.mutated_arg);
    bool plain_operand = false;
    for (std::int64_t i = 0; i < num_args_; ++i) {
        if (facts.arguments[i] == OperatorFacts::Argument::Other) continue;
        const auto& value = arg(i);
        if (value.isTensor()) {
            const auto& tensor = value.toTensor();
            look_at(tensor);
            plain_operand |= tensor.defined() && tensor.dim() > 0 && !is_sharded(tensor);
        } else if (value.isTensorList()) {
            for (const at::Tensor& tensor : value.toTensorList()) {
                look_at(tensor);
                plain_operand |= !is_sharded(tensor);
            }
        } else if (value.isList()) {   // optional tensors
            for (const auto& element : value.toListRef()) {
                if (element.isTensor()) look_at(element.toTensor());
            }
        }
    }
    if (plain_operand && plain_tensor_policy() != PlainTensorPolicy::Silent) on_plain_operand();
}

void RuleCall::look_at(const at::Tensor& tensor)
{
    if (!is_sharded(tensor)) return;
    refresh_row_copy(tensor);
    const auto& mesh = spec_of(tensor)->device_mesh;
    if (mesh == mesh_) return;
    if (mesh_) refuse("its arguments lie on different device meshes", "Gather one with full_tensor, or make both on the same mesh");
    mesh_ = mesh;
}

void RuleCall::on_plain_operand() const
{
    if (plain_tensor_policy() == PlainTensorPolicy::Refuse) {
        throw InvalidInput(full_name() + ": a plain tensor meets a sharded one. Wrap it (from_local with Replicate), or allow it with "
                                         "set_plain_tensor_policy.");
    }
    TORCH_WARN_ONCE(full_name(), ": a plain tensor meets a sharded one and counts as the same on every rank");
}

std::string RuleCall::full_name() const
{
    const auto& name = facts_.op.operator_name();
    return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

at::Tensor RuleCall::tensor(std::int64_t i) const { return arg(i).isTensor() ? arg(i).toTensor() : at::Tensor(); }

std::vector<at::Tensor> RuleCall::tensor_list(std::int64_t i) const { return arg(i).toTensorVector(); }

std::vector<at::Tensor> RuleCall::tensors() const
{
    std::vector<at::Tensor> all;
    for (std::int64_t i = 0; i < num_args_; ++i) {
        const auto& value = arg(i);
        if (value.isTensor()) {
            if (value.toTensor().defined()) all.push_back(value.toTensor());
        } else if (value.isTensorList()) {
            for (const at::Tensor& tensor : value.toTensorList()) all.push_back(tensor);
        } else if (value.isList()) {
            for (const auto& element : value.toListRef()) {
                if (element.isTensor() && element.toTensor().defined()) all.push_back(element.toTensor());
            }
        }
    }
    return all;
}

const AxisLayout& RuleCall::layout(const at::Tensor& tensor, std::int64_t axis) const
{
    return is_sharded(tensor) ? spec_of(tensor)->axes[axis] : kReplicate;
}

at::Tensor RuleCall::with_layout(const at::Tensor& tensor, std::int64_t axis, const AxisLayout& layout) const
{
    if (this->layout(tensor, axis) == layout) return tensor;
    const auto source = is_sharded(tensor) ? tensor : wrap(tensor, replicated());
    auto axes = spec_of(source)->axes;
    axes[axis] = layout;
    for (std::size_t other = 0; other < axes.size(); ++other) {   // no dimension is cut twice
        const bool taken = layout.is_shard() && axes[other].is_shard() && axes[other].placement.dim == layout.placement.dim;
        if (taken && static_cast<std::int64_t>(other) != axis) axes[other] = {};
    }
    return convert(source, make_spec(mesh_, axes, spec_of(source)->index_map));
}

void RuleCall::set_local(std::int64_t i, const at::Tensor& local)
{
    if (i == facts_.mutated_arg && !is_sharded(written_) && !local.is_same(written_)) {
        refuse("it writes a sharded result into a plain tensor", "Use the form that returns a new tensor");
    }
    arg(i) = local;
}

void RuleCall::make_local()
{
    for (std::int64_t i = 0; i < num_args_; ++i) {
        if (facts_.arguments[i] == OperatorFacts::Argument::Other) continue;
        auto& value = arg(i);
        if (value.isTensor()) {
            if (is_sharded(value.toTensor())) set_local(i, at::Tensor(local_of(value.toTensor())));
        } else if (value.isTensorList()) {
            c10::List<at::Tensor> list;
            for (const at::Tensor& tensor : value.toTensorList()) list.push_back(local_of(tensor));
            value = std::move(list);
        } else if (value.isList()) {
            c10::List<std::optional<at::Tensor>> list;
            for (const auto& element : value.toListRef()) {
                if (element.isTensor()) list.push_back(local_of(element.toTensor()));
                else list.push_back(std::nullopt);
            }
            value = std::move(list);
        }
    }
}

void RuleCall::reduce_partials_of(c10::ArrayRef<at::Tensor> tensors) { reduce_partials(tensors); }

torch::jit::Stack RuleCall::run_local()
{
    facts_.op.callBoxed(stack_);
    const auto num_returns = facts_.num_returns;
    torch::jit::Stack results(std::make_move_iterator(stack_->end() - num_returns), std::make_move_iterator(stack_->end()));
    stack_->erase(stack_->end() - num_returns, stack_->end());
    return results;
}

void RuleCall::run(c10::ArrayRef<SpecPtr> specs)
{
    // The argument that is written to comes back as itself, not as a new tensor.
    const auto written_part = facts_.mutated_arg >= 0 ? tensor(facts_.mutated_arg) : at::Tensor();

    facts_.op.callBoxed(stack_);
    const auto num_returns = static_cast<std::size_t>(facts_.num_returns);
    std::size_t next = 0;
    const auto wrapped = [&](const at::Tensor& local) {
        if (written_part.defined() && local.is_same(written_part)) return written_;
        const auto& spec = specs[std::min(next, specs.size() - 1)];
        return wrap(local, spec);
    };
    for (std::size_t i = 0; i < num_returns; ++i, ++next) {
        auto& value = (*stack_)[stack_->size() - num_returns + i];
        if (value.isTensor()) {
            if (value.toTensor().defined()) value = wrapped(value.toTensor());
        } else if (value.isTensorList()) {
            c10::List<at::Tensor> list;
            for (const at::Tensor& tensor : value.toTensorList()) list.push_back(wrapped(tensor));
            value = std::move(list);
        }
    }
}

void RuleCall::push(torch::jit::Stack results)
{
    for (auto& result : results) stack_->push_back(std::move(result));
}

void RuleCall::finish(torch::jit::Stack results)
{
    torch::jit::drop(*stack_, num_args_);
    push(std::move(results));
}

SpecPtr RuleCall::spec(c10::ArrayRef<AxisLayout> axes) const { return make_spec(mesh_, axes); }

SpecPtr RuleCall::replicated() const { return replicated_spec(mesh_); }

void RuleCall::refuse(const std::string& why, const std::string& remedy) const
{
    std::string placements;
    std::int64_t shown = 0;
    for (const auto& tensor : tensors()) {
        if (shown++ == 6) break;
        placements += (placements.empty() ? "" : "; ");
        placements += is_sharded(tensor) ? to_string(*spec_of(tensor)) : "plain";
    }
    const auto message = "MissingShardRule: " + full_name() + " has no exact rule for these placements (" + placements + "): " + why +
                           ". " +
                           (remedy.empty() ? "Replicate the input with redistribute(x, Replicate()), or register a rule with RuleRegistration"
                                           : remedy) +
                         ".";
    if (observer) observer->refused(full_name(), message);
    throw MissingShardRule(message);
}

RuleRegistration::RuleRegistration(std::string_view family, std::initializer_list<const char*> operators, ShardRule rule)
{
    const std::lock_guard lock(installation().mutex);
    for (const auto* op : operators) table()[op] = {std::string(family), rule};
    if (!installation().done) return;
    for (const auto* op : operators) installation().install_registered(op);
}

PointwiseRegistration::PointwiseRegistration(ShardRule rule) { pointwise_rule() = rule; }

std::vector<RuleEntry> list_rules()
{
    std::vector<RuleEntry> entries;
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
        if (name.getNamespace() != "aten") continue;
        const auto op = c10::Dispatcher::singleton().findOp(name);
        if (!op || !op->hasSchema()) continue;
        auto family = find_rule(*op).family;
        if (family == "gathered" && !reaches_table(*op)) family = "composite";
        entries.push_back({full_name_of(name), family});
    }
    std::sort(entries.begin(), entries.end(), [](const RuleEntry& a, const RuleEntry& b) { return a.op < b.op; });
    return entries;
}

void install_rules()
{
    static std::once_flag once;
    std::call_once(once, [] {
        auto& all = installation();
        const std::lock_guard lock(all.mutex);
        for_each_aten_operator([&](const c10::OperatorHandle& op) { all.install(full_name_of(op.operator_name()), find_rule(op).rule, &op); });
        for (const auto& [registered, entry] : table()) {
            if (!registered.starts_with("aten::")) all.install_registered(registered);
        }
        all.install_fallbacks();
        all.done = true;
    });
}

void set_rule_observer(RuleObserver* value) { observer = value; }

void set_gather_policy(GatherPolicy policy) { gather_policy_now = policy; }
GatherPolicy gather_policy() { return gather_policy_now; }

void gathered_rule(RuleCall& call)
{
    const auto tensors = call.tensors();
    bool cut = false;
    for (const auto& tensor : tensors) cut |= is_sharded(tensor) && spec_of(tensor)->has_shard();
    if (call.is_random()) call.refuse("it draws random numbers, which would differ between ranks");
    call.reduce(tensors);
    if (cut) tell_of_gathering(call);

    // What is written to gets its new value back row by row. What the result is a view of becomes whole itself, so that both stay one.
    const auto& arguments = call.schema().arguments();
    std::vector<std::pair<at::Tensor, at::Tensor>> written;   // as passed, as handed to the operator
    const auto whole = [&](const at::Tensor& tensor, std::int64_t i) -> at::Tensor {
        const auto* alias = arguments[i].alias_info();
        const bool writes = alias && alias->isWrite();
        if (!is_sharded(tensor)) {
            if (writes) written.emplace_back(tensor, tensor);
            return tensor;
        }
        if (!spec_of(tensor)->has_shard()) {
            if (writes) written.emplace_back(tensor, local_of(tensor));
            return local_of(tensor);
        }
        const auto gathered = convert(tensor, call.replicated());
        // What shows the strides of a contiguous tensor can be viewed as one.
        const auto value = tensor.is_contiguous() ? local_of(gathered).contiguous() : local_of(gathered);
        if (writes) written.emplace_back(tensor, value);
        else if (alias) replace_value(tensor, value, spec_of(gathered));
        return value;
    };
    for (std::int64_t i = 0; i < call.num_args(); ++i) {
        auto& value = call.arg(i);
        if (value.isTensor()) {
            if (value.toTensor().defined()) value = whole(value.toTensor(), i);
        } else if (value.isTensorList()) {
            c10::List<at::Tensor> list;
            for (const at::Tensor& tensor : value.toTensorList()) list.push_back(whole(tensor, i));
            value = std::move(list);
        } else if (is_optional_tensor_list(value)) {
            c10::List<std::optional<at::Tensor>> list;
            for (const auto& element : value.toListRef()) {
                if (element.isTensor() && element.toTensor().defined()) list.push_back(whole(element.toTensor(), i));
                else list.push_back(std::nullopt);
            }
            value = std::move(list);
        }
    }

    auto results = call.run_local();
    for (const auto& [tensor, value] : written) {
        if (!is_sharded(tensor)) continue;
        if (value.sizes() != tensor.sizes()) {
            throw MissingShardRule("MissingShardRule: " + call.full_name() + " changes the shape of a sharded tensor in place. Use the form that returns a new tensor.");
        }
        const auto& spec = spec_of(tensor);
        auto part = value;
        for (std::int64_t axis = 0; axis < call.num_axes(); ++axis) {
            if (spec->axes[axis].is_shard()) part = narrow_to_shard(part, spec->axes[axis], call.coordinate(axis));
        }
        if (!part.is_same(local_of(tensor))) local_of(tensor).copy_(part);
    }
    const auto wrapped = [&](const at::Tensor& result) {
        for (const auto& [tensor, value] : written) {
            if (result.is_same(value)) return tensor;
        }
        return wrap(result, call.replicated());
    };
    for (auto& result : results) {
        if (result.isTensor()) {
            if (result.toTensor().defined()) result = wrapped(result.toTensor());
        } else if (result.isTensorList()) {
            c10::List<at::Tensor> list;
            for (const at::Tensor& tensor : result.toTensorList()) list.push_back(wrapped(tensor));
            result = std::move(list);
        }
    }
    call.push(std::move(results));
}

void replicated_rule(RuleCall& call)
{
    const auto tensors = call.tensors();
    for (const auto& tensor : tensors) {
        if (is_sharded(tensor) && spec_of(tensor)->has_shard()) call.refuse("there is no rule for sharded arguments");
    }
    if (call.is_random()) call.refuse("it draws random numbers, which would differ between ranks");
    call.reduce(tensors);
    call.make_local();
    call.run({call.replicated()});
}

}  // namespace meshard
