// SPDX-License-Identifier: Apache-2.0
#include "sharding/tensor/rule_table.h"

#include "sharding/tensor/boxed_arguments.h"
#include "sharding/tensor/direct_kernel.h"
#include "sharding/tensor/exact_mode.h"
#include "sharding/tensor/fixed_order.h"
#include "sharding/tensor/meta_call.h"
#include "sharding/tensor/operator_errors.h"
#include "sharding/tensor/redistribute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>

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

struct Direct {
    ShardRule rule = nullptr;
    DirectRegistration::Make make = nullptr;
};

std::map<std::string, Direct, std::less<>>& direct_table()
{
    static std::map<std::string, Direct, std::less<>> kernels;
    return kernels;
}

ShardRule& pointwise_rule()
{
    static ShardRule rule = nullptr;
    return rule;
}

/// LibTorch lets cuDNN compute convolutions in single precision in TF32 by default; this turns it off.
[[maybe_unused]] const bool single_precision_is_whole = [] {
    at::globalContext().setAllowTF32CuDNN(false);
    return true;
}();

thread_local RuleObserver* observer = nullptr;
thread_local std::int64_t num_calls_by_rule = 0;
std::atomic<ErrorTranslation> error_translation{nullptr};

/// Returns whether the operator writes its results to tensors given as `out`.
bool takes_out(const c10::OperatorHandle& op)
{
    const auto& arguments = op.schema().arguments();
    return std::ranges::any_of(arguments, [](const c10::Argument& argument) { return argument.is_out(); });
}

/// The rules of one operator: in exact mode `exact` (may be null) is called first, and may return false to let `rule`
/// handle the call. Pending sums are reduced before, since each rank would compute with its summand alone, and round
/// it.
struct CurrentRules {
    ShardRule rule;
    ExactRule exact = nullptr;

    void operator()(RuleCall& call) const
    {
        if (exact_mode() && !call.is_view()) call.reduce(call.tensors());
        if (!exact || !exact_mode() || !exact(call)) rule(call);
    }
};

/// Runs a rule, and updates tensors that share memory with its arguments.
void run_rule(const CurrentRules& rules, RuleCall& call, const OperatorFacts& facts, const torch::jit::Stack& stack)
{
    if (facts.mutated_arg >= 0 && !facts.changes_view) {
        rules(call);
        for (const auto& tensor : call.all_written()) note_write(tensor);
    } else if (facts.is_view) {
        const auto base = call.tensor(0);
        rules(call);
        const auto views = torch::jit::last(stack, facts.num_returns);
        share_memory(base, views);
        if (is_copy(base)) inherit_copy(base, views);
    } else {
        rules(call);
    }
}

/// @throws MissingShardRule; `why` and `remedy` as in RuleCall::refuse
[[noreturn]] void refuse_operator(const std::string& op, c10::ArrayRef<at::Tensor> tensors, const std::string& why,
                                  const std::string& remedy)
{
    std::string placements;
    std::int64_t shown = 0;
    for (const auto& tensor : tensors) {
        if (shown++ == 6) break;
        placements += (placements.empty() ? "" : "; ");
        placements += is_sharded(tensor) ? to_string(*spec_of(tensor)) : "plain";
    }
    const auto message =
        "MissingShardRule: " + op + " has no exact rule for these placements (" + placements + "): " + why + ". " +
        (remedy.empty()
             ? "Replicate the input with redistribute(x, Replicate()), or register a rule with RuleRegistration"
             : remedy) +
        ".";
    if (observer) observer->refused(op, message);
    throw MissingShardRule(message);
}

void observe(const OperatorFacts& facts, torch::jit::Stack* stack, RuleCall& call, const CurrentRules& rules);

