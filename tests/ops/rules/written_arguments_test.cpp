// SPDX-License-Identifier: Apache-2.0
// Every overload of every aten operator that writes to an argument: in place, or to tensors given as `out`. Arguments
// are made from its schema until the plain operator takes them; then sharded ones must give the same numbers, or be
// refused by name.
#include "partition/error.h"
#include "sharding/tensor/boxed_arguments.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>

namespace meshard {
namespace {

using torch::jit::Stack;

bool is_written(const c10::Argument& argument)
{
    return argument.alias_info() && argument.alias_info()->isWrite();
}

bool takes_out(const c10::FunctionSchema& schema)
{
    return std::any_of(schema.arguments().begin(), schema.arguments().end(),
                       [](const c10::Argument& argument) { return argument.is_out(); });
}

/// How arguments are made for one try.
struct Recipe {
    std::vector<std::vector<std::int64_t>> shapes;  // of the tensors, in turn
    at::ScalarType type, out_type;
    bool optional_tensors, flag;
    std::int64_t dim;
};

std::vector<Recipe> recipes()
{
    static const std::vector<std::vector<std::vector<std::int64_t>>> shapes{{{10, 4}},
                                                                            {{10, 4}, {4, 10}},
                                                                            {{10, 10}},
                                                                            {{10}},
                                                                            {{10, 4}, {4}},
                                                                            {{2, 10, 4}, {2, 4, 10}},
                                                                            {{2, 3, 10, 6}},
                                                                            {{2, 3, 10, 6}, {3}, {3}, {3}, {3}},
                                                                            {{2, 10, 6}},
                                                                            {{2, 3, 10, 6, 6}},
                                                                            {{3, 10, 10}},
                                                                            {{10, 3}, {10, 4}, {4, 3}},
                                                                            {{10}, {10, 4}, {4}},
                                                                            {{3, 5}, {3, 4, 5}, {3, 4, 5}},
                                                                            {{10, 4}, {10}},
                                                                            {{10, 4}, {}},
                                                                            {{2, 3, 10, 6}, {4, 3, 2, 2}, {4}},
                                                                            {{10, 4}, {10, 4}, {4}},
                                                                            {{10, 6}, {10, 6}, {10, 1}}};
    std::vector<Recipe> all;
    for (const auto out : {at::kDouble, at::kLong, at::kBool, at::kComplexDouble}) {
        for (const auto type : {at::kDouble, at::kLong, at::kBool, at::kComplexDouble}) {
            if (type == at::kComplexDouble && out != at::kComplexDouble && out != at::kDouble) continue;
            for (const auto& shape : shapes) {
                for (const int variant : {0, 1, 2, 3, 4})
                    all.push_back({shape, type, out, variant == 1 || variant == 3, variant >= 2, variant == 4 ? 1 : 0});
            }
        }
    }
    return all;
}

at::Tensor tensor_for(const std::string& name, const Recipe& recipe, std::size_t& count)
{
    const auto shape = recipe.shapes[count % recipe.shapes.size()];
    const auto number = static_cast<double>(++count);
    const auto steps = at::arange(c10::multiply_integers(shape), at::kDouble);
    if (name == "index" || name == "indices" || name == "target" || name == "offsets" || name == "row_indices" ||
        name == "pivots" || name == "LU_pivots") {
        return steps.remainder(3)
            .to(name == "pivots" || name == "LU_pivots" ? at::kInt : at::kLong)
            .add(name == "LU_pivots" || name == "pivots" ? 1 : 0)
            .view(shape);
    }
    if (name == "mask" || name == "condition") return steps.remainder(2).eq(0).view(shape);
    // Between 0.1 and 0.9: what logarithms, probabilities and roots take.
    auto values = (steps.mul(0.7 * number).add(number).sin().mul(0.4) + 0.5).view(shape);
    if (recipe.type == at::kLong) values = values.mul(5).floor().add(1);
    if (recipe.type == at::kBool) return values.gt(0.5);
    if (values.dim() >= 2 && values.size(-1) == values.size(-2))
        values = values + at::eye(values.size(-1), at::kDouble).mul(3 * number);
    return values.to(recipe.type).contiguous();
}

c10::IValue number_for(const std::string& name, const Recipe& recipe)
{
    if (name == "dim" || name == "dim0" || name == "axis" || name == "dimension" || name == "start_dim")
        return recipe.dim;
    if (name == "dim1") return 1 - recipe.dim;
    static const std::map<std::string, std::int64_t> known{{"diagonal", 0},
                                                           {"offset", 0},
                                                           {"k", 2},
                                                           {"n", 2},
                                                           {"size", 2},
                                                           {"bins", 4},
                                                           {"groups", 1},
                                                           {"output_size", 5},
                                                           {"num_classes", 6},
                                                           {"nbins", 4},
                                                           {"reduction", 1},
                                                           {"sections", 2},
                                                           {"N", 2},
                                                           {"C", 3},
                                                           {"HxW", 60},
                                                           {"group", 1},
                                                           {"num_weights", 10},
                                                           {"padding_idx", -1},
                                                           {"scaling_mode", 0},
                                                           {"interpolation_mode", 0},
                                                           {"padding_mode", 0},
                                                           {"ignore_index", -100},
                                                           {"normalization", 0},
                                                           {"quant_min", 0},
                                                           {"quant_max", 255},
                                                           {"storage_offset", 0},
                                                           {"shifts", 1}};
    const auto found = known.find(name);
    return found == known.end() ? 1 : found->second;
}

std::vector<std::int64_t> numbers_for(const c10::Argument& argument, const Recipe& recipe)
{
    const auto& name = argument.name();
    const auto n = static_cast<std::size_t>(argument.N().value_or(1));
    const auto& shape = recipe.shapes[0];
    if (name == "dim" || name == "dims") return {recipe.dim};
    if (name == "size" || name == "input_size" || name == "self_size" || name == "sizes" || name == "input_sizes" ||
        name == "self_sizes") {
        return recipe.flag || n < 2
                   ? shape
                   : std::vector<std::int64_t>(shape.end() - static_cast<std::int64_t>(std::min(n, shape.size())),
                                               shape.end());
    }
    if (name == "stride" && n == 1 && !shape.empty()) {
        std::vector<std::int64_t> strides(shape.size(), 1);
        for (auto d = shape.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * shape[d + 1];
        return strides;
    }
    if (name == "normalized_shape") return {shape.empty() ? 1 : shape.back()};
    if (name == "shifts") return {3};
    if (name == "repeats") return std::vector<std::int64_t>(shape.size(), 2);
    if (name == "split_sizes") return {4, 6};
    static const std::map<std::string, std::int64_t> known{{"kernel_size", 2}, {"padding", 0}, {"output_padding", 0},
                                                           {"output_size", 5}, {"bins", 4},    {"pad", 1}};
    const auto found = known.find(name);
    return std::vector<std::int64_t>(
        name == "padding" && recipe.flag ? 2 * std::max<std::size_t>(n, 1) / std::max<std::size_t>(n / 2, 1) : n,
        found == known.end() ? 1 : found->second);
}

std::optional<c10::IValue> value_for(const c10::Argument& argument, const Recipe& recipe, std::size_t& count)
{
    const bool is_optional = argument.type()->kind() == c10::TypeKind::OptionalType;
    const auto type = is_optional ? argument.type()->castRaw<c10::OptionalType>()->getElementType() : argument.type();
    const auto& name = argument.name();
    switch (type->kind()) {
    case c10::TypeKind::TensorType:
        if (argument.is_out()) {
            const bool is_position = name.find("ind") != std::string::npos || name == "out1" || name == "pivots";
            return at::empty({0},
                             is_position && recipe.flag ? (name == "pivots" ? at::kInt : at::kLong) : recipe.out_type);
        }
        if (is_optional && !recipe.optional_tensors) return c10::IValue();
        return tensor_for(name, recipe, count);
    case c10::TypeKind::ListType: {
        const auto element = type->castRaw<c10::ListType>()->getElementType();
        if (element->kind() == c10::TypeKind::TensorType) {
            c10::List<at::Tensor> list;
            for (int k = 0; k < 2; ++k)
                list.push_back(argument.is_out() ? at::empty({0}, recipe.out_type) : tensor_for(name, recipe, count));
            return list;
        }
        if (element->kind() == c10::TypeKind::OptionalType) {
            c10::List<std::optional<at::Tensor>> list;
            list.push_back(at::tensor({2, 0, 1}, at::kLong));
            return list;
        }
        if (argument.default_value() && !(name == "dim" && recipe.flag)) return *argument.default_value();
        if (is_optional && !recipe.flag) return c10::IValue();
        if (element->kind() == c10::TypeKind::IntType || element->kind() == c10::TypeKind::SymIntType)
            return numbers_for(argument, recipe);
        if (element->kind() == c10::TypeKind::FloatType) return std::vector<double>(2, 0.5);
        if (element->kind() == c10::TypeKind::BoolType) return c10::List<bool>({true, true, true});
        if (element->kind() == c10::TypeKind::NumberType) {
            c10::List<at::Scalar> list;
            for (int k = 0; k < 2; ++k) list.push_back(at::Scalar(0.5));
            return list;
        }
        return std::nullopt;
    }
    default:
        break;
    }
    if (name == "training" || name == "train" || name == "keepdim") return recipe.flag;
    if (argument.default_value() &&
        !(is_optional && recipe.optional_tensors && type->kind() == c10::TypeKind::NumberType))
        return *argument.default_value();
    if (is_optional && !recipe.optional_tensors) return c10::IValue();
    switch (type->kind()) {
    case c10::TypeKind::NumberType:
        return recipe.type == at::kLong || recipe.type == at::kBool
                   ? c10::IValue(1)
                   : c10::IValue(name == "ord" || name == "p" || name == "norm_type" ? 2.0 : 0.5);
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
        return number_for(name, recipe);
    case c10::TypeKind::ScalarTypeType:
        return static_cast<std::int64_t>(recipe.out_type);
    case c10::TypeKind::FloatType:
        return name == "eps" ? 1e-5 : 0.5;
    case c10::TypeKind::BoolType:
        return recipe.flag;
    case c10::TypeKind::StringType:
        return std::string(name == "reduce"        ? "sum"
                           : name == "indexing"    ? "ij"
                           : name == "approximate" ? "none"
                                                   : "mean");
    default:
        return std::nullopt;
    }
}

std::optional<Stack> arguments_for(const c10::FunctionSchema& schema, const Recipe& recipe)
{
    Stack stack;
    std::size_t count = 0;
    for (const auto& argument : schema.arguments()) {
        auto value = value_for(argument, recipe, count);
        if (!value) return std::nullopt;
        stack.push_back(std::move(*value));
    }
    return stack;
}

Stack copied(const Stack& stack)
{
    auto copy = stack;
    for (auto& value : copy) map_tensors(value, [](const at::Tensor& tensor) { return tensor.clone(); });
    return copy;
}

/// The results, then what the arguments that are written to hold.
std::vector<at::Tensor> run(const c10::OperatorHandle& op, Stack stack)
{
    std::vector<at::Tensor> written, all;
    for (std::size_t i = 0; i < op.schema().arguments().size(); ++i) {
        if (is_written(op.schema().arguments()[i]))
            for_each_tensor(stack[i], [&](const at::Tensor& tensor) { written.push_back(tensor); });
    }
    op.callBoxed(&stack);
    for (const auto& value : stack) for_each_tensor(value, [&](const at::Tensor& tensor) { all.push_back(tensor); });
    all.insert(all.end(), written.begin(), written.end());
    return all;
}

struct Sample {
    c10::OperatorHandle op;
    Stack arguments;
    std::vector<at::Tensor> expected;
};

/// Operators of other devices and of other kinds of tensors, those whose arguments are handles or leave memory as it
/// was found, and those that read and write beyond their arguments when shapes do not belong together (backward halves
/// and others; HaveNoRuleOfTheFormWithNewResults sees them, too).
bool is_out_of_scope(const std::string& name)
{
    if (const char* only = std::getenv("MESHARD_TEST_OPERATOR"); only && name != only) return true;
    static const std::vector<std::string> parts{"cudnn",
                                                "miopen",
                                                "mkldnn",
                                                "quantize",
                                                "fbgemm",
                                                "sparse",
                                                "nested",
                                                "_cslt",
                                                "vulkan",
                                                "mps",
                                                "rnn",
                                                "lstm",
                                                "gru",
                                                "fake_quant",
                                                "qint",
                                                "_coalesce",
                                                "coalesced",
                                                "to_mkl",
                                                "ccol",
                                                "crow",
                                                "values_copy",
                                                "indices_copy",
                                                "set_data",
                                                "requires_grad",
                                                "retain_grad",
                                                "hspmm",
                                                "sspaddmm",
                                                "int_repr",
                                                "q_per",
                                                "_efficient",
                                                "_flash",
                                                "padded_dense",
                                                "padded_sequence",
                                                "_jagged",
                                                "rename",
                                                "refine_names",
                                                "_triton",
                                                "_fused_moving",
                                                "observ",
                                                "empty",
                                                "sobol",
                                                "_weight_norm_interface",
                                                "backward",
                                                "unpool",
                                                "embedding_bag",
                                                "ctc",
                                                "segment_reduce",
                                                "ldl",
                                                "_compute_linear",
                                                "fractional",
                                                "lu_unpack",
                                                "lu_solve",
                                                "histogramdd",
                                                "_grid_sampler",
                                                "batch_norm_gather",
                                                "batch_norm_update",
                                                "_jvp",
                                                "_cholesky_solve_helper",
                                                "_convert_indices"};
    return std::any_of(parts.begin(), parts.end(),
                       [&](const std::string& part) { return name.find(part) != std::string::npos; });
}

/// Operators that write to an argument and take a tensor, by name.
std::vector<c10::OperatorHandle> writing_operators()
{
    std::vector<c10::OperatorHandle> ops;
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
        const auto op = name.getNamespace() == "aten" ? c10::Dispatcher::singleton().findOp(name) : std::nullopt;
        if (!op || !op->hasSchema() || is_out_of_scope(name.name)) continue;
        const auto& arguments = op->schema().arguments();
        bool takes_tensor = false;
        for (const auto& argument : arguments)
            takes_tensor |= !argument.is_out() && argument.type()->str().find("Tensor") != std::string::npos;
        if (takes_tensor && std::any_of(arguments.begin(), arguments.end(), is_written)) ops.push_back(*op);
    }
    std::sort(ops.begin(), ops.end(), [](const auto& a, const auto& b) {
        return full_name_of(a.operator_name()) < full_name_of(b.operator_name());
    });
    return ops;
}

struct Try {
    std::int32_t op, recipe;
};

/// Tries operators from `first` on and writes down which recipes they take, two each, until there are no more or one
/// ends the process.
[[noreturn]] void try_recipes(const std::vector<c10::OperatorHandle>& ops, const std::vector<Recipe>& all,
                              std::int32_t first, int answers)
{
    alarm(300);
    std::freopen("/dev/null", "w", stderr);
    const at::NoGradGuard no_grad;
    const auto say = [&](const Try& one) { return write(answers, &one, sizeof(one)) == sizeof(one); };
    for (auto k = first; k < static_cast<std::int32_t>(ops.size()); ++k) {
        say({k, -1});
        int found = 0;
        for (std::int32_t r = 0; r < static_cast<std::int32_t>(all.size()) && found < 2; ++r) {
            const auto stack = arguments_for(ops[k].schema(), all[r]);
            if (!stack) break;
            try {
                run(ops[k], copied(*stack));
                ++found;
                say({k, r});
            } catch (const std::exception&) {  // arguments of another kind are wanted
            }
        }
    }
    _exit(0);
}

/// In processes of their own, since some plain operators do not survive arguments that they do not expect.
std::vector<Try> recipes_taken(const std::vector<c10::OperatorHandle>& ops, const std::vector<Recipe>& all)
{
    std::vector<Try> taken;
    std::int32_t next = 0;
    while (next < static_cast<std::int32_t>(ops.size())) {
        int ends[2];
        if (pipe(ends) != 0) throw std::runtime_error("no pipe");
        const auto child = fork();
        if (child == 0) {
            close(ends[0]);
            try_recipes(ops, all, next, ends[1]);
        }
        close(ends[1]);
        Try one{};
        while (read(ends[0], &one, sizeof(one)) == sizeof(one)) {
            next = one.op + 1;  // where the next process goes on if this one has ended here
            if (one.recipe >= 0) taken.push_back(one);
        }
        close(ends[0]);
        int status = 0;
        waitpid(child, &status, 0);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
    }
    return taken;
}

/// Up to two sets of arguments for every such operator; the names of those without.
std::vector<Sample> make_samples(std::vector<std::string>& without)
{
    const auto ops = writing_operators();
    const auto all = recipes();
    std::vector<Sample> samples;
    std::set<std::int32_t> found;
    for (const auto& [op, recipe] : recipes_taken(ops, all)) {
        const at::NoGradGuard no_grad;
        const auto stack = arguments_for(ops[op].schema(), all[recipe]);
        samples.push_back({ops[op], *stack, run(ops[op], copied(*stack))});
        found.insert(op);
    }
    for (std::int32_t op = 0; op < static_cast<std::int32_t>(ops.size()); ++op) {
        if (!found.contains(op)) without.push_back(full_name_of(ops[op].operator_name()));
    }
    return samples;
}

/// Cut along the first dimension of ten entries, or else of more than one.
at::Tensor cut(const at::Tensor& whole, const std::shared_ptr<const DeviceMesh>& mesh)
{
    if (!whole.defined() || whole.dim() == 0) return whole;
    auto dim = std::find(whole.sizes().begin(), whole.sizes().end(), 10) - whole.sizes().begin();
    if (dim == whole.dim())
        dim = std::find_if(whole.sizes().begin(), whole.sizes().end(), [](std::int64_t size) { return size > 1; }) -
              whole.sizes().begin();
    if (dim == whole.dim()) return whole;
    const auto n = whole.size(dim), first = n == 10 ? 7 : n - 1;
    const auto spec =
        make_spec(mesh, {AxisLayout{Shard(dim), std::make_shared<Extents>(Extents{first, n - first}), 1}});
    return from_local(own_part(whole, *spec).clone(), spec);
}

enum class Sharded : std::uint8_t { All, Inputs, Written, AllButFirst };

/// What is written to outside of the arguments in place is empty before; sharded, it must have the result's shape.
Stack sharded_arguments(const Sample& sample, Sharded which, const std::shared_ptr<const DeviceMesh>& mesh, bool& any)
{
    auto stack = copied(sample.arguments);
    const auto& arguments = sample.op.schema().arguments();
    const auto num_outs = static_cast<std::size_t>(
        std::count_if(arguments.begin(), arguments.end(), [](const auto& argument) { return argument.is_out(); }));
    std::size_t out = 0;
    for (std::size_t i = 0; i < stack.size(); ++i) {
        const bool written = is_written(arguments[i]);
        const bool wanted = which == Sharded::All || (which == Sharded::Inputs    ? !written
                                                      : which == Sharded::Written ? written
                                                                                  : i > 0);
        if (arguments[i].is_out() && stack[i].isTensor()) {
            const auto& result = sample.expected[sample.expected.size() - num_outs + out++];
            if (!wanted) continue;
            const auto place = cut(at::zeros_like(result, at::MemoryFormat::Contiguous), mesh);
            any |= is_sharded(place);
            stack[i] = place;
        } else if (wanted && !arguments[i].is_out()) {
            map_tensors(stack[i], [&](const at::Tensor& tensor) {
                const auto part = cut(tensor, mesh);
                any |= is_sharded(part);
                return part;
            });
        }
    }
    return stack;
}

TEST(WrittenArguments, AreRightOrRefusedByName)
{
    std::vector<std::string> without;
    const auto samples = make_samples(without);
    std::set<std::string> names, refused, gathered_none;
    for (const auto& sample : samples) names.insert(full_name_of(sample.op.operator_name()));
    std::mutex mutex;
    std::map<std::string, std::string> wrong;
    run_ranks(2, [&](const auto& mesh) {
        set_gather_policy(GatherPolicy::Silent);
        const at::NoGradGuard no_grad;
        for (const auto& sample : samples) {
            const auto name = full_name_of(sample.op.operator_name());
            if (mesh->coordinate(0) == 0 && std::getenv("MESHARD_TRACE_OPERATORS"))
                std::cerr << "sharded " << name << std::endl;
            const bool is_random = sample.op.hasTag(at::Tag::nondeterministic_seeded);
            for (const auto which : {Sharded::All, Sharded::Inputs, Sharded::Written, Sharded::AllButFirst}) {
                bool any = false;
                auto stack = sharded_arguments(sample, which, mesh, any);
                if (!any) continue;
                std::string fault;
                try {
                    const auto found = run(sample.op, std::move(stack));
                    if (found.size() != sample.expected.size())
                        fault = std::to_string(found.size()) + " results, expected " +
                                std::to_string(sample.expected.size());
                    for (std::size_t i = 0; i < found.size() && fault.empty(); ++i) {
                        if (!found[i].defined() || !sample.expected[i].defined()) continue;
                        const auto whole = full_tensor(found[i]);
                        auto expected = sample.expected[i];
                        if (expected.is_complex() && whole.is_complex())
                            expected = at::view_as_real(expected.resolve_conj());
                        const auto value = whole.is_complex() ? at::view_as_real(whole.resolve_conj()) : whole;
                        const auto near = is_random ? ::testing::AssertionResult(value.sizes() == expected.sizes())
                                                    : tensors_near(value, expected, 1e-9);
                        if (!near) fault = "result " + std::to_string(i) + ": " + near.message();
                    }
                } catch (const CommunicationError&) {
                    throw;
                } catch (const std::exception& error) {
                    const std::string message = error.what();
                    // A composition of set_ asks for the memory of the whole, which has none.
                    const bool is_named = message.find("aten::") != std::string::npos ||
                                          name == "aten::set_.source_Tensor_storage_offset";
                    if (!is_named)
                        fault = "throws " + message.substr(0, std::getenv("MESHARD_TEST_OPERATOR") ? 6000 : 300);
                    const std::lock_guard lock(mutex);
                    refused.insert(name);
                }
                if (!fault.empty()) {
                    const std::lock_guard lock(mutex);
                    wrong.emplace(name, "case " + std::to_string(static_cast<int>(which)) + ", rank " +
                                            std::to_string(mesh->coordinate(0)) + ": " + fault);
                }
            }
        }
        set_gather_policy(GatherPolicy::Warn);
    });
    for (const auto& [name, fault] : wrong) ADD_FAILURE() << name << ": " << fault;
    std::cout << names.size() << " overloads ran, " << refused.size() << " were refused in some placement, for "
              << without.size() << " no arguments were found\n";
    if (std::getenv("MESHARD_TRACE_OPERATORS")) {
        for (const auto& name : refused) std::cout << "refused " << name << "\n";
        for (const auto& name : without) std::cout << "without " << name << "\n";
    }
    EXPECT_GT(names.size(), 1000u) << "the arguments made from schemas no longer fit";
}

/// Overloads for which no arguments were found above, too: rules registered for a family's name are for results that
/// are new.
TEST(WrittenArguments, HaveNoRuleOfTheFormWithNewResults)
{
    for (const auto& entry : list_rules()) {
        const auto dot = entry.op.find('.');
        const auto op = c10::Dispatcher::singleton().findSchema(
            {entry.op.substr(0, dot), dot == std::string::npos ? "" : entry.op.substr(dot + 1)});
        ASSERT_TRUE(op.has_value()) << entry.op;
        if (takes_out(op->schema())) {
            EXPECT_TRUE(entry.family == "given results" || entry.family == "composite" || entry.family == "shortcuts")
                << entry.op << " has the rule of " << entry.family;
        }
    }
}

/// By hand: what the parts alone would give.
TEST(WrittenArguments, TakeTheWholesNumbers)
{
    run_ranks(2, [](const auto& mesh) {
        set_gather_policy(GatherPolicy::Silent);
        const auto whole = at::arange(40, at::kDouble).view({10, 4}),
                   weight = at::eye(4, at::kDouble).narrow(1, 0, 3).contiguous();
        const auto x = cut(whole, mesh);
        auto rows = at::empty({10}, at::kDouble), columns = at::empty({4}, at::kDouble),
             product = at::empty({0}, at::kDouble);

        at::sum_out(rows, x, 1);
        at::sum_out(columns, x, 0);
        at::mm_out(product, x, weight);
        EXPECT_TRUE(at::equal(rows, whole.sum(1)));
        EXPECT_TRUE(at::equal(columns, whole.sum(0)));
        EXPECT_TRUE(at::equal(product, whole.mm(weight)));

        auto sharded = at::zeros_like(at::mm(x, weight));
        const auto before = mesh->counter().num_calls();
        at::mm_out(sharded, x, weight);
        EXPECT_EQ(mesh->counter().num_calls(), before) << "rows stay where they are";
        EXPECT_EQ(to_string(*spec_of(sharded)), "Shard(0) of 7+3 on domain");
        EXPECT_TRUE(at::equal(full_tensor(sharded), whole.mm(weight)));

        auto wider = at::empty({4}, at::kDouble);
        at::sum_out(wider, x.to(at::kFloat).mul(1e8).add(1), 0);  // summed in the type of what is given
        EXPECT_TRUE(at::equal(wider, at::sum(whole.to(at::kFloat).mul(1e8).add(1), 0, false, at::kDouble)));
        auto small = cut(at::zeros({10, 2}, at::kDouble), mesh);
        EXPECT_THROW(at::mm_out(small, x, weight), MissingShardRule);
        auto counts = at::empty({4}, at::kLong);
        EXPECT_THROW(at::mean_out(counts, x, 0), c10::Error);
        set_gather_policy(GatherPolicy::Warn);
    });
}

}  // namespace
}  // namespace meshard
