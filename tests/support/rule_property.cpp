// SPDX-License-Identifier: Apache-2.0
#include "tests/support/rule_property.h"

#include "sharding/tensor/exact_mode.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"
#include "tests/support/standin/standin.h"
#include "tests/support/test_device.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <regex>
#include <utility>

namespace meshard {
namespace {

struct Cut {
    std::vector<AxisLayout> axes;  // one an axis of the device mesh
    bool pending = false;          // on the last axis, as parts that add up
};

/// A result that differs from the same in double by more than this share of its largest value is another one, not a
/// rounded one.
constexpr double kOtherwise = 1e-3;

/// What a case gives, on the CPU, and how far each may be from it, as a share of its largest value.
struct Results {
    std::vector<at::Tensor> outputs, gradients;
    std::vector<double> of_outputs, of_gradients;
};

struct Prepared {
    std::uint64_t seed = 0;
    RuleCase item;
    std::vector<Cut> cuts;
    std::vector<Cut> factor_cuts;  // the gradients of the outputs arrive in any layout, too
    std::vector<at::Tensor> factors;
    Results expected;  // of the plain operator
};

Extents random_extents(std::int64_t n, std::int64_t ranks, Draw& draw)
{
    if (draw.chance(0.2)) return even_extents(n, ranks);
    std::vector<double> weights(ranks);
    for (auto& weight : weights) weight = draw.chance(0.2) ? 0 : draw.real(0.05, 1);
    weights[draw.integer(0, ranks - 1)] = 1;
    const auto sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    Extents extents(ranks);
    double reached = 0;
    std::int64_t given = 0;
    for (std::int64_t r = 0; r < ranks; ++r) {
        reached += weights[r] / sum;
        const auto end = r + 1 == ranks ? n : std::min<std::int64_t>(n, std::llround(reached * static_cast<double>(n)));
        extents[r] = end - given;
        given = end;
    }
    return extents;
}

/// Every axis cuts a direction of every tensor that has as many.
std::vector<Cut> draw_blocks(const std::vector<at::Tensor>& tensors, c10::IntArrayRef mesh_shape, Draw& draw)
{
    std::vector<Cut> cuts(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        cuts[i].axes.resize(mesh_shape.size());
        std::vector<std::int64_t> dims;
        for (std::int64_t dim = 2; tensors[i].defined() && dim < tensors[i].dim(); ++dim) dims.push_back(dim);
        for (std::size_t a = 0; a < mesh_shape.size() && !dims.empty(); ++a) {
            const auto next = dims.begin() + draw.integer(0, std::ssize(dims) - 1);
            cuts[i].axes[a] = {Shard(*next),
                               std::make_shared<Extents>(random_extents(tensors[i].size(*next), mesh_shape[a], draw)),
                               1};
            dims.erase(next);
        }
    }
    return cuts;
}

/// Inputs of one length are cut in the same way in most cases, as those of a model are.
std::vector<Cut> draw_cuts(const std::vector<at::Tensor>& tensors, const std::vector<std::int64_t>& whole,
                           c10::IntArrayRef mesh_shape, bool partial, Draw& draw)
{
    std::vector<Cut> cuts(tensors.size());
    const bool alike = draw.chance(0.6);
    std::vector<std::map<std::int64_t, std::shared_ptr<const Extents>>> known(mesh_shape.size());
    const auto common_dim = draw.integer(-4, 3);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        cuts[i].axes.resize(mesh_shape.size());
        if (!tensors[i].defined() || std::find(whole.begin(), whole.end(), static_cast<std::int64_t>(i)) != whole.end())
            continue;
        const auto& input = tensors[i];
        std::vector<std::int64_t> taken;
        for (std::size_t a = 0; a < mesh_shape.size(); ++a) {
            if (input.dim() == 0 || draw.chance(0.2)) continue;
            auto dim = draw.integer(0, input.dim() - 1);
            if (alike && a == 0 && common_dim >= -input.dim() && common_dim < input.dim())
                dim = common_dim < 0 ? common_dim + input.dim() : common_dim;
            if (std::find(taken.begin(), taken.end(), dim) != taken.end()) continue;
            taken.push_back(dim);
            auto& extents = known[a][input.size(dim)];
            if (!extents || !alike)
                extents = std::make_shared<Extents>(random_extents(input.size(dim), mesh_shape[a], draw));
            cuts[i].axes[a] = {Shard(dim), extents, 1};
        }
        const auto last = mesh_shape.size() - 1;
        if (partial && input.is_floating_point() && !cuts[i].axes[last].is_shard() && draw.chance(0.3)) {
            cuts[i].axes[last] = {Partial(), nullptr, 1};
            cuts[i].pending = true;
        }
    }
    return cuts;
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& factors,
                                     const std::vector<at::Tensor>& inputs)
{
    std::vector<at::Tensor> roots, wanted;
    at::Tensor total;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (!outputs[i].requires_grad()) continue;
        const auto term = (outputs[i] * factors[i]).sum();
        total = total.defined() ? total + term : term;
    }
    std::vector<at::Tensor> gradients(inputs.size());
    if (!total.defined()) return gradients;
    total.backward();
    for (std::size_t i = 0; i < inputs.size(); ++i) gradients[i] = inputs[i].grad();
    return gradients;
}