void call_rule(const OperatorFacts& facts, torch::jit::Stack* stack, const CurrentRules& rules)
{
    ++num_calls_by_rule;
    const BelowRecording below;
    try {
        RuleCall call(facts, stack);
        check_as_whole(facts, call.arguments());
        std::optional<FixedOrderGuard> in_one_order;
        if (exact_mode() && is_on_device(call)) {
            // The tensors are taken now: while the operator runs they are no longer on the stack.
            in_one_order.emplace([op = call.full_name(), tensors = call.tensors()](const std::string& kernel) {
                refuse_operator(op, tensors,
                                "in exact mode, since LibTorch's kernel for GPUs (" + kernel +
                                    ") adds in any order, so that two runs would differ",
                                "Compute it on CPUs, or leave exact mode (training.exact=false, set_exact_mode)");
            });
        }
        if (observer)
            observe(facts, stack, call, rules);
        else
            run_rule(rules, call, facts, *stack);
    } catch (const Error& error) {
        translate_error(error);
        throw;
    }
}

/// The current rule of an installed operator; a later registration replaces it.
using RuleSlot = std::atomic<ShardRule>;

class RuleKernel : public c10::OperatorKernel {
public:
    RuleKernel(const c10::OperatorHandle& op, const RuleSlot& rule, std::string_view family)
        : facts_(op), rule_(&rule),
          exact_(takes_out(op) ? nullptr
                               : find_exact_rule(full_name_of(op.operator_name()), op.operator_name().name, family))
    {
    }

    void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack)
    {
        call_rule(facts_, stack, {rule_->load(std::memory_order_relaxed), exact_});
    }

private:
    OperatorFacts facts_;
    const RuleSlot* rule_;
    ExactRule exact_;
};

/// Kernel of operators that are not defined yet when the rule is installed: their schema is read at every call.
class UnknownOperatorKernel : public c10::OperatorKernel {
public:
    explicit UnknownOperatorKernel(const RuleSlot& rule) : rule_(&rule) {}

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack)
    {
        call_rule(OperatorFacts(op), stack, {rule_->load(std::memory_order_relaxed)});
    }

private:
    const RuleSlot* rule_;
};

/// Kernel of composite operators with a rule: if gradients or tangents are needed, the composition runs instead, since
/// a rule records neither; its parts have rules of their own.
class CompositionKernel : public c10::OperatorKernel {
public:
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack)
    {
        bool records = false, has_tangent = false;
        for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
            for_each_tensor(value, [&](const at::Tensor& tensor) {
                records |= tensor.requires_grad();
                has_tangent |= tensor._fw_grad(/*level=*/0).defined();
            });
        }
        if (has_tangent || (records && at::GradMode::is_enabled()))
            op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
        else
            op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
    }
};

Registered find_rule(const c10::OperatorHandle& op)
{
    const auto& name = op.operator_name();
    if (!name.overload_name.empty()) {
        const auto exact = table().find(full_name_of(name));
        if (exact != table().end()) return exact->second;
    }
    if (takes_out(op)) return {"given results", &out_rule};
    const auto family = table().find(name.name);
    if (family != table().end()) return family->second;
    if (op.hasTag(at::Tag::pointwise) && pointwise_rule()) return {"pointwise", pointwise_rule()};
    return {"gathered", &gathered_rule};
}

void observe(const OperatorFacts& facts, torch::jit::Stack* stack, RuleCall& call, const CurrentRules& rules)
{
    const auto add = [](std::string& text, const at::Tensor& tensor) {
        text += (text.empty() ? "" : "; ") + (is_sharded(tensor) ? to_string(*spec_of(tensor)) : "plain");
    };
    RuleEvent event;
    event.op = call.full_name();
    event.family = find_rule(facts.op).family;
    for (const auto& tensor : call.tensors()) add(event.inputs, tensor);
    const auto& counter = call.device_mesh()->counter();
    const auto messages = counter.num_calls(), bytes = counter.total_bytes();
    run_rule(rules, call, facts, *stack);
    event.gathered = call.has_gathered();
    event.num_messages = counter.num_calls() - messages;
    event.num_bytes = counter.total_bytes() - bytes;
    for (const auto& value : torch::jit::last(*stack, static_cast<std::size_t>(facts.num_returns))) {
        for_each_tensor(value, [&](const at::Tensor& tensor) { add(event.outputs, tensor); });
    }
    observer->called(event);
}

