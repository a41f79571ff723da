// SPDX-License-Identifier: Apache-2.0
#include "models/layers/coordinate_encoding.h"
#include "models/registry/encoded_model.h"
#include "partition/error.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/rule_table.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

namespace meshard {
namespace {

const CoordinateEncodingOptions kFourier{.kind = "fourier", .num_frequencies = 50, .scales = {0.25, 4}};
const CoordinateEncodingOptions kLearnable{.kind = "learnable", .num_frequencies = 3, .scales = {0.5, 8, 2}};

TEST(CoordinateEncoding, OfFourierIsSinesAndCosinesOfItsDirections)
{
    CoordinateEncoding encoding(kFourier, 7);
    const auto directions = encoding->named_buffers()["directions"].to(torch::kDouble);
    ASSERT_EQ(directions.sizes(), (at::IntArrayRef{3, 100}));
    EXPECT_EQ(encoding->parameters().size(), 0U);
    const auto places = torch::rand({1, 9, 3}) - 0.5;

    const auto found = encoding->forward(places);

    ASSERT_EQ(found.sizes(), (at::IntArrayRef{1, 9, kFourier.num_channels()}));
    for (int point = 0; point < 9; ++point) {
        for (int wave = 0; wave < 100; ++wave) {
            double turns = 0;
            for (int c = 0; c < 3; ++c)
                turns += places[0][point][c].item<double>() * directions[c][wave].item<double>();
            EXPECT_NEAR(found[0][point][wave].item<double>(), std::sin(2 * M_PI * turns), 1e-5);
            EXPECT_NEAR(found[0][point][100 + wave].item<double>(), std::cos(2 * M_PI * turns), 1e-5);
        }
    }
}

TEST(CoordinateEncoding, DrawsDirectionsByTheSeedAlone)
{
    torch::manual_seed(3);
    const auto expected = torch::rand({4});
    torch::manual_seed(3);
    CoordinateEncodingOptions many{.kind = "fourier", .num_frequencies = 4000, .scales = {0.25, 4}};
    const auto directions = CoordinateEncoding(many, 1)->buffers()[0];
    EXPECT_TRUE(torch::equal(torch::rand({4}), expected)) << "the default generator was used";

    EXPECT_TRUE(torch::equal(CoordinateEncoding(many, 1)->buffers()[0], directions));
    EXPECT_FALSE(torch::equal(CoordinateEncoding(many, 2)->buffers()[0], directions));
    // Normal numbers: mean 0, the scale as deviation, kurtosis 3. Bounds of five standard deviations of the estimates
    // from 12,000 numbers.
    for (const int scale : {0, 1}) {
        const auto numbers = directions.narrow(1, 4000 * scale, 4000).to(torch::kDouble) / many.scales[scale];
        EXPECT_NEAR(numbers.mean().item<double>(), 0, 5 / std::sqrt(12000));
        EXPECT_NEAR(numbers.square().mean().item<double>(), 1, 5 * std::sqrt(2.0 / 12000));
        EXPECT_NEAR(numbers.pow(4).mean().item<double>(), 3, 5 * std::sqrt(96.0 / 12000));
    }
}

TEST(CoordinateEncoding, OfLearnableBeginsWithFrequenciesInEqualRatios)
{
    CoordinateEncoding encoding(kLearnable, 7);
    const auto places = torch::tensor({0.1, -0.2, 0.3}).view({1, 1, 3});

    const auto found = encoding->forward(places.to(torch::kFloat)).flatten();

    ASSERT_EQ(found.size(0), kLearnable.num_channels());
    const double frequencies[] = {0.5, 2, 8}, place[] = {0.1, -0.2, 0.3};
    for (int axis = 0; axis < 3; ++axis) {
        for (int k = 0; k < 3; ++k) {
            EXPECT_NEAR(found[3 * axis + k].item<double>(), std::sin(2 * M_PI * frequencies[k] * place[axis]), 1e-5);
            EXPECT_NEAR(found[9 + 3 * axis + k].item<double>(), std::cos(2 * M_PI * frequencies[k] * place[axis]),
                        1e-5);
        }
    }
}

TEST(CoordinateEncoding, ShardedIsSerialWithoutGathering)
{
    const auto places = torch::rand({1, 40, 3});
    const auto factors = torch::randn({1, 40, kLearnable.num_channels()});
    for (const auto& options : {kFourier, kLearnable}) {
        CoordinateEncoding serial(options, 5);
        if (options.kind == "learnable") {
            torch::NoGradGuard no_grad;
            serial->named_parameters()["phases"].copy_(torch::linspace(-1, 1, 9));
        }
        const auto expected = serial->forward(places);
        if (options.kind == "learnable") (expected * factors).sum().backward();
        for (const int ranks : {1, 2, 3}) {
            run_ranks(ranks, [&](std::shared_ptr<const DeviceMesh> mesh) {
                CoordinateEncoding encoding(options, mesh->all().rank() == 0 ? 5 : 6);
                if (mesh->all().rank() == 0) {
                    torch::NoGradGuard no_grad;
                    for (const auto& item : serial->named_parameters())
                        encoding->named_parameters()[item.key()].copy_(item.value());
                }
                const auto replicated = replicate(*encoding, mesh);
                const auto rank = mesh->all().rank();
                const auto first = ranks == 1 ? 0 : rank * 13, last = rank == ranks - 1         ? 40
                                                                      : ranks == 3 && rank == 1 ? 13
                                                                                                : 13 * (rank + 1);
                const auto begin = ranks == 3 && rank == 2 ? 13 : first;  // the second of three has none
                const auto shard = [&](const at::Tensor& whole) {
                    return from_local(whole.narrow(1, begin, last - begin).contiguous(), mesh, {Shard(1)});
                };

                set_gather_policy(GatherPolicy::Refuse);
                const auto found = encoding->forward(shard(places));
                EXPECT_TRUE(is_sharded(found));
                EXPECT_TRUE(tensors_near(full_tensor(found), expected.detach(), 1e-6));
                if (options.kind != "learnable") return;
                (found * shard(factors)).sum().backward();
                for (const auto& item : encoding->named_parameters()) {
                    EXPECT_TRUE(tensors_near(item.value().grad(), serial->named_parameters()[item.key()].grad(), 2e-5))
                        << item.key();
                }
            });
        }
    }
}

TEST(CoordinateEncoding, RefusesWhatIsNone)
{
    const auto refuses = [](const CoordinateEncodingOptions& options, const char* text) {
        return throws_with<InvalidInput>(text, [&] { CoordinateEncoding(options, 1); });
    };
    EXPECT_TRUE(refuses({.kind = "wavelets", .num_frequencies = 1, .scales = {1}}, "'wavelets' is neither"));
    EXPECT_TRUE(refuses({.kind = "fourier", .num_frequencies = 0, .scales = {1}}, "at least one frequency"));
    EXPECT_TRUE(refuses({.kind = "learnable", .num_frequencies = 1, .scales = {0}}, "scales above 0"));
}

TEST(EncodedModel, OfEveryKindIsToldTheWavesAfterItsOtherInputs)
{
    for (const auto* name : {"transolver", "flare", "geotransolver", "meshgraphnet"}) {
        const auto& entry = find_model(name);
        const auto arguments = [&](std::int64_t embedding_dim) {
            auto chosen = entry.arguments_for(
                {.embedding_dim = embedding_dim, .num_constants = 0, .out_dim = 2, .has_time = false});
            for (const char* key : {"n_layers", "processor_size"}) {
                if (entry.defaults.contains(key)) chosen[key] = 1;
            }
            return complete_arguments(entry, chosen);
        };
        torch::manual_seed(1);
        auto model = make_model(name, arguments(6 + kLearnable.num_channels()));
        const auto own = model.module->named_parameters().keys();
        encode_coordinates(model, kLearnable, 1);
        torch::manual_seed(1);
        const auto plain = make_model(name, arguments(6 + kLearnable.num_channels()));

        auto names = model.module->named_parameters().keys();
        EXPECT_EQ(names.size(), own.size() + 2);
        EXPECT_TRUE(model.module->named_parameters().contains("encoding.log_frequencies"));
        EXPECT_TRUE(model.module->named_parameters().contains("encoding.phases"));

        const auto embedding = torch::rand({1, 12, 6});
        const PointInputs inputs{
            .embedding = embedding, .positions = embedding.narrow(-1, 0, 3).contiguous(), .constants = {}, .time = {}};
        auto told = inputs;
        told.embedding = torch::cat({embedding, CoordinateEncoding(kLearnable, 1)->forward(inputs.positions)}, -1);
        model.module->eval();
        plain.module->eval();
        EXPECT_TRUE(torch::equal(model.forward(inputs), plain.forward(told))) << name;
        EXPECT_TRUE(
            throws_with<InvalidInput>("has a part 'encoding'", [&] { encode_coordinates(model, kLearnable, 1); }));
    }
}

}  // namespace
}  // namespace meshard