at::Tensor leaf(const at::Tensor& tensor)
{
    return tensor.is_floating_point() ? tensor.detach().clone().requires_grad_() : tensor.clone();
}

/// The plain operator's results, with these factors of the gradients; new ones are drawn first if `draw` is given.
Results plain_results(const RuleCase& item, std::vector<at::Tensor>& factors, Draw* draw)
{
    Results results;
    std::vector<at::Tensor> inputs;
    for (const auto& input : item.inputs) inputs.push_back(leaf(input));
    results.outputs = item.function(inputs);
    if (draw) {
        for (const auto& output : results.outputs) {
            factors.push_back(output.is_floating_point()
                                  ? draw->values(output.sizes(), output.scalar_type()).to(output.device())
                                  : at::Tensor());
        }
    }
    results.gradients = gradients_of(results.outputs, factors, inputs);
    for (auto& output : results.outputs) output = output.detach();
    for (auto* tensors : {&results.outputs, &results.gradients}) {
        for (auto& tensor : *tensors) tensor = tensor.defined() ? tensor.cpu() : tensor;
    }
    return results;
}

/// How far a result of single precision may be from the plain operator's, as a share of its largest value. Two sums of
/// n numbers taken in different orders differ by n roundings at most, of numbers no larger than their largest sum
/// (Higham 2002, 4.2). What an operator makes of roundings otherwise shows in how far the plain one itself is from the
/// same in double. Where that is something else altogether (other random numbers, another branch) it says nothing.
double single_tolerance(const at::Tensor& single, const at::Tensor& in_double, std::int64_t num_summands)
{
    const auto summed = static_cast<double>(num_summands) * std::numeric_limits<float>::epsilon();
    if (!single.defined() || !in_double.defined() || single.sizes() != in_double.sizes() || single.numel() == 0)
        return summed;
    const auto value = single.to(at::kDouble);
    const auto largest = value.nan_to_num(0, 0, 0).abs().max().item<double>();
    const auto own = (value - in_double.to(at::kDouble)).nan_to_num(0, 0, 0).abs().max().item<double>() /
                     (largest > 0 ? largest : 1.0);
    return summed + (own < kOtherwise ? 4 * own : 0);
}

/// The tolerances of `expected`, all in single precision.
void set_single_tolerances(const RuleCase& item, const std::vector<at::Tensor>& factors, Results& expected)
{
    const auto widened = [](const at::Tensor& tensor) {
        return tensor.defined() && tensor.scalar_type() == at::kFloat ? tensor.to(at::kDouble) : tensor;
    };
    auto wide = item;
    for (auto& input : wide.inputs) input = widened(input);
    std::vector<at::Tensor> wide_factors;
    for (const auto& factor : factors) wide_factors.push_back(widened(factor));
    Results in_double;
    try {
        in_double = plain_results(wide, wide_factors, nullptr);
    } catch (
        const c10::Error&) {  // as many results as in single precision, but of other shapes: the factors do not fit
    }
    in_double.outputs.resize(expected.outputs.size());
    in_double.gradients.resize(expected.gradients.size());
    std::int64_t num_summands = 1;
    for (const auto* tensors : std::initializer_list<const Tensors*>{&item.inputs, &expected.outputs}) {
        for (const auto& tensor : *tensors)
            num_summands = std::max(num_summands, tensor.defined() ? tensor.numel() : 0);
    }
    for (std::size_t i = 0; i < expected.outputs.size(); ++i) {
        expected.of_outputs.push_back(single_tolerance(expected.outputs[i], in_double.outputs[i], num_summands));
    }
    for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
        expected.of_gradients.push_back(single_tolerance(expected.gradients[i], in_double.gradients[i], num_summands));
    }
}