/// Makes sparse arguments dense: rules support dense tensors only.
class DenseKernel : public c10::OperatorKernel {
public:
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack)
    {
        const auto num_args = op.schema().arguments().size();
        bool has_sparse = false;
        for (std::size_t i = 0; i < num_args; ++i) {
            map_tensors(torch::jit::peek(*stack, i, num_args), [&](const at::Tensor& tensor) {
                if (tensor.layout() == at::kStrided) return tensor;
                has_sparse = true;
                return tensor.to_dense();
            });
        }
        if (!has_sparse) refuse(op, "makes a sparse tensor, and sharded ones are dense");
        try {
            op.callBoxed(stack);
        } catch (const c10::NotImplementedError&) {
            refuse(op, "has no form for dense tensors, as which it would get the sparse ones beside sharded ones");
        }
    }

private:
    [[noreturn]] static void refuse(const c10::OperatorHandle& op, const std::string& why)
    {
        const MissingShardRule error("MissingShardRule: " + full_name_of(op.operator_name()) + " " + why +
                                     ". Use it on full_tensor(x).");
        translate_error(error);
        throw error;
    }
};

/// Returns whether a composite operator has a rule although its parts have rules: those of this family would gather the
/// whole on every rank.
bool is_shortcut(const std::string& registered)
{
    return table().at(registered).family == "shortcuts";
}

/// Kernels registered with the dispatcher, never removed. `mutex` guards them, and the table once rules are installed.
struct Installation {
    std::mutex mutex;
    bool done = false;
    std::map<std::string, RuleSlot, std::less<>> rules;  // keyed by full name
    std::map<std::pair<std::string, c10::DispatchKey>, torch::Library> libraries;

    torch::Library& library(const std::string& name, c10::DispatchKey key)
    {
        const auto ns = name.substr(0, name.find("::"));
        return libraries.try_emplace({ns, key}, torch::Library::IMPL, ns, std::make_optional(key), __FILE__, __LINE__)
            .first->second;
    }

    static torch::CppFunction kernel_of(const std::string& name, const Registered& entry, const c10::OperatorHandle& op,
                                        const RuleSlot& slot)
    {
        auto kernel = std::make_unique<RuleKernel>(op, slot, entry.family);
        if (const auto make = find_direct(name, entry.rule))
            return make({op, c10::BoxedKernel::makeFromFunctor(std::move(kernel)), &slot, entry.rule});
        return torch::CppFunction::makeFromBoxedFunctor(std::move(kernel));
    }

    /// `op` is null if the operator is not defined yet.
    void install(const std::string& name, const Registered& entry, const c10::OperatorHandle* op)
    {
        const auto [slot, is_new] = rules.try_emplace(name, entry.rule);
        if (!is_new) {
            slot->second = entry.rule;
            return;
        }
        const auto short_name = name.substr(name.find("::") + 2);
        auto& rules_of_namespace = library(name, c10::DispatchKey::PrivateUse2);
        if (op)
            rules_of_namespace.impl(short_name.c_str(), kernel_of(name, entry, *op, slot->second));
        else
            rules_of_namespace.impl(short_name.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                                            std::make_unique<UnknownOperatorKernel>(slot->second)));
    }

    /// Makes sparse arguments dense if they come with sharded ones, also for operators with one kernel for all devices,
    /// which takes precedence over a fallback.
    void make_sparse_dense(const c10::OperatorHandle& op)
    {
        bool for_all = false;
        for (const auto key :
             {c10::DispatchKey::CompositeExplicitAutograd, c10::DispatchKey::CompositeExplicitAutogradNonFunctional}) {
            for_all |= op.hasKernelForDispatchKey(key);
        }
        const auto name = full_name_of(op.operator_name());
        if (!for_all || name == "aten::_sparse_addmm") return;  // it only calls addmm, which has a rule
        for (const auto key : {c10::DispatchKey::SparsePrivateUse2, c10::DispatchKey::SparseCsrPrivateUse2}) {
            library(name, key).impl(name.substr(name.find("::") + 2).c_str(),
                                    torch::CppFunction::makeFromBoxedFunctor(std::make_unique<DenseKernel>()));
        }
    }

    /// Installs the rule for every operator of this name; operators that are defined later get it then.
    void install_registered(const std::string& registered);

    /// Operators of other namespaces without a rule are gathered, as those of aten. One without a derivative throws if
    /// a gradient is needed.
    void install_fallbacks()
    {
        static const RuleSlot gathered{&gathered_rule};
        library("_::", c10::DispatchKey::PrivateUse2)
            .fallback(torch::CppFunction::makeFromBoxedFunctor(std::make_unique<UnknownOperatorKernel>(gathered)));
        for (const auto key : {c10::DispatchKey::SparsePrivateUse2, c10::DispatchKey::SparseCsrPrivateUse2}) {
            library("_::", key).fallback(torch::CppFunction::makeFromBoxedFunctor(std::make_unique<DenseKernel>()));
        }
        library("_::", c10::DispatchKey::AutogradPrivateUse2)
            .fallback(torch::autograd::autogradNotImplementedFallback());
        // cuDNN keeps a buffer of recurrent networks that only cuDNN can read: sharded networks use LibTorch's cells,
        // which have rules.
        const std::string recurrent = "aten::cudnn_is_acceptable";
        for (const auto key : {c10::DispatchKey::PrivateUse2, c10::DispatchKey::AutogradPrivateUse2}) {
            library(recurrent, key).impl("cudnn_is_acceptable", [](const at::Tensor&) { return false; });
        }
    }
};

