// SPDX-License-Identifier: Apache-2.0
// The Fourier neural operator on ranks against one rank; memory modes; what a layer sends.
#include "models/grids/fno.h"
#include "models/layers/metrics.h"
#include "partition/error.h"
#include "sharding/parameters/fully_shard.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/copy_parameters.h"
#include "tests/support/expect_error.h"
#include "tests/support/grid_slabs.h"
#include "tests/support/run_fixture.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include <functional>

namespace meshard {
namespace {

struct FnoCase {
    std::string name;
    FnoOptions options;
    std::vector<std::int64_t> extents;
};

void PrintTo(const FnoCase& value, std::ostream* out)
{
    *out << value.name;
}

FnoOptions small_fno(std::int64_t dimension)
{
    FnoOptions options;
    options.in_channels = 2;
    options.out_channels = 3;
    options.dimension = dimension;
    options.decoder_layer_size = 5;
    options.latent_channels = 4;
    options.num_fno_layers = 2;
    options.num_fno_modes = dimension == 2 ? std::vector<std::int64_t>{4, 3} : std::vector<std::int64_t>{3, 2, 2};
    options.padding = dimension == 2 ? std::vector<std::int64_t>{2, 3} : std::vector<std::int64_t>{1, 2, 3};
    return options;
}

std::vector<FnoCase> fno_cases()
{
    std::vector<FnoCase> cases{{"Plane", small_fno(2), {16, 16}}, {"Volume", small_fno(3), {16, 7, 16}}};
    const auto add = [&](const char* name, std::int64_t dimension, std::vector<std::int64_t> extents,
                         const std::function<void(FnoOptions&)>& change) {
        cases.push_back({name, small_fno(dimension), std::move(extents)});
        change(cases.back().options);
    };
    add("Overlapping", 2, {16, 16}, [](auto& o) { o.padding = {0, 0}, o.num_fno_modes = {11, 9}; });
    add("Reflected", 2, {16, 16}, [](auto& o) { o.padding_type = "reflect", o.coord_features = false; });
    add("Circular", 2, {16, 16},
        [](auto& o) { o.padding_type = "circular", o.activation_fn = "tanh", o.decoder_layers = 2; });
    add("Odd", 3, {16, 5, 16}, [](auto& o) { o.padding = {1, 0, 1}, o.num_fno_modes = {9, 4, 9}; });
    return cases;
}

Fno rough_fno(const FnoOptions& options)
{
    torch::manual_seed(3);
    Fno model(options);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.add_(0.1 * torch::randn_like(parameter));
    model->to(torch::kDouble);
    return model;
}

/// A model on one rank, and what it gives: output, loss and gradients.
struct SerialFno {
    SerialFno(const FnoCase& fno, bool cuts_last) : model(rough_fno(fno.options))
    {
        std::vector<std::int64_t> shape{2, 2};
        shape.insert(shape.end(), fno.extents.begin(), fno.extents.end());
        dim = cuts_last ? static_cast<std::int64_t>(shape.size()) - 1 : 2;
        grid = torch::randn(shape, torch::kDouble);
        shape[1] = 3;
        target = torch::randn(shape, torch::kDouble);
        whole = grid.clone().requires_grad_();
        output = model->forward(whole);
        loss = mean_squared_error(output, target);
        loss.backward();
        for (const auto& parameter : model->parameters()) {
            if (parameter.grad().defined())
                largest_gradient = std::max(largest_gradient, test::largest(parameter.grad()));
        }
    }

    /// A rank's part of the model's work in this cut: expects output, loss and the gradient of the grid to be the same,
    /// and leaves those of the parameters.
    void expect_same_of(Fno& cut, const std::shared_ptr<const DeviceMesh>& device_mesh) const
    {
        const auto strips = test::slabs_of_ranks(static_cast<int>(device_mesh->num_ranks()));
        const auto own = [&](const at::Tensor& all) {
            return all.split_with_sizes(strips, dim)[device_mesh->all().rank()].clone();
        };
        const auto local = own(grid).requires_grad_();
        const auto found = cut->forward(from_local(local, device_mesh, {Shard(dim)}));
        const auto found_loss = mean_squared_error(found, from_local(own(target), device_mesh, {Shard(dim)}));
        found_loss.backward();
        test::expect_near("output", full_tensor(found).detach(), output.detach(), 1e-12 * test::largest(output));
        EXPECT_NEAR(found_loss.item<double>(), loss.item<double>(), 1e-12);
        test::expect_near("input", local.grad(), own(whole.grad()), 1e-12 * test::largest(whole.grad()));
    }

