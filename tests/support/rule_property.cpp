// SPDX-License-Identifier: Apache-2.0
#include "tests/support/rule_property.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdlib>
#include <map>
#include <numeric>

#include "sharding/exact_mode.h"
#include "sharding/redistribute.h"
#include "sharding/rule_table.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

namespace meshard {
namespace {

struct Cut {
    std::vector<AxisLayout> axes;   // one an axis of the device mesh
    bool pending = false;           // on the last axis, as parts that add up
};

/// Where the cases' tensors lie.
at::Device device_of_tests()
{
    const char* name = std::getenv("MESHARD_TEST_DEVICE");
    return at::Device(name ? name : "cpu");
}

struct Prepared {
    std::uint64_t seed = 0;
    RuleCase item;
    std::vector<Cut> cuts;
    std::vector<Cut> factor_cuts;   // the gradients of the outputs arrive in any layout, too
    std::vector<at::Tensor> outputs, factors, gradients;   // of the plain operator
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

/// Inputs of one length are cut in the same way in most cases, as those of a model are.
std::vector<Cut> draw_cuts(const std::vector<at::Tensor>& tensors, const std::vector<std::int64_t>& whole, c10::IntArrayRef mesh_shape, bool partial, Draw& draw)
{
    std::vector<Cut> cuts(tensors.size());
    const bool alike = draw.chance(0.6);
    std::vector<std::map<std::int64_t, std::shared_ptr<const Extents>>> known(mesh_shape.size());
    const auto common_dim = draw.integer(-4, 3);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        cuts[i].axes.resize(mesh_shape.size());
        if (!tensors[i].defined() || std::find(whole.begin(), whole.end(), static_cast<std::int64_t>(i)) != whole.end()) continue;
        const auto& input = tensors[i];
        std::vector<std::int64_t> taken;
        for (std::size_t a = 0; a < mesh_shape.size(); ++a) {
            if (input.dim() == 0 || draw.chance(0.2)) continue;
            auto dim = draw.integer(0, input.dim() - 1);
            if (alike && a == 0 && common_dim >= -input.dim() && common_dim < input.dim()) dim = common_dim < 0 ? common_dim + input.dim() : common_dim;
            if (std::find(taken.begin(), taken.end(), dim) != taken.end()) continue;
            taken.push_back(dim);
            auto& extents = known[a][input.size(dim)];
            if (!extents || !alike) extents = std::make_shared<Extents>(random_extents(input.size(dim), mesh_shape[a], draw));
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

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& factors, const std::vector<at::Tensor>& inputs)
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

at::Tensor leaf(const at::Tensor& tensor) { return tensor.is_floating_point() ? tensor.detach().clone().requires_grad_() : tensor.clone(); }

Prepared prepare(std::uint64_t seed, const std::function<RuleCase(Draw&)>& draw_case, c10::IntArrayRef mesh_shape, const RuleProperty& property, Draw& draw,
                 at::ScalarType type)
{
    Prepared prepared;
    prepared.seed = seed;
    prepared.item = draw_case(draw);
    for (auto& input : prepared.item.inputs) {
        if (!input.defined()) continue;
        input = input.to(device_of_tests(), input.scalar_type() == at::kDouble ? type : input.scalar_type());
    }
    prepared.cuts = draw_cuts(prepared.item.inputs, prepared.item.whole_inputs, mesh_shape, property.partial_inputs, draw);
    std::vector<at::Tensor> inputs;
    for (const auto& input : prepared.item.inputs) inputs.push_back(leaf(input));
    prepared.outputs = prepared.item.function(inputs);
    for (auto& output : prepared.outputs) prepared.factors.push_back(output.is_floating_point() ? draw.values(output.sizes(), output.scalar_type()).to(output.device()) : at::Tensor());
    prepared.factor_cuts = draw_cuts(prepared.factors, {}, mesh_shape, property.partial_inputs, draw);
    prepared.gradients = gradients_of(prepared.outputs, prepared.factors, inputs);
    for (auto& output : prepared.outputs) output = output.detach();
    return prepared;
}

/// A whole tensor laid out as `cut` says, this rank's part of it.
at::Tensor laid_out(const at::Tensor& whole, const Cut& cut, const std::shared_ptr<const DeviceMesh>& mesh)
{
    auto local = own_part(whole, *make_spec(mesh, cut.axes));
    if (cut.pending) {
        const auto last = mesh->num_axes() - 1;
        const auto ranks = static_cast<double>(mesh->size(last));
        // Parts that differ by rank and add up: 1/n each, and an offset that cancels.
        local = local / ranks + (mesh->coordinate(last) == 0 ? 0.5 * (ranks - 1) : -0.5);
    }
    return from_local(local.clone(), make_spec(mesh, cut.axes));
}

at::Tensor whole_of(const at::Tensor& tensor) { return tensor.defined() ? full_tensor(tensor).detach() : tensor; }

bool stays_plain(const RuleCase& item, std::size_t i)
{
    return std::find(item.whole_inputs.begin(), item.whole_inputs.end(), static_cast<std::int64_t>(i)) != item.whole_inputs.end();
}

/// Inputs that lie as the case says, this rank's parts.
Tensors laid_out_inputs(const Prepared& prepared, const std::shared_ptr<const DeviceMesh>& mesh)
{
    Tensors inputs;
    for (std::size_t i = 0; i < prepared.item.inputs.size(); ++i) {
        const auto& input = prepared.item.inputs[i];
        inputs.push_back(leaf(stays_plain(prepared.item, i) ? input : laid_out(input, prepared.cuts[i], mesh)));
    }
    return inputs;
}

Tensors laid_out_factors(const Prepared& prepared, const std::shared_ptr<const DeviceMesh>& mesh)
{
    Tensors factors;
    for (std::size_t i = 0; i < prepared.factors.size(); ++i) {
        factors.push_back(prepared.factors[i].defined() ? laid_out(prepared.factors[i], prepared.factor_cuts[i], mesh) : at::Tensor());
    }
    return factors;
}

void run(const Prepared& prepared, const std::shared_ptr<const DeviceMesh>& mesh, double tolerance)
{
    const auto& item = prepared.item;
    std::string where = item.text + "; MESHARD_RULE_SEED=" + std::to_string(prepared.seed) + "; " + std::to_string(mesh->num_ranks()) + " ranks";
    if (exact_mode()) where += " in exact mode";
    for (std::size_t i = 0; i < prepared.cuts.size(); ++i) where += "; input " + std::to_string(i) + ": " + to_string(*make_spec(mesh, prepared.cuts[i].axes));
    try {
        const auto inputs = laid_out_inputs(prepared, mesh);
        const auto outputs = item.function(inputs);
        ASSERT_EQ(outputs.size(), prepared.outputs.size()) << where;
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            EXPECT_TRUE(tensors_near(whole_of(outputs[i]), prepared.outputs[i], tolerance)) << where << "; output " << i;
        }
        const auto factors = laid_out_factors(prepared, mesh);
        for (std::size_t i = 0; i < factors.size(); ++i) {
            if (factors[i].defined()) where += "; factor " + std::to_string(i) + ": " + to_string(*spec_of(factors[i]));
        }
        const auto gradients = gradients_of(outputs, factors, inputs);
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            EXPECT_TRUE(tensors_near(whole_of(gradients[i]), prepared.gradients[i], tolerance)) << where << "; gradient " << i;
        }
    } catch (const std::exception& error) {
        throw std::runtime_error(where + ": " + error.what());
    }
}

/// Puts what one rank computes from the same inputs, cut along the same dimensions, in the place of the plain operator's results.
void expect_one_ranks_results(Prepared& prepared, c10::IntArrayRef mesh_shape, const std::vector<std::string>& names)
{
    const auto on_one_rank = [](std::vector<Cut> cuts) {
        for (auto& cut : cuts) {
            for (auto& axis : cut.axes) {
                if (axis.is_shard()) axis.extents = std::make_shared<const Extents>(Extents{std::accumulate(axis.extents->begin(), axis.extents->end(), std::int64_t{0})});
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
        for (std::size_t i = 0; i < outputs.size(); ++i) prepared.outputs[i] = whole_of(outputs[i]);
        for (std::size_t i = 0; i < gradients.size(); ++i) prepared.gradients[i] = whole_of(gradients[i]);
    });
}

/// `type`: of floating inputs that are drawn in double.
void run_cases(const std::function<RuleCase(Draw&)>& draw_case, const RuleProperty& property, int num_cases, at::ScalarType type)
{
    static const std::vector<std::vector<std::int64_t>> kGrids{{2, 2}, {2, 3}, {1, 3}, {2, 4}};
    const char* only = std::getenv("MESHARD_RULE_SEED");
    std::map<std::vector<std::int64_t>, std::vector<Prepared>> by_shape;
    const auto names = [](const auto& shape) { return shape.size() == 2 ? std::vector<std::string>{"first", "second"} : std::vector<std::string>{"domain"}; };
    for (int k = 0; k < num_cases; ++k) {
        const auto seed = property.first_seed + static_cast<std::uint64_t>(k);
        if (only && std::to_string(seed) != only) continue;
        Draw draw(seed * 0x9E3779B97F4A7C15ull + 1);
        const auto shape = draw.chance(0.25) ? draw.pick(kGrids) : std::vector<std::int64_t>{draw.pick(property.rank_counts)};
        auto prepared = prepare(seed, draw_case, shape, property, draw, type);
        if (exact_mode()) expect_one_ranks_results(prepared, shape, names(shape));
        by_shape[shape].push_back(std::move(prepared));
    }
    for (const auto& [shape, cases] : by_shape) {
        run_ranks(shape, names(shape), [&, &cases = cases](const auto& mesh) {
            set_gather_policy(GatherPolicy::Silent);
            for (const auto& item : cases) {
                run(item, mesh, exact_mode() ? 0 : property.tolerance);
                if (mesh->num_ranks() > 1 && !mesh->all().all_agree(!::testing::Test::HasFatalFailure())) return;
            }
        });
    }
}

}  // namespace

std::int64_t Draw::integer(std::int64_t low, std::int64_t high) { return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1)); }

