// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/irange.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// Thrown if an operator has sharded arguments in placements for which no exact rule exists. The message names the
/// operator, the placements and a remedy.
class MissingShardRule : public Error {
public:
    using Error::Error;
};

/// Properties of an operator, read from its schema once when its rule is installed.
struct OperatorFacts {
    explicit OperatorFacts(const c10::OperatorHandle& op);

    c10::OperatorHandle op;
    /// For each argument: whether it is a tensor or a list of tensors, optional or not.
    std::vector<bool> takes_tensors;
    std::int64_t num_returns = 0;
    std::int64_t mutated_arg = -1;           ///< the first argument that is written to, or -1
    std::vector<std::int64_t> written_args;  ///< all arguments that are written to
    bool is_random = false;
    bool changes_view = false;  ///< for `transpose_` and the like, which change shape and strides in place, not values
    bool has_meta = false;      ///< the operator runs on meta tensors, which have no memory
    bool is_view = false;       ///< the result shares memory with the first argument
    bool is_pointwise = false;  ///< each entry of the result follows from the tensors' entries there
    bool is_checked = false;    ///< whether `check_as_whole` looks at its calls
};

/// One call of an operator on at least one sharded tensor, below autograd. A rule converts the arguments to placements
/// that it supports, runs the operator on the local parts, and gives the layouts of the results.
class RuleCall {
public:
    RuleCall(const OperatorFacts& facts, torch::jit::Stack* stack);

    const std::string& name() const { return facts_.op.schema().name(); }  ///< `aten::mul_`
    std::string full_name() const;                                         ///< `aten::mul_.Tensor`
    const c10::FunctionSchema& schema() const { return facts_.op.schema(); }
    std::int64_t num_args() const { return num_args_; }

    c10::IValue& arg(std::int64_t i) { return (*stack_)[stack_->size() - num_args_ + i]; }
    const c10::IValue& arg(std::int64_t i) const { return (*stack_)[stack_->size() - num_args_ + i]; }

    c10::ArrayRef<c10::IValue> arguments() const { return torch::jit::last(*stack_, num_args_); }

    bool is_tensor(std::int64_t i) const { return arg(i).isTensor(); }
    at::Tensor tensor(std::int64_t i) const;  ///< undefined for None
    std::vector<at::Tensor> tensor_list(std::int64_t i) const;

    /// All tensor arguments, including those in lists.
    std::vector<at::Tensor> tensors() const;

    /// The argument that is written to, as the caller passed it; undefined if there is none.
    const at::Tensor& written() const { return written_; }

    /// All tensors that are written to, as the caller passed them.
    c10::ArrayRef<at::Tensor> all_written() const { return all_written_; }

    /// Index of the first argument that the operator writes to, or -1.
    std::int64_t mutated_arg() const { return facts_.mutated_arg; }

    const std::shared_ptr<const DeviceMesh>& device_mesh() const { return mesh_; }
    std::int64_t num_axes() const { return mesh_->num_axes(); }
    auto axes() const { return c10::irange(num_axes()); }  ///< 0, 1, ...
    std::int64_t coordinate(std::int64_t axis) const { return mesh_->coordinate(axis); }

    /// Layout of a tensor on an axis; Replicate for a plain tensor.
    const AxisLayout& layout(const at::Tensor& tensor, std::int64_t axis) const;

    /// Reduces the Partial axes of these tensors, with one message for all of the same type and axes.
    void reduce(c10::ArrayRef<at::Tensor> tensors) const { reduce_partials_of(tensors); }

    /// Converts the tensor to another layout on one axis; if another axis already shards the same dimension, that axis
    /// becomes Replicate.
    at::Tensor with_layout(const at::Tensor& tensor, std::int64_t axis, const AxisLayout& layout) const;

    /// Replaces an argument by its local part.
    void set_local(std::int64_t i, const at::Tensor& local);

    /// Replaces all tensor arguments by their local parts, in their present layouts.
    void make_local();

    /// Returns whether the operator draws random numbers that may differ between ranks.
    bool is_random() const { return facts_.is_random && !draws_alike_; }

    /// Called by a rule that has given the operator a generator which draws the same numbers on every rank.
    void draws_alike() { draws_alike_ = true; }

    /// Gives the results the strides that the plain operator would give them (they decide which `view` calls are
    /// allowed): for rules whose results have the memory order of the operands. Call it before the arguments are
    /// replaced. Cheap if all are contiguous and the operator is no view. Has no effect for the few operators that do
    /// not run on meta tensors.
    void keep_strides();

    /// Strides of the k-th result tensor; empty (contiguous) without `keep_strides`.
    c10::IntArrayRef strides(std::size_t k) const
    {
        return k < shown_.size() ? shown_[k].strides() : c10::IntArrayRef();
    }

