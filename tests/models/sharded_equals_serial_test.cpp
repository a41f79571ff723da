// SPDX-License-Identifier: Apache-2.0
#include "models/layers/metrics.h"
#include "models/layers/normalizer.h"
#include "models/transolver/transolver.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/mesh/mesh_graph.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/copy_parameters.h"
#include "tests/support/fixture_cases.h"
#include "tests/support/run_fixture.h"
#include "tests/support/run_ranks.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/small_models.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <random>
#include <tuple>

namespace meshard {
namespace {

using test::NamedTensors;

constexpr std::int64_t kNumPoints = 125;

enum class Cut { Contiguous, Runs, Metis, Random, NineToOne, OneEmpty };

/// Rows of each rank, as index tensors.
std::vector<at::Tensor> cut_rows(Cut cut, std::int64_t num_points, int num_ranks)
{
    std::vector<std::vector<std::int64_t>> rows(num_ranks);
    std::mt19937 generator(11);
    const auto owners = cut == Cut::Metis ? partition_with_metis(cell_graph(cube(5)), {.num_parts = num_ranks}).owners
                                          : std::vector<std::int32_t>();
    for (std::int64_t i = 0; i < num_points; ++i) {
        std::int64_t owner = 0;
        switch (cut) {
        case Cut::Contiguous:
            owner = i * num_ranks / num_points;
            break;
        case Cut::Runs:
            owner = i * i * num_ranks / (num_points * num_points);
            break;  // uneven ones
        case Cut::Metis:
            owner = owners[i];
            break;
        case Cut::Random:
            owner = generator() % num_ranks;
            break;
        case Cut::NineToOne:
            owner = 10 * i < 9 * num_points ? 0 : 1 + i % std::max(1, num_ranks - 1);
            break;
        case Cut::OneEmpty:
            owner = num_ranks == 1 ? 0 : 1 + i % (num_ranks - 1);
            break;
        }
        rows[std::min<std::int64_t>(owner, num_ranks - 1)].push_back(i);
    }
    std::vector<at::Tensor> tensors;
    for (const auto& own : rows) tensors.push_back(torch::tensor(own, torch::kLong));
    return tensors;
}

Transolver model_with_rough_weights(at::ScalarType type)
{
    torch::manual_seed(4);
    Transolver model(test::small_transolver());
    torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.add_(0.1 * torch::randn_like(parameter));
    model->to(type);
    return model;
}

class ShardedTransolver : public testing::TestWithParam<std::tuple<int, Cut, std::int64_t, at::ScalarType>> {};

TEST_P(ShardedTransolver, EqualsSerial)
{
    const auto [num_ranks, cut, batch, type] = GetParam();
    auto serial = model_with_rough_weights(type);
    const auto fx = torch::randn({batch, kNumPoints, 2}).to(type);
    const auto embedding = torch::randn({batch, kNumPoints, 3}).to(type);
    const auto target = torch::randn({batch, kNumPoints, 4}).to(type);
    const auto expected = serial->forward(fx, embedding);
    const auto expected_loss = mean_squared_error(expected, target);
    expected_loss.backward();
    const auto rows = cut_rows(cut, kNumPoints, num_ranks);
    const double tolerance = type == at::kDouble ? 1e-12 : 2e-6;
    // Some gradients are sums that cancel: in single precision their rounding follows the largest gradient, not their
    // own size.
    double largest_gradient = 0;
    for (const auto& parameter : serial->parameters())
        largest_gradient = std::max(largest_gradient, test::largest(parameter.grad()));

    run_ranks(num_ranks, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
        const auto& own = rows[device_mesh->all().rank()];
        const auto shard = [&](const at::Tensor& whole) {
            return from_local(whole.index_select(1, own), device_mesh, {Shard(1)});
        };
        Transolver model(test::small_transolver());
        model->to(type);
        if (device_mesh->all().rank() == 0)
            test::copy_parameters(*serial, *model);  // the others get theirs from `replicate`
        const auto replicated = replicate(*model, device_mesh);

        const auto output = model->forward(shard(fx), shard(embedding));
        const auto loss = mean_squared_error(output, shard(target));
        loss.backward();

        test::expect_near("output", to_local(output).detach(), expected.detach().index_select(1, own),
                          tolerance * test::largest(expected));
        EXPECT_NEAR(loss.item<double>(), expected_loss.item<double>(), tolerance * expected_loss.item<double>());
        const auto gradients = model->named_parameters();
        for (const auto& item : serial->named_parameters()) {
            const auto& gradient = item.value().grad();
            const auto scale = type == at::kDouble ? test::largest(gradient) : largest_gradient;
            test::expect_near(item.key(), gradients[item.key()].grad(), gradient, tolerance * scale);
        }
    });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, ShardedTransolver,
    testing::Combine(testing::Values(1, 2, 3, 5),
                     testing::Values(Cut::Contiguous, Cut::Metis, Cut::Random, Cut::NineToOne, Cut::OneEmpty),
                     testing::Values<std::int64_t>(1, 3), testing::Values(at::kDouble, at::kFloat)));

class ShardedFixtures : public testing::TestWithParam<test::FixtureCase> {};

/// Single precision rounds otherwise on every cut. Where a case has values in double precision, these are what cuts
/// must not change; its single precision may then differ by twice the suggested tolerance: one rank's gradients of
/// FIGConvUNet reach 1.3 times when weights change in their last bit.
constexpr double kSlackOfRounding = 2;

/// Runs the case of `description` with values of `type` on `num_ranks` ranks, and compares with what one rank has.
void expect_fixture_on_ranks(const test::FixtureCase& fixture, const nlohmann::json& description,
                             const NamedTensors& tensors, int num_ranks, at::ScalarType type)
{
    // On a grid the order of the rows has a meaning: ranks take one run of it each.
    const auto constructor = description.value("constructor", nlohmann::json::object());
    const bool is_image = test::is_grid_model(fixture);
    const std::int64_t dim = is_image ? 2 : 1;
    const bool is_grid = is_image ||
                         (constructor.contains("structured_shape") && !constructor["structured_shape"].is_null()) ||
                         constructor.contains("spatial_shape");
    const bool is_double = type == at::kDouble;
    const auto rows_of = [&](const at::Tensor& whole) {
        return cut_rows(is_grid ? Cut::Runs : Cut::NineToOne, whole.size(dim), num_ranks);
    };
    const auto order_rows = [&](const at::Tensor& whole) {
        return whole.index_select(dim, torch::cat(rows_of(whole)));
    };

    run_ranks(num_ranks, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
        const auto own_ids = [&](const at::Tensor& whole) { return rows_of(whole)[device_mesh->all().rank()]; };
        const auto own_rows = [&](const at::Tensor& whole) { return whole.index_select(dim, own_ids(whole)); };
        // With the numbers that the rows have in the whole: they decide which neighbours come first.
        const auto shard = [&](const at::Tensor& local, const at::Tensor& whole) {
            if (is_image) return from_local(local, device_mesh, {Shard(dim)});
            const auto ids = own_ids(whole);
            IndexMap map{.num_global = whole.size(dim),
                         .num_owned = static_cast<std::int32_t>(ids.size(0)),
                         .global_ids = {},
                         .ghost_owners = {}};
            map.global_ids.assign(ids.data_ptr<std::int64_t>(), ids.data_ptr<std::int64_t>() + ids.size(0));
            return from_local(local, shard_spec(std::make_shared<const IndexMap>(std::move(map)), device_mesh, 1));
        };
        const auto model = test::load_fixture_model(description, tensors, type, order_rows);
        const auto replicated = replicate(*model.module, device_mesh);
        NamedTensors locals;
        NamedTensors inputs;
        for (const auto& [name, tensor] : tensors) {
            if (name.rfind("input.", 0) != 0) continue;
            const auto argument = name.substr(6);
            if (!test::has_rows(argument)) {
                inputs[argument] = tensor.to(type);
                continue;
            }
            locals[argument] = own_rows(tensor).to(type).requires_grad_();
            inputs[argument] = shard(locals[argument], tensor);
        }

        const auto outputs = model.forward(inputs);
        at::Tensor loss = torch::zeros({}, type);
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            const auto& whole = tensors.at(test::output_name("grad_output", i, outputs.size()));
            loss = loss + (outputs[i] * shard(own_rows(whole).to(type), whole)).sum();
        }
        loss.backward();

        // The same as serial, but for the order of the rows, and for this rank's rows of the inputs' gradients.
        auto expected = tensors;
        test::FixtureResult result;
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            for (const char* precision : {"output", "output64"}) {
                const auto name = test::output_name(precision, i, outputs.size());
                if (tensors.count(name)) expected[name] = order_rows(tensors.at(name));
            }
            result.outputs.push_back(full_tensor(outputs[i]).detach());
        }
        for (const auto& item : model.module->named_parameters()) {
            ++result.num_parameters;
            if (item.value().grad().defined()) result.gradients["grad." + item.key()] = item.value().grad();
        }
        for (const auto& [argument, tensor] : inputs) {
            const auto name = (is_double ? "grad_input64." : "grad_input.") + argument;
            if (locals.count(argument) && tensors.count(name)) {
                // A gradient of few rows may be smaller than the whole's largest value, which sets the tolerance.
                const auto largest = test::largest(tensors.at(name));
                test::expect_near(name, locals[argument].grad(), own_rows(tensors.at(name)),
                                  is_double ? 1e-11 * std::max(1.0, largest) : 5e-5 * largest);
            }
            expected.erase("grad_input." + argument);
            expected.erase("grad_input64." + argument);
        }
        if (is_double)
            test::expect_double_values(result, expected);
        else
            test::expect_reference_values(result, description, expected,
                                          test::has_double_values(tensors) ? kSlackOfRounding : 1);
    });
}