Installation& installation()
{
    static auto& one = *new Installation;
    return one;
}

void Installation::install_registered(const std::string& registered)
{
    const bool is_aten = registered.starts_with("aten::");
    bool found = false;
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
        if (name.name != registered && full_name_of(name) != registered) continue;
        const auto op = c10::Dispatcher::singleton().findOp(name);
        if (!op || !op->hasSchema() || (is_aten && !arrives_below_autograd(*op) && !is_shortcut(registered))) continue;
        found = true;
        const auto full_name = full_name_of(name);
        const bool is_new = !rules.contains(full_name);
        install(full_name, find_rule(*op), &*op);
        if (is_new && !arrives_below_autograd(*op)) {
            library(full_name, c10::DispatchKey::AutogradPrivateUse2)
                .impl(full_name.substr(full_name.find("::") + 2).c_str(),
                      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<CompositionKernel>()));
        }
    }
    if (!found && !is_aten) install(registered, table().at(registered), nullptr);
}

const AxisLayout kReplicate{};

}  // namespace

OperatorFacts::OperatorFacts(const c10::OperatorHandle& handle)
    : op(handle), num_returns(std::ssize(handle.schema().returns())),
      is_random(handle.hasTag(at::Tag::nondeterministic_seeded)), changes_view(handle.hasTag(at::Tag::inplace_view))
{
    for (const auto key : {c10::DispatchKey::Meta, c10::DispatchKey::CompositeExplicitAutograd,
                           c10::DispatchKey::CompositeExplicitAutogradNonFunctional}) {
        has_meta |= op.hasKernelForDispatchKey(key);
    }
    const auto optional_tensor = c10::OptionalType::ofTensor();
    for (const auto& argument : op.schema().arguments()) {
        const auto& type = *argument.type();
        const auto& inner =
            type.kind() == c10::TypeKind::OptionalType ? *type.castRaw<c10::OptionalType>()->getElementType() : type;
        const auto& element =
            inner.kind() == c10::TypeKind::ListType ? *inner.castRaw<c10::ListType>()->getElementType() : inner;
        if (argument.alias_info() && argument.alias_info()->isWrite())
            written_args.push_back(std::ssize(takes_tensors));
        takes_tensors.push_back(element.isSubtypeOf(*optional_tensor));
    }
    if (!written_args.empty()) mutated_arg = written_args.front();
    const auto* alias = takes_tensors.empty() ? nullptr : op.schema().arguments()[0].alias_info();
    is_view = alias && !alias->isWrite();
    is_pointwise = op.hasTag(at::Tag::pointwise) || find_rule(op).rule == pointwise_rule();
    const bool depends_on_values =
        op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
    is_checked = op.schema().name().starts_with("aten::") && !is_random && !is_view && !changes_view &&
                 !takes_out(op) && !depends_on_values;
}