    /// Returns whether the result shares memory with the first argument.
    bool is_view() const { return facts_.is_view; }

    /// Called by `gathered_rule` if it has gathered a tensor; reported to the observer.
    void note_gathering() { has_gathered_ = true; }
    bool has_gathered() const { return has_gathered_; }

    /// Runs the operator on the present arguments and wraps every tensor result with its spec: one for each result; the
    /// last one is used for further results. A result that is an argument written to is returned as that argument.
    void run(c10::ArrayRef<SpecPtr> specs);

    /// Runs the operator and returns its plain results; removes them from the stack.
    torch::jit::Stack run_local();

    /// Puts the call's results on the stack, after `run_local`.
    void push(torch::jit::Stack results);

    /// Ends the call with these results instead of running the operator.
    void finish(torch::jit::Stack results);

    /// A spec on this call's mesh.
    SpecPtr spec(c10::ArrayRef<AxisLayout> axes) const;
    SpecPtr replicated() const;

    /// @throws MissingShardRule; `why`: what this rule does not support; `remedy`: what the caller can do.
    [[noreturn]] void refuse(const std::string& why, const std::string& remedy = {}) const;

private:
    static void reduce_partials_of(c10::ArrayRef<at::Tensor> tensors);

    void look_at(const at::Tensor& tensor);
    void on_plain_operand() const;

    const OperatorFacts& facts_;
    torch::jit::Stack* stack_;
    std::int64_t num_args_;
    bool draws_alike_ = false;
    bool has_gathered_ = false;
    std::vector<at::Tensor> shown_;  // results of the plain operator on meta tensors
    at::Tensor written_;             // the argument that is written to, as the caller passed it
    c10::SmallVector<at::Tensor, 2> all_written_;
    std::shared_ptr<const DeviceMesh> mesh_;
};

using ShardRule = void (*)(RuleCall&);

/// Registers a rule for an operator of any namespace: `aten::mm` (all overloads except those that write to a given
/// `out`) or `aten::sum.dim_IntList` (one). Static objects of this type in the files of `ops` fill the table before
/// main. A later registration of the same name replaces an earlier one at once. For a composite operator the rule is
/// used only in calls that need no gradients.
struct RuleRegistration {
    RuleRegistration(std::string_view family, std::initializer_list<const char*> operators, ShardRule rule);
};

/// Registers the rule of every operator that is tagged pointwise and has no other rule.
struct PointwiseRegistration {
    explicit PointwiseRegistration(ShardRule rule);
};

/// The table's entry for one operator.
struct RuleEntry {
    std::string op;  ///< `aten::sum.dim_IntList`
    /// `pointwise`, `views`, ...; `gathered` if `gathered_rule` is its only rule, `composite` if LibTorch composes it
    /// of others.
    std::string family;
};

/// Every aten operator, sorted by name.
std::vector<RuleEntry> list_rules();

/// Registers the table's kernels with LibTorch's dispatcher, for aten and for every operator that has a rule. Called
/// when the first sharded tensor is made.
void install_rules();

/// Rule of last resort, exact for every operator that draws no random numbers: every rank gathers the sharded arguments
/// and computes the whole; the results are Replicate. An argument that is written to keeps its layout; a plain one gets
/// the whole value. Other rules call this one for layouts that they do not support.
void gathered_rule(RuleCall& call);

/// Rule of operators that write their results to tensors given as `out`: calls the overload that returns new tensors,
/// then copies them. A sharded `out` keeps its layout; a plain one gets the whole value and, as in LibTorch, is resized
/// if its shape does not fit.
void out_rule(RuleCall& call);

/// One call of an operator, as the rule table handled it.
struct RuleEvent {
    std::string op;  ///< `aten::sum.dim_IntList`
    std::string family;
    std::string inputs;   ///< layouts of the tensor arguments, such as `Shard(0) of 3+4 on domain; plain`
    std::string outputs;  ///< layouts of the tensor results
    std::int64_t num_messages = 0;
    std::int64_t num_bytes = 0;
    bool gathered = false;  ///< whether `gathered_rule` has gathered a tensor
};

/// Interface that is called for every operator that goes through the table, and for refusals.
class RuleObserver {
public:
    virtual ~RuleObserver() = default;
    virtual void called(const RuleEvent& event) = 0;
    virtual void refused(const std::string& op, const std::string& message) = 0;
};

/// Sets the observer of this thread, null for none, and returns the one before it.
RuleObserver* set_rule_observer(RuleObserver* observer);

/// What happens if an operator has no better rule than to gather: it gathers silently, with one warning for each
/// operator (the default), or is refused. Set for each thread.
enum class GatherPolicy : std::uint8_t { Silent, Warn, Refuse };
void set_gather_policy(GatherPolicy policy);
GatherPolicy gather_policy();

}  // namespace meshard