TEST_P(ShardedFixtures, AgreeOnUnevenRanks)
{
    if (const auto reason = test::reason_to_skip(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
    const auto description = GetParam().description();
    const auto tensors = test::read_tensors(GetParam().arrays_path());
    for (const int num_ranks : {2, 3, 5}) {
        expect_fixture_on_ranks(GetParam(), description, tensors, num_ranks, at::kFloat);
        if (test::has_double_values(tensors))
            expect_fixture_on_ranks(GetParam(), description, tensors, num_ranks, at::kDouble);
    }
}

/// All but MeshGraphNet's, whose graphs are of one rank (graphs that are cut are compared with whole ones in
/// sharded_models_test.cpp), and those of images, which have tests of their own (diffusion/dit_test.cpp).
std::vector<test::FixtureCase> cases_to_cut()
{
    auto cases = test::model_cases();
    std::erase_if(cases, [](const auto& fixture) {
        return fixture.kind == "MeshGraphNet" || fixture.kind == "DiT" || fixture.kind == "EDMPreconditioner";
    });
    return cases;
}

INSTANTIATE_TEST_SUITE_P(All, ShardedFixtures, testing::ValuesIn(cases_to_cut()), test::NameOfFixture());

TEST(ShardedNormalizer, EqualsSerial)
{
    torch::manual_seed(8);
    const auto values = torch::randn({kNumPoints, 3}) * 30 + 500;
    ChannelStatistics serial;
    serial.add(values);
    const auto expected = serial.normalizer();
    const auto rows = cut_rows(Cut::NineToOne, kNumPoints, 3);

    run_ranks(3, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
        const auto local = values.index_select(0, rows[device_mesh->all().rank()]);
        ChannelStatistics statistics;
        statistics.add(from_local(local, device_mesh, {Shard(0)}));

        const auto normalizer = statistics.normalizer();

        EXPECT_FALSE(is_sharded(normalizer.mean));
        test::expect_near("mean", normalizer.mean, expected.mean, 1e-6 * test::largest(expected.mean));
        test::expect_near("std", normalizer.std, expected.std, 1e-6 * test::largest(expected.std));
    });
}

TEST(ShardedRelativeL2, EqualsSerial)
{
    torch::manual_seed(9);
    const auto prediction = torch::randn({kNumPoints, 3});
    const auto target = torch::randn({kNumPoints, 3});
    const auto rows = cut_rows(Cut::OneEmpty, kNumPoints, 3);

    run_ranks(3, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
        const auto& own = rows[device_mesh->all().rank()];
        const auto shard = [&](const at::Tensor& whole) {
            return from_local(whole.index_select(0, own), device_mesh, {Shard(0)});
        };

        EXPECT_NEAR(relative_l2(shard(prediction), shard(target)), relative_l2(prediction, target), 1e-12);
    });
}

}  // namespace
}  // namespace meshard
