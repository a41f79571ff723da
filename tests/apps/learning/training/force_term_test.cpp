// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/force_term.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <numeric>

namespace meshard {
namespace {

constexpr std::int64_t kPoints = 23;

/// Two cases of a flow of speed 2 along x, reference area 0.5; normals point inwards, and the shear stress is that on the fluid.
struct ForceTermCase : testing::Test {
    ForceTermCase()
    {
        torch::manual_seed(3);
        settings.velocity = {"2"};
        settings.area = "0.5";
        fields = {{"wss", "w", "stress"}, {"p", "p", "kinematic"}};
        cases = {{"a", {}, {}}, {"b", {}, {}}};
        for (const double drag : {0.3, 0.34}) {
            CaseFigures one;
            one.is_surface = true;
            one.forces.area = 1;
            one.forces.outward = -1;
            one.num_rows = kPoints;
            one.forces.true_pressure = {drag, 0, 0.1};  // inward area vectors: the force is + p a
            one.forces.true_shear = {-1e-12, 0, 0};
            figures.push_back(one);
        }
        data.inputs = {"points", "areas", "normals"};
        told = torch::randn({1, kPoints, 7});
        truth = torch::randn({1, kPoints, 4});
        prediction = torch::randn({1, kPoints, 4});
    }

    ForceTerm term() const { return {{0.5, 0.25}, data, {fields, {3, 1}}, settings, cases, figures, torch::kCPU}; }

    ForceSettings settings;
    DataConfig data;
    std::vector<FieldConfig> fields;
    std::vector<CaseSource> cases;
    std::vector<CaseFigures> figures;
    at::Tensor told, truth, prediction;  // told: places, areas over their mean, normals
};

/// By the formula, in double: the value, and its gradient to the prediction.
std::pair<double, at::Tensor> by_hand(const at::Tensor& prediction, const at::Tensor& truth, const at::Tensor& told, double share)
{
    const auto d = (prediction - truth).to(torch::kDouble).squeeze(0), t = told.to(torch::kDouble).squeeze(0);
    const auto areas = t.narrow(1, 3, 1) / static_cast<double>(kPoints);  // of a total of 1
    const auto g = torch::cat({t.narrow(1, 4, 3) * areas, areas}, 1);
    const auto scale = share / (0.5 * 4 * 0.5);
    const std::array<double, 2> sigma{0.02, 0.001}, weight{0.5, 0.25};  // of lift: all alike, so the least
    double value = 0;
    auto gradient = torch::zeros_like(d);
    for (int k = 0; k < 2; ++k) {
        const auto axis = k == 0 ? 0 : 2;
        const auto error = scale * ((d.select(1, 3) * g.select(1, axis)).sum() - (d.select(1, axis) * g.select(1, 3)).sum()).item<double>();
        value += weight[k] * std::pow(error / sigma[k], 2);
        const auto slope = 2 * weight[k] * error / (sigma[k] * sigma[k]) * scale;
        gradient.select(1, 3) += slope * g.select(1, axis);
        gradient.select(1, axis) -= slope * g.select(1, 3);
    }
    return {value, gradient.unsqueeze(0)};
}

TEST_F(ForceTermCase, AndItsGradientAreThoseOfTheFormulaOnAnyNumberOfRanks)
{
    const auto [value, gradient] = by_hand(prediction, truth, told, 1);
    EXPECT_NEAR(term().deviations()[0], 0.02, 1e-9);
    for (const std::vector<std::int64_t>& extents : {std::vector<std::int64_t>{23}, {20, 3}, {9, 0, 14}, {1, 7, 7, 8}}) {
        run_ranks({static_cast<std::int64_t>(extents.size())}, {"domain"}, [&](std::shared_ptr<const DeviceMesh> domain) {
            const auto rank = domain->all().rank();
            const auto first = std::accumulate(extents.begin(), extents.begin() + rank, std::int64_t{0}), count = extents[rank];
            std::vector<std::int64_t> ids(count);
            std::iota(ids.begin(), ids.end(), first);
            const auto rows = [&](const at::Tensor& all) { return all.narrow(1, first, count).contiguous(); };
            CaseTensors example;
            example.id = "b";
            example.num_points = kPoints;
            example.inputs = sharded_inputs(rows(told).squeeze(0), ids, domain);
            const auto spec = spec_of(example.inputs.embedding);
            example.target = from_local(rows(truth), spec);
            example.measures = from_local(rows(told.narrow(-1, 3, 1)), spec);
            const auto own = rows(prediction).requires_grad_();

            const auto found = term()(from_local(own, spec) - example.target, example);
            found.backward();

            const auto whole = to_local(is_sharded(found) ? full_tensor(found) : found);
            EXPECT_NEAR(whole.item<double>() / value, 1, 1e-4);
            const auto expected = rows(gradient.to(torch::kFloat));
            EXPECT_TRUE(torch::allclose(own.grad(), expected, 1e-4, 1e-5 * gradient.abs().max().item<double>())) << extents.size() << own.grad() - expected;
        });
    }
}

TEST_F(ForceTermCase, OfSomePointsIsScaledToAll)
{
    CaseTensors example;
    example.id = "a";
    example.inputs.embedding = told.narrow(1, 0, 5);
    example.measures = told.narrow(1, 0, 5).narrow(2, 3, 1);
    const auto found = term()((prediction - truth).narrow(1, 0, 5), example);

    EXPECT_NEAR(found.item<double>() / by_hand(prediction.narrow(1, 0, 5), truth.narrow(1, 0, 5), told.narrow(1, 0, 5), kPoints / 5.0).first, 1, 1e-4);
}

TEST_F(ForceTermCase, OfPointsDrawnByAreaCountsThemAlike)
{
    data.sampling = SamplingKind::Areas;
    CaseTensors example;
    example.id = "a";
    example.inputs.embedding = told.narrow(1, 0, 5);
    example.measures = told.narrow(1, 0, 5).narrow(2, 3, 1);
    auto alike = told.narrow(1, 0, 5).clone();
    alike.narrow(2, 3, 1).fill_(1);
    const auto found = term()((prediction - truth).narrow(1, 0, 5), example);
    EXPECT_NEAR(found.item<double>() / by_hand(prediction.narrow(1, 0, 5), truth.narrow(1, 0, 5), alike, kPoints / 5.0).first, 1, 1e-4);

    example.inputs.embedding = told;  // all points, each with its own area
    example.measures = told.narrow(2, 3, 1);
    EXPECT_NEAR(term()(prediction - truth, example).item<double>() / by_hand(prediction, truth, told, 1).first, 1, 1e-4);
}

TEST_F(ForceTermCase, IsRefusedWithoutWhatMakesForcesCoefficients)
{
    fields[1].kind = "";
    EXPECT_TRUE(throws_with<InvalidInput>("no field has the kind of a pressure", [&] { term(); }));
    fields[1].kind = "kinematic";
    settings.area.clear();
    EXPECT_TRUE(throws_with<InvalidInput>("data.forces.area", [&] { term(); }));
    settings.area = "0.5";
    figures[1].is_surface = false;
    EXPECT_TRUE(throws_with<InvalidInput>("case b has no surface", [&] { term(); }));
}

}  // namespace
}  // namespace meshard