Prepared prepare(std::uint64_t seed, const std::function<RuleCase(Draw&)>& draw_case, c10::IntArrayRef mesh_shape,
                 const RuleProperty& property, Draw& draw, at::ScalarType type, bool in_blocks)
{
    Prepared prepared;
    prepared.seed = seed;
    prepared.item = draw_case(draw);
    for (auto& input : prepared.item.inputs) {
        if (!input.defined()) continue;
        input = input.to(device_of_tests(), input.scalar_type() == at::kDouble ? type : input.scalar_type());
    }
    const auto& item = prepared.item;
    prepared.cuts = in_blocks ? draw_blocks(item.inputs, mesh_shape, draw)
                              : draw_cuts(item.inputs, item.whole_inputs, mesh_shape, property.partial_inputs, draw);
    auto& expected = prepared.expected;
    expected = plain_results(prepared.item, prepared.factors, &draw);
    prepared.factor_cuts = in_blocks ? draw_blocks(prepared.factors, mesh_shape, draw)
                                     : draw_cuts(prepared.factors, {}, mesh_shape, property.partial_inputs, draw);
    if (type == at::kFloat) {
        set_single_tolerances(prepared.item, prepared.factors, expected);
    } else {
        expected.of_outputs.assign(expected.outputs.size(), property.tolerance);
        expected.of_gradients.assign(expected.gradients.size(), property.tolerance);
    }
    return prepared;
}

/// This rank's part of a whole tensor that is laid out as `cut` says, on this rank's device.
at::Tensor laid_out(const at::Tensor& whole, const Cut& cut, const std::shared_ptr<const DeviceMesh>& mesh)
{
    auto local = own_part(whole.to(device_of_tests()), *make_spec(mesh, cut.axes));
    if (cut.pending) {
        const auto last = mesh->num_axes() - 1;
        const auto ranks = static_cast<double>(mesh->size(last));
        // Parts that differ by rank and add up: 1/n each, and an offset that cancels.
        local = local / ranks + (mesh->coordinate(last) == 0 ? 0.5 * (ranks - 1) : -0.5);
    }
    return from_local(local.clone(), make_spec(mesh, cut.axes));
}

at::Tensor whole_of(const at::Tensor& tensor)
{
    return tensor.defined() ? full_tensor(tensor).detach().cpu() : tensor;
}

bool stays_plain(const RuleCase& item, std::size_t i)
{
    return std::find(item.whole_inputs.begin(), item.whole_inputs.end(), static_cast<std::int64_t>(i)) !=
           item.whole_inputs.end();
}

/// Inputs that lie as the case says, this rank's parts.
Tensors laid_out_inputs(const Prepared& prepared, const std::shared_ptr<const DeviceMesh>& mesh)
{
    Tensors inputs;
    for (std::size_t i = 0; i < prepared.item.inputs.size(); ++i) {
        const auto& input = prepared.item.inputs[i];
        inputs.push_back(leaf(stays_plain(prepared.item, i) ? input.to(device_of_tests())
                                                            : laid_out(input, prepared.cuts[i], mesh)));
    }
    return inputs;
}

Tensors laid_out_factors(const Prepared& prepared, const std::shared_ptr<const DeviceMesh>& mesh)
{
    Tensors factors;
    for (std::size_t i = 0; i < prepared.factors.size(); ++i) {
        factors.push_back(prepared.factors[i].defined() ? laid_out(prepared.factors[i], prepared.factor_cuts[i], mesh)
                                                        : at::Tensor());
    }
    return factors;
}

void expect_near(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients,
                 const Results& expected, const std::string& where)
{
    ASSERT_EQ(outputs.size(), expected.outputs.size()) << where;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        EXPECT_TRUE(tensors_near(whole_of(outputs[i]), expected.outputs[i], expected.of_outputs[i]))
            << where << "; output " << i;
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        EXPECT_TRUE(tensors_near(whole_of(gradients[i]), expected.gradients[i], expected.of_gradients[i]))
            << where << "; gradient " << i;
    }
}

/// Operator, layouts and results of a case, for messages.
std::string text_of(const Prepared& prepared, const DeviceMesh& mesh)
{
    auto text = prepared.item.text + "; MESHARD_RULE_SEED=" + std::to_string(prepared.seed) + "; " +
                std::to_string(mesh.num_ranks()) + " ranks";
    for (const auto& input : prepared.item.inputs) {
        if (input.defined() && input.is_floating_point())
            return text + "; " + c10::toString(input.scalar_type()) + (exact_mode() ? " in exact mode" : "");
    }
    return text;
}