    Fno model;
    std::int64_t dim = 0;  // that is cut
    at::Tensor grid, target, whole, output, loss;
    double largest_gradient = 0;
};

/// On a rank: the same model with the values of `serial` on the first rank, from which the others get theirs.
Fno cut_fno(const FnoCase& fno, const SerialFno& serial, MemoryMode memory, std::int64_t rank)
{
    Fno model(fno.options);
    model->to(torch::kDouble);
    if (rank == 0) test::copy_parameters(*serial.model, *model);
    model->set_memory(memory);
    return model;
}

class ShardedFno : public testing::TestWithParam<std::tuple<FnoCase, int, bool>> {};

TEST_P(ShardedFno, EqualsSerial)
{
    const auto& [fno, num_ranks, cuts_last] = GetParam();
    const SerialFno serial(fno, cuts_last);
    ASSERT_EQ(serial.output.sizes(), serial.target.sizes());

    for (const auto memory : {MemoryMode::Stored, MemoryMode::Recomputed}) {
        run_ranks(num_ranks, [&, &fno = fno](std::shared_ptr<const DeviceMesh> device_mesh) {
            auto model = cut_fno(fno, serial, memory, device_mesh->all().rank());
            const auto replicated = replicate(*model, device_mesh);
            serial.expect_same_of(model, device_mesh);
            const auto parameters = model->named_parameters();
            for (const auto& item : serial.model->named_parameters()) {
                const auto& gradient = item.value().grad();
                ASSERT_EQ(gradient.defined(), parameters[item.key()].grad().defined()) << item.key();
                if (gradient.defined())
                    test::expect_near(item.key(), parameters[item.key()].grad(), gradient,
                                      1e-11 * serial.largest_gradient);
            }
        });
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedFno,
                         testing::Combine(testing::ValuesIn(fno_cases()), testing::Values(1, 2, 3, 5), testing::Bool()),
                         [](const auto& info) {
                             return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param)) +
                                    (std::get<2>(info.param) ? "_last" : "_first");
                         });

/// The outputs, the loss and all gradients with each rank's share of the modes, of which some have none.
class SharedModes : public testing::TestWithParam<std::tuple<FnoCase, int, bool>> {};

TEST_P(SharedModes, EqualSerial)
{
    const auto& [fno, num_ranks, cuts_last] = GetParam();
    const SerialFno serial(fno, cuts_last);
    const auto extents = even_extents(fno.options.num_fno_modes.back(), num_ranks);

    for (const auto memory : {MemoryMode::Stored, MemoryMode::Recomputed}) {
        run_ranks(num_ranks, [&, &fno = fno](std::shared_ptr<const DeviceMesh> device_mesh) {
            const auto rank = device_mesh->all().rank();
            auto model = cut_fno(fno, serial, memory, rank);
            const auto kept = share_modes(*model, device_mesh->num_ranks());
            ASSERT_EQ(kept.size(),
                      device_mesh->num_ranks() == 1 ? 0 : fno.options.num_fno_layers << (fno.options.dimension - 1));
            const auto sharded =
                fully_shard(*model, device_mesh, {.is_unit = {}, .over_all_axes = true, .kept_parts = kept});
            serial.expect_same_of(model, device_mesh);
            const auto gradients = serial.model->named_parameters();
            const auto names = sharded.local_parameter_names();
            for (std::size_t i = 0; i < names.size(); ++i) {
                const auto& part = sharded.local_parameters()[i];
                const auto& gradient = gradients[names[i]].grad();
                if (kept.contains(names[i])) {
                    EXPECT_EQ(part.size(part.dim() - 2), extents[rank]) << names[i];
                    EXPECT_EQ(sharded.whole_shape(model->named_parameters()[names[i]]), gradient.sizes());
                }
                ASSERT_TRUE(part.grad().defined()) << names[i];
                const auto sum = full_tensor(sharded.as_shard(i, part.grad()));
                test::expect_near(names[i], sum.view(gradient.sizes()), gradient, 1e-11 * serial.largest_gradient);
            }
            for (const auto& [name, value] : sharded.full_parameters())
                test::expect_near(name, value, gradients[name].detach(), 0);
        });
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SharedModes,
                         testing::Combine(testing::ValuesIn(fno_cases()), testing::Values(1, 2, 3, 5), testing::Bool()),
                         [](const auto& info) {
                             return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param)) +
                                    (std::get<2>(info.param) ? "_last" : "_first");
                         });