RuleCall::RuleCall(const OperatorFacts& facts, torch::jit::Stack* stack)
    : facts_(facts), stack_(stack), num_args_(std::ssize(facts.takes_tensors))
{
    if (facts.mutated_arg >= 0) written_ = tensor(facts.mutated_arg);
    for (const auto i : facts.written_args) {
        for_each_tensor(arg(i), [&](const at::Tensor& tensor) { all_written_.push_back(tensor); });
    }
    bool plain_operand = false;
    for (std::int64_t i = 0; i < num_args_; ++i) {
        if (!facts.takes_tensors[i]) continue;
        for_each_tensor(arg(i), [&](const at::Tensor& tensor) {
            look_at(tensor);
            plain_operand |= tensor.dim() > 0 && !is_sharded(tensor);
        });
    }
    if (plain_operand && plain_tensor_policy() != PlainTensorPolicy::Silent) on_plain_operand();
}

void RuleCall::look_at(const at::Tensor& tensor)
{
    if (!is_sharded(tensor)) return;
    refresh_copy(tensor);
    const auto& mesh = spec_of(tensor)->device_mesh;
    if (mesh == mesh_) return;
    if (mesh_)
        refuse("its arguments are on different device meshes",
               "Gather one with full_tensor, or make both on the same mesh");
    mesh_ = mesh;
}

void RuleCall::on_plain_operand() const
{
    if (plain_tensor_policy() == PlainTensorPolicy::Refuse) {
        throw InvalidInput("{}: a plain and a sharded tensor are combined. Make the plain one sharded "
                           "(from_local with Replicate), or allow it with "
                           "set_plain_tensor_policy.",
                           full_name());
    }
    TORCH_WARN_ONCE(
        full_name(),
        ": a plain and a sharded tensor are combined; the plain one is taken to be the same on every rank (Replicate)");
}

std::string RuleCall::full_name() const
{
    return full_name_of(facts_.op.operator_name());
}

at::Tensor RuleCall::tensor(std::int64_t i) const
{
    return arg(i).isTensor() ? arg(i).toTensor() : at::Tensor();
}

std::vector<at::Tensor> RuleCall::tensor_list(std::int64_t i) const
{
    return arg(i).toTensorVector();
}

std::vector<at::Tensor> RuleCall::tensors() const
{
    std::vector<at::Tensor> all;
    for (std::int64_t i = 0; i < num_args_; ++i) {
        if (facts_.takes_tensors[i]) for_each_tensor(arg(i), [&](const at::Tensor& tensor) { all.push_back(tensor); });
    }
    return all;
}

const AxisLayout& RuleCall::layout(const at::Tensor& tensor, std::int64_t axis) const
{
    static const AxisLayout replicate{};
    return is_sharded(tensor) ? spec_of(tensor)->axes[axis] : replicate;
}

at::Tensor RuleCall::with_layout(const at::Tensor& tensor, std::int64_t axis, const AxisLayout& layout) const
{
    if (this->layout(tensor, axis) == layout) return tensor;
    const auto source = is_sharded(tensor) ? tensor : wrap(tensor, replicated());
    auto axes = spec_of(source)->axes;
    axes[axis] = layout;
    for (std::size_t other = 0; other < axes.size(); ++other) {  // one axis at most may shard a dimension
        const bool taken =
            layout.is_shard() && axes[other].is_shard() && axes[other].placement.dim == layout.placement.dim;
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
        if (!facts_.takes_tensors[i]) continue;
        auto& value = arg(i);
        if (!value.isTensor())
            map_tensors(value, [](const at::Tensor& tensor) { return local_of(tensor); });
        else if (is_sharded(value.toTensor()))
            set_local(i, at::Tensor(local_of(value.toTensor())));
    }
}

void RuleCall::reduce_partials_of(c10::ArrayRef<at::Tensor> tensors)
{
    reduce_partials(tensors);
}

torch::jit::Stack RuleCall::run_local()
{
    facts_.op.callBoxed(stack_);
    const auto num_returns = facts_.num_returns;
    torch::jit::Stack results(std::make_move_iterator(stack_->end() - num_returns),
                              std::make_move_iterator(stack_->end()));
    stack_->erase(stack_->end() - num_returns, stack_->end());
    return results;
}