void run(const Prepared& prepared, const std::shared_ptr<const DeviceMesh>& mesh)
{
    const auto& item = prepared.item;
    auto where = text_of(prepared, *mesh);
    for (std::size_t i = 0; i < prepared.cuts.size(); ++i)
        where += "; input " + std::to_string(i) + ": " + to_string(*make_spec(mesh, prepared.cuts[i].axes));
    try {
        const auto inputs = laid_out_inputs(prepared, mesh);
        const auto outputs = item.function(inputs);
        const auto factors = laid_out_factors(prepared, mesh);
        for (std::size_t i = 0; i < factors.size(); ++i) {
            if (factors[i].defined()) where += "; factor " + std::to_string(i) + ": " + to_string(*spec_of(factors[i]));
        }
        expect_near(outputs, gradients_of(outputs, factors, inputs), prepared.expected, where);
    } catch (const std::exception& error) {
        throw std::runtime_error(where + ": " + error.what());
    }
}

/// What one rank computes from the same inputs, cut along the same dimensions, must be the plain operator's results but
/// for rounding, and takes their place: other numbers of ranks must give the same bits.
void expect_one_ranks_results(Prepared& prepared, c10::IntArrayRef mesh_shape, const std::vector<std::string>& names)
{
    const auto on_one_rank = [](std::vector<Cut> cuts) {
        for (auto& cut : cuts) {
            for (auto& axis : cut.axes) {
                if (axis.is_shard())
                    axis.extents = std::make_shared<const Extents>(
                        Extents{std::accumulate(axis.extents->begin(), axis.extents->end(), std::int64_t{0})});
            }
        }
        return cuts;
    };
    auto alone = prepared;
    alone.cuts = on_one_rank(prepared.cuts);
    alone.factor_cuts = on_one_rank(prepared.factor_cuts);
    run_ranks(std::vector<std::int64_t>(mesh_shape.size(), 1), names, [&](const auto& mesh) {
        set_gather_policy(GatherPolicy::Silent);
        const auto inputs = laid_out_inputs(alone, mesh);
        const auto outputs = alone.item.function(inputs);
        const auto gradients = gradients_of(outputs, laid_out_factors(alone, mesh), inputs);
        expect_near(outputs, gradients, alone.expected, text_of(alone, *mesh));
        auto& expected = prepared.expected;
        for (std::size_t i = 0; i < outputs.size(); ++i) expected.outputs[i] = whole_of(outputs[i]);
        for (std::size_t i = 0; i < gradients.size(); ++i) expected.gradients[i] = whole_of(gradients[i]);
        expected.of_outputs.assign(outputs.size(), 0);
        expected.of_gradients.assign(gradients.size(), 0);
    });
}

/// Operators that made ranks gather the whole, and how their arguments lay; shared by the ranks of a run.
class Gathered {
public:
    explicit Gathered(const std::vector<Gathering>& declared) : declared_(declared), was_seen_(declared.size(), false)
    {
    }

    /// Whether the event is one that the family declares.
    bool is_declared(const RuleEvent& event)
    {
        const std::lock_guard lock(mutex_);
        for (std::size_t i = 0; i < declared_.size(); ++i) {
            if (!std::regex_match(event.op, std::regex(declared_[i].op)) ||
                !std::regex_search(event.inputs, std::regex(declared_[i].inputs)))
                continue;
            was_seen_[i] = true;
            return true;
        }
        return false;
    }

    /// Declarations that outlive their reason would hide a rule that gathers again.
    void expect_all_seen() const
    {
        for (std::size_t i = 0; i < declared_.size(); ++i) {
            EXPECT_TRUE(was_seen_[i]) << "no case gathers in " << declared_[i].op << " of '" << declared_[i].inputs
                                      << "': take it out of `gathers`";
        }
    }

private:
    const std::vector<Gathering>& declared_;
    std::vector<bool> was_seen_;
    std::mutex mutex_;
};

/// Watches this rank while it lives.
class GatherWatch : public RuleObserver {
public:
    explicit GatherWatch(Gathered& gathered) : gathered_(gathered) { set_rule_observer(this); }
    ~GatherWatch() override { set_rule_observer(nullptr); }
    GatherWatch(const GatherWatch&) = delete;
    GatherWatch& operator=(const GatherWatch&) = delete;

    void called(const RuleEvent& event) override
    {
        if (event.gathered && !gathered_.is_declared(event)) undeclared_ += "\n  " + event.op + " of " + event.inputs;
    }
    void refused(const std::string&, const std::string&) override {}

    /// What gathered since the last call.
    std::string take() { return std::exchange(undeclared_, {}); }

private:
    Gathered& gathered_;
    std::string undeclared_;
};