TEST(SharedModes, NeedAGridThatIsCutAmongTheSameRanks)
{
    run_ranks(2, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
        Fno model(small_fno(2));
        const auto sharded = fully_shard(
            *model, device_mesh,
            {.is_unit = {}, .over_all_axes = true, .kept_parts = share_modes(*model, device_mesh->num_ranks())});
        EXPECT_TRUE(throws_with<InvalidInput>("the modes are cut among 2 ranks, and the grid among 1",
                                              [&] { model->forward(torch::zeros({1, 2, 16, 16})); }));
    });
}

TEST(FnoMessages, OfSharedModesAreEachModeOnceThereAndOnceBack)
{
    constexpr std::int64_t kBatch = 2, kChannels = 4, kLayers = 2, kRanks = 3;
    run_ranks(kRanks, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
        auto options = small_fno(2);
        options.num_fno_modes = {4, 4};  // of 3 ranks, two modes of the last direction on the first
        Fno model(options);
        const auto sharded = fully_shard(
            *model, device_mesh, {.is_unit = {}, .over_all_axes = true, .kept_parts = share_modes(*model, kRanks)});
        const auto strip = device_mesh->all().rank() == 0 ? 8 : 4;
        const auto grid = from_local(torch::randn({kBatch, 2, strip, 16}), device_mesh, {Shard(2)});
        const auto target = from_local(torch::randn({kBatch, 3, strip, 16}), device_mesh, {Shard(2)});
        auto& counter = device_mesh->counter();
        const std::int64_t own = device_mesh->all().rank() == 0 ? 2 : 1,
                           one = 8 * kBatch * kChannels * 2 * 4;  // bytes of a mode of the last direction
        const auto expect_modes = [&](int num_times) {
            int num_sums = 0, num_gathers = 0;
            for (const auto& call : counter.calls()) {
                if (call.operation == "all_to_all" && call.bytes == (kRanks - 1) * own * one) ++num_sums;
                if (call.operation == "all_gather" && call.bytes == (4 - own) * one) ++num_gathers;
            }
            EXPECT_EQ(num_sums, num_times);
            EXPECT_EQ(num_gathers, num_times);
        };

        counter.reset();
        const auto loss = mean_squared_error(model->forward(grid), target);
        expect_modes(kLayers);
        EXPECT_EQ(counter.num_calls(), 2 * kLayers + 2)
            << "and one gathering of the other parameters of each of two units";

        counter.reset();
        loss.backward();
        expect_modes(kLayers);
        std::int64_t num_others = 0, bytes = 0;
        for (const auto& item : model->named_parameters())
            num_others += item.key().find("spconv") == std::string::npos ? item.value().numel() : 0;
        for (const auto& call : counter.calls()) bytes += call.bytes;
        EXPECT_LT(bytes, kLayers * ((kRanks - 1) * own + 4 - own) * one + 3 * 4 * num_others)
            << "no gradients of spectral weights";
    });
}