double Draw::real(double low, double high) { return low + (high - low) * static_cast<double>(engine_() >> 11) * 0x1p-53; }

bool Draw::chance(double probability) { return real(0, 1) < probability; }

at::Tensor Draw::values(c10::IntArrayRef shape, at::ScalarType type)
{
    auto tensor = at::empty(shape, at::kDouble);
    auto* data = tensor.data_ptr<double>();
    for (std::int64_t i = 0; i < tensor.numel(); ++i) data[i] = std::sqrt(-2 * std::log(real(1e-12, 1))) * std::cos(real(0, 6.283185307179586));
    return tensor.to(type);
}

void check_rule(const std::function<RuleCase(Draw&)>& draw_case, const RuleProperty& property)
{
    if (device_of_tests().is_cuda() && !at::hasCUDA()) GTEST_SKIP() << "no GPU is seen by this process";
    run_cases(draw_case, property, property.num_cases, at::kDouble);
    // Pending inputs are left out: what their parts are depends on the number of ranks.
    auto exact = property;
    exact.partial_inputs = false;
    set_exact_mode(true);
    try {
        run_cases(draw_case, exact, property.num_exact_cases, at::kFloat);
    } catch (...) {
        set_exact_mode(false);
        throw;
    }
    set_exact_mode(false);
}

}  // namespace meshard