/// Exact mode while it lives, with kernels of the stand-in accelerator that add as those of GPUs do.
struct ExactMode {
    ExactMode() { set(true); }
    ~ExactMode() { set(false); }
    ExactMode(const ExactMode&) = delete;
    ExactMode& operator=(const ExactMode&) = delete;

private:
    static void set(bool on)
    {
        set_exact_mode(on);
        if (const auto* standin = loaded_standin()) standin->add_in_any_order(on);
    }
};

/// `type`: of floating inputs that are drawn in double.
void run_cases(const std::function<RuleCase(Draw&)>& draw_case, const RuleProperty& property, int num_cases,
               at::ScalarType type, Gathered& gathered, bool in_blocks = false)
{
    static const std::vector<std::vector<std::int64_t>> kGrids{{2, 2}, {2, 3}, {1, 3}, {2, 4}},
        kBlocks{{2, 2}, {2, 2, 2}, {3, 2}};
    const char* only = std::getenv("MESHARD_RULE_SEED");
    std::map<std::vector<std::int64_t>, std::vector<Prepared>> by_shape;
    const auto names = [](const auto& shape) {
        if (shape.size() == 1) return std::vector<std::string>{"domain"};
        const std::vector<std::string> all{"first", "second", "third"};
        return std::vector<std::string>(all.begin(), all.begin() + std::ssize(shape));
    };
    for (int k = 0; k < num_cases; ++k) {
        const auto seed = property.first_seed + static_cast<std::uint64_t>(k);
        if (only && std::to_string(seed) != only) continue;
        Draw draw(seed * 0x9E3779B97F4A7C15ull + 1);
        const auto shape = in_blocks           ? draw.pick(kBlocks)
                           : draw.chance(0.25) ? draw.pick(kGrids)
                                               : std::vector<std::int64_t>{draw.pick(property.rank_counts)};
        auto prepared = prepare(seed, draw_case, shape, property, draw, type, in_blocks);
        if (exact_mode()) expect_one_ranks_results(prepared, shape, names(shape));
        by_shape[shape].push_back(std::move(prepared));
    }
    for (const auto& [shape, cases] : by_shape) {
        run_ranks(shape, names(shape), [&, &cases = cases](const auto& mesh) {
            set_gather_policy(GatherPolicy::Silent);
            // In single precision nobody watches, so that direct kernels, where there are some, stand for their rules.
            std::optional<GatherWatch> watch;
            if (type == at::kDouble) watch.emplace(gathered);
            for (const auto& item : cases) {
                run(item, mesh);
                // Exact mode may gather whatever it likes.
                if (const auto undeclared = watch ? watch->take() : "";
                    !exact_mode() && !undeclared.empty() && mesh->all().rank() == 0) {
                    ADD_FAILURE() << text_of(item, *mesh) << ": every rank gathered the whole for" << undeclared
                                  << "\nMend the rule, or declare it in `gathers` with the reason";
                }
                if (mesh->num_ranks() > 1 && !mesh->all().all_agree(!::testing::Test::HasFatalFailure())) return;
            }
        });
    }
}

}  // namespace

std::int64_t Draw::integer(std::int64_t low, std::int64_t high)
{
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
}

double Draw::real(double low, double high)
{
    return low + (high - low) * static_cast<double>(engine_() >> 11) * 0x1p-53;
}

bool Draw::chance(double probability)
{
    return real(0, 1) < probability;
}

at::Tensor Draw::values(c10::IntArrayRef shape, at::ScalarType type)
{
    auto tensor = at::empty(shape, at::kDouble);
    auto* data = tensor.data_ptr<double>();
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
        data[i] = std::sqrt(-2 * std::log(real(1e-12, 1))) * std::cos(real(0, 6.283185307179586));
    return tensor.to(type);
}

void check_rule(const std::function<RuleCase(Draw&)>& draw_case, const RuleProperty& property)
{
    if (!has_device_of_tests()) GTEST_SKIP() << "this process sees no device of type " << device_of_tests();
    Gathered gathered(property.gathers);
    run_cases(draw_case, property, property.num_cases, at::kDouble, gathered);
    run_cases(draw_case, property, property.num_block_cases, at::kDouble, gathered, /*in_blocks=*/true);
    // Pending inputs are left out in single precision: their parts depend on the number of ranks, and cancel but for
    // rounding.
    auto single = property;
    single.partial_inputs = false;
    run_cases(draw_case, single, property.num_single_cases, at::kFloat, gathered);
    // Ranks that are processes run the cases of their own number only.
    if (!std::getenv("MESHARD_RULE_SEED") && num_runs_of_processes() == 0) gathered.expect_all_seen();
    const ExactMode exact;
    run_cases(draw_case, single, property.num_exact_cases, at::kFloat, gathered);
}

}  // namespace meshard