TEST(FnoMessages, AreTheKeptModesOnceALayerEachWayWhateverTheGrid)
{
    constexpr std::int64_t kBatch = 2, kChannels = 4, kLayers = 2, kModes = 2 * 4 * 3;
    for (const auto& [extent, columns] : {std::pair<std::int64_t, std::int64_t>{16, 1}, {64, 1}, {16, 2}}) {
        SCOPED_TRACE(extent);
        run_ranks({3, columns}, {"domain", "columns"},
                  [&, extent = extent](std::shared_ptr<const DeviceMesh> device_mesh) {
                      Fno model(small_fno(2));
                      const auto replicated = replicate(*model, device_mesh);
                      const auto strip = device_mesh->coordinate(0) == 0 ? extent - 8 : 4,
                                 width = extent / device_mesh->size(1);
                      const auto grid =
                          from_local(torch::randn({kBatch, 2, strip, width}), device_mesh, {Shard(2), Shard(3)});
                      const auto target =
                          from_local(torch::randn({kBatch, 3, strip, width}), device_mesh, {Shard(2), Shard(3)});
                      auto& counter = device_mesh->counter();

                      counter.reset();
                      const auto loss = mean_squared_error(model->forward(grid), target);
                      ASSERT_EQ(counter.num_calls(), kLayers);
                      for (const auto& call : counter.calls()) {
                          EXPECT_EQ(call.operation, "all_reduce");
                          EXPECT_EQ(call.bytes, 8 * kBatch * kChannels * kModes) << "complex numbers of 8 bytes";
                      }

                      counter.reset();
                      loss.backward();
                      ASSERT_EQ(counter.num_calls(), kLayers + 1);
                      for (std::int64_t i = 0; i < kLayers; ++i)
                          EXPECT_EQ(counter.calls()[i].bytes, 8 * kBatch * kChannels * kModes);
                      std::int64_t num_trained = 0;
                      for (const auto& parameter : model->parameters())
                          num_trained += parameter.requires_grad() ? parameter.numel() : 0;
                      EXPECT_EQ(counter.calls().back().bytes, 4 * (num_trained + 1))
                          << "every gradient once, in one bucket; complete ones count on one rank";
                  });
    }
}

TEST(FnoOptions, NameWhatIsImpossible)
{
    const auto refuses = [](const char* what, const std::function<void(FnoOptions&)>& change) {
        auto options = small_fno(2);
        change(options);
        return throws_with<InvalidInput>(what, [&] { options.validate(); });
    };
    EXPECT_TRUE(refuses("num_fno_modes must be one number or one a direction, 2, and has 3",
                        [](auto& o) { o.num_fno_modes = {1, 2, 3}; }));
    EXPECT_TRUE(refuses("dimension must lie in [2, 3]", [](auto& o) { o.dimension = 4; }));
    EXPECT_TRUE(refuses("padding_type must be constant", [](auto& o) { o.padding_type = "zeros"; }));
    EXPECT_TRUE(refuses("activation_fn must be celu", [](auto& o) { o.activation_fn = "prelu"; }));

    Fno model(small_fno(2));
    EXPECT_TRUE(throws_with<InvalidInput>("the grid must be (batch, 2, 2 extents), and has the shape [1, 2, 8, 8, 8]",
                                          [&] { model->forward(torch::zeros({1, 2, 8, 8, 8})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("at least as large as num_fno_modes [4, 3]",
                                          [&] { model->forward(torch::zeros({1, 2, 1, 8})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("Use `recomputed`", [&] { model->set_memory(MemoryMode::Streamed); }));
}

TEST(FnoOptions, MayBeOneNumberForAllDirectionsOrAListThatIsTooShort)
{
    EXPECT_EQ(fno_options({{"dimension", 3}, {"num_fno_modes", 4}}).num_fno_modes,
              (std::vector<std::int64_t>{4, 4, 4}));
    EXPECT_EQ(fno_options({{"dimension", 3}}).padding, (std::vector<std::int64_t>{8, 8, 8}));
    EXPECT_EQ(fno_options({{"padding", 2}}).padding, (std::vector<std::int64_t>{2, 2}));
    EXPECT_EQ(fno_options({{"padding", {2}}}).padding, (std::vector<std::int64_t>{2, 0}));
}

}  // namespace
}  // namespace meshard