void RuleCall::run(c10::ArrayRef<SpecPtr> specs)
{
    // The argument that is written to is returned itself instead of a new tensor.
    const auto written_part = facts_.mutated_arg >= 0 ? tensor(facts_.mutated_arg) : at::Tensor();

    facts_.op.callBoxed(stack_);
    const auto num_returns = static_cast<std::size_t>(facts_.num_returns);
    std::size_t next = 0;
    std::size_t k = 0;
    const auto wrapped = [&](const at::Tensor& local) {
        if (written_part.defined() && local.is_same(written_part)) return written_;
        const auto& spec = specs[std::min(next, specs.size() - 1)];
        const auto result = wrap(local, spec, strides(k++));
        if (!facts_.is_view) mark_fresh(result);
        return result;
    };
    for (std::size_t i = 0; i < num_returns; ++i, ++next)
        map_tensors((*stack_)[stack_->size() - num_returns + i], wrapped);
}

void RuleCall::keep_strides()
{
    bool contiguous = true;
    for (std::int64_t i = 0; i < num_args_; ++i) {
        if (facts_.takes_tensors[i])
            for_each_tensor(arg(i), [&](const at::Tensor& tensor) { contiguous &= tensor.is_contiguous(); });
    }
    if (contiguous && !facts_.is_view) return;
    if (auto results = meta_results(facts_, arguments())) shown_ = *std::move(results);
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

SpecPtr RuleCall::spec(c10::ArrayRef<AxisLayout> axes) const
{
    return make_spec(mesh_, axes);
}

SpecPtr RuleCall::replicated() const
{
    return replicated_spec(mesh_);
}

void RuleCall::refuse(const std::string& why, const std::string& remedy) const
{
    refuse_operator(full_name(), tensors(), why, remedy);
}

RuleRegistration::RuleRegistration(std::string_view family, std::initializer_list<const char*> operators,
                                   ShardRule rule)
{
    const std::lock_guard lock(installation().mutex);
    for (const auto* op : operators) table()[op] = {std::string(family), rule};
    if (!installation().done) return;
    for (const auto* op : operators) installation().install_registered(op);
}

bool must_call_rules()
{
    return observer || exact_mode() || plain_tensor_policy() != PlainTensorPolicy::Silent;
}

std::int64_t num_rule_calls()
{
    return num_calls_by_rule;
}

DirectRegistration::DirectRegistration(std::string full_name, ShardRule rule, Make make)
{
    direct_table()[std::move(full_name)] = {rule, make};
}

DirectRegistration::Make find_direct(std::string_view full_name, ShardRule rule)
{
    const auto found = direct_table().find(full_name);
    return found != direct_table().end() && found->second.rule == rule ? found->second.make : nullptr;
}

PointwiseRegistration::PointwiseRegistration(ShardRule rule)
{
    pointwise_rule() = rule;
}

std::vector<RuleEntry> list_rules()
{
    std::vector<RuleEntry> entries;
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
        if (name.getNamespace() != "aten") continue;
        const auto op = c10::Dispatcher::singleton().findOp(name);
        if (!op || !op->hasSchema()) continue;
        auto family = find_rule(*op).family;
        if (family == "gathered" && !arrives_below_autograd(*op)) family = "composite";
        entries.push_back({full_name_of(name), family});
    }
    std::ranges::sort(entries, [](const RuleEntry& a, const RuleEntry& b) { return a.op < b.op; });
    return entries;
}

void install_rules()
{
    static std::once_flag once;
    std::call_once(once, [] {
        auto& all = installation();
        const std::lock_guard lock(all.mutex);
        for_each_aten_operator([&](const c10::OperatorHandle& op) {
            all.install(full_name_of(op.operator_name()), find_rule(op), &op);
            all.make_sparse_dense(op);
        });
        for (const auto& [registered, entry] : table()) {
            if (!registered.starts_with("aten::") || is_shortcut(registered)) all.install_registered(registered);
        }
        all.install_fallbacks();
        all.done = true;
    });
}

RuleObserver* set_rule_observer(RuleObserver* value)
{
    return std::exchange(observer, value);
}

void set_error_translation(ErrorTranslation translation)
{
    error_translation = translation;
}

void translate_error(const Error& error)
{
    if (const auto translation = error_translation.load()) translation(error);
}

}  // namespace meshard
