// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/checkpoints/sharded_state.h"
#include "apps/learning/checkpoints/tensor_file.h"
#include "io/checkpoints/safetensors.h"
#include "partition/error.h"
#include "sharding/exchange/row_routes.h"
#include "sharding/parameters/fully_shard.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/owner_maps.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temporary_folder.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <limits>
#include <random>

namespace meshard {
namespace {

const std::vector<at::ScalarType> kTypes{at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kByte, at::kBool};

at::Tensor values(c10::IntArrayRef shape, at::ScalarType type)
{
    return at::arange(c10::multiply_integers(shape), at::kDouble).mul(7.3).sin().mul(50).abs().to(type).view(shape);
}

struct Drawn {
    std::string name;
    at::Tensor whole;
    std::vector<AxisLayout> axes;  // none: plain
};

AxisLayout draw_layout(std::mt19937_64& random, c10::IntArrayRef shape, std::int64_t ranks, std::int64_t not_dim)
{
    const auto dim = static_cast<std::int64_t>(random() % shape.size());
    if (random() % 4 == 0 || dim == not_dim) return {};
    const std::int64_t blocks = shape[dim] % 2 == 0 ? 1 + random() % 2 : 1;
    auto extents = std::make_shared<Extents>(ranks, 0);
    for (std::int64_t i = 0; i < shape[dim] / blocks; ++i) ++(*extents)[random() % ranks];
    return {Shard(dim), extents, blocks};
}

std::vector<AxisLayout> draw_axes(std::mt19937_64& random, c10::IntArrayRef shape, const std::vector<std::int64_t>& mesh)
{
    std::vector<AxisLayout> axes;
    if (shape.empty() || random() % 6 == 0) return axes;
    axes.push_back(draw_layout(random, shape, mesh[0], -1));
    axes.push_back(draw_layout(random, shape, mesh[1], axes[0].is_shard() ? axes[0].placement.dim : -1));
    return axes;
}

at::Tensor lay(const at::Tensor& whole, const std::vector<AxisLayout>& axes, const std::shared_ptr<const DeviceMesh>& mesh)
{
    if (axes.empty()) return whole.clone();
    return redistribute(from_local(whole.clone(), replicated_spec(mesh)), make_spec(mesh, axes));
}

/// Equal in every bit; NaN and negative zero included.
bool same_bits(const at::Tensor& a, const at::Tensor& b)
{
    return a.sizes() == b.sizes() && at::equal(a.contiguous().view(-1).view(at::kByte), b.contiguous().view(-1).view(at::kByte));
}

TEST(ShardedState, ComesBackOnAnyRanksInAnyLayout)
{
    const std::vector<std::vector<std::int64_t>> meshes{{1, 1}, {1, 2}, {1, 3}, {2, 2}, {1, 5}, {2, 3}, {1, 8}, {7, 1}};
    std::mt19937_64 random(1);
    for (int trial = 0; trial < 60; ++trial) {
        const auto &saving = meshes[random() % meshes.size()], &loading = meshes[random() % meshes.size()];
        std::vector<Drawn> saved, loaded;
        for (int k = 0; k < 4; ++k) {
            std::vector<std::int64_t> shape(random() % 4);
            for (auto& size : shape) size = random() % 6;
            const auto whole = values(shape, kTypes[random() % kTypes.size()]);
            const auto name = "tensor " + std::to_string(k);
            saved.push_back({name, whole, draw_axes(random, shape, saving)});
            loaded.push_back({name, whole, draw_axes(random, shape, loading)});
        }
        SCOPED_TRACE("trial " + std::to_string(trial));
        const TemporaryFolder folder;
        run_ranks(saving, {"data", "domain"}, [&](const auto& mesh) {
            std::vector<NamedState> state;
            for (const auto& one : saved) state.push_back({one.name, lay(one.whole, one.axes, mesh)});
            save_sharded(folder / "state", state, *mesh, {{"step", std::to_string(trial)}});
        });
        run_ranks(loading, {"data", "domain"}, [&](const auto& mesh) {
            std::vector<NamedState> state;
            for (const auto& one : loaded) state.push_back({one.name, lay(at::zeros_like(one.whole), one.axes, mesh)});
            const auto metadata = load_sharded(folder / "state", state, *mesh);
            EXPECT_EQ(metadata.at("step"), std::to_string(trial));
            for (std::size_t k = 0; k < state.size(); ++k) EXPECT_TRUE(same_bits(full_tensor(state[k].tensor), loaded[k].whole)) << loaded[k].name;
        });
    }
}

TEST(ShardedState, FollowsGlobalIdsAcrossPartitions)
{
    const std::vector<int> three{2, 0, 0, 2, 1, 1, 2, 0, 2}, four{3, 3, 0, 1, 1, 3, 0, 1, 0};
    const auto whole = values({9, 2}, at::kFloat);
    const TemporaryFolder folder;
    run_ranks(3, [&](const auto& mesh) {
        const auto map = owned(three, mesh->coordinate(0));
        const auto x = from_local(whole.index_select(0, at::tensor(map->global_ids, at::kLong)), shard_spec(map, mesh));
        save_sharded(folder / "state", {{"x", x}, {"y", x + 1, map}}, *mesh);  // what operators return knows no ids any more
    });
    run_ranks(4, [&](const auto& mesh) {
        const auto map = owned(four, mesh->coordinate(0));
        const auto x = from_local(at::zeros({map->num_owned, 2}), shard_spec(map, mesh)), y = x.clone();
        load_sharded(folder / "state", {{"x", x}, {"y", y, map}}, *mesh);
        EXPECT_TRUE(same_bits(full_tensor_in_global_order(x), whole));
        EXPECT_TRUE(at::equal(local_of(y), local_of(x) + 1));
    });
    run_ranks(2, [&](const auto& mesh) {
        const auto x = from_local(at::zeros({mesh->coordinate(0) == 0 ? 2 : 7, 2}), mesh, {Shard(0)});
        load_sharded(folder / "state", {{"x", x}}, *mesh);
        EXPECT_TRUE(same_bits(full_tensor(x), whole));
    });
}

torch::nn::Sequential network()
{
    torch::nn::Sequential net(torch::nn::Linear(3, 7), torch::nn::Linear(7, 2));
    const at::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.copy_(values(parameter.sizes(), at::kFloat).mul(0.02));
    return net;
}

/// Trains `steps` steps on the same data on every rank; a state is loaded before and saved after where a folder is given.
std::vector<std::pair<std::string, at::Tensor>> train(const std::shared_ptr<const DeviceMesh>& mesh, int steps, const std::filesystem::path& load,
                                                      const std::filesystem::path& save)
{
    auto net = network();
    const auto sharded = fully_shard(*net, mesh);
    torch::optim::Adam optimizer(sharded.local_parameters(), torch::optim::AdamOptions(0.1));
    const auto states = [&] {
        std::vector<NamedState> all;
        for (const auto& [name, shard] : sharded.named_shards()) all.push_back({name, shard});
        for (std::size_t i = 0; i < sharded.local_parameters().size(); ++i) {
            const auto& parameter = sharded.local_parameters()[i];
            auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
            if (!slot) {
                auto fresh = std::make_unique<torch::optim::AdamParamState>();
                fresh->exp_avg(at::zeros_like(parameter));
                fresh->exp_avg_sq(at::zeros_like(parameter));
                slot = std::move(fresh);
            }
            const auto& state = static_cast<torch::optim::AdamParamState&>(*slot);
            all.push_back({"exp_avg." + std::to_string(i), sharded.as_shard(i, state.exp_avg())});
            all.push_back({"exp_avg_sq." + std::to_string(i), sharded.as_shard(i, state.exp_avg_sq())});
        }
        return all;
    };
    if (!load.empty()) {
        const auto metadata = load_sharded(load, states(), *mesh);
        for (const auto& parameter : sharded.local_parameters()) {
            static_cast<torch::optim::AdamParamState&>(*optimizer.state()[parameter.unsafeGetTensorImpl()]).step(std::stoll(metadata.at("step")));
        }
    }
    for (int step = 0; step < steps; ++step) {
        optimizer.zero_grad();
        net->forward(values({4, 3}, at::kFloat)).pow(2).mean().backward();
        optimizer.step();
    }
    if (!save.empty()) save_sharded(save, states(), *mesh, {{"step", std::to_string(steps)}});
    return sharded.full_parameters();
}

TEST(ShardedState, ContinuesATrainingOnOtherRanks)
{
    const TemporaryFolder folder;
    std::vector<std::pair<std::string, at::Tensor>> expected;
    run_ranks({1}, {"data"}, [&](const auto& mesh) { expected = train(mesh, 4, {}, {}); });
    run_ranks({2}, {"data"}, [&](const auto& mesh) { train(mesh, 2, {}, folder / "state"); });
    for (const int ranks : {1, 2, 4}) {  // powers of two: the mean of equal gradients is exact
        run_ranks({ranks}, {"data"}, [&](const auto& mesh) {
            const auto found = train(mesh, 2, folder / "state", {});
            for (std::size_t k = 0; k < found.size(); ++k) EXPECT_TRUE(same_bits(found[k].second, expected[k].second)) << found[k].first;
        });
    }
}

TEST(ShardedState, ReplacesAnEarlierOneAsAWhole)
{
    const TemporaryFolder folder;
    run_ranks(3, [&](const auto& mesh) {
        auto x = from_local(at::full({2, 2}, 1.0), mesh, {Shard(0)});
        save_sharded(folder / "state", {{"x", x}}, *mesh);
        save_sharded(folder / "state", {{"x", x * 2}}, *mesh);
        load_sharded(folder / "state", {{"x", x}}, *mesh);
        EXPECT_TRUE(at::equal(full_tensor(x), at::full({6, 2}, 2.0)));
    });
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "state"), std::filesystem::directory_iterator()), 4);  // index and three parts

    // A save that ends before its index leaves the old state.
    write_bytes(folder / "state" / "part-77-0.safetensors", "half");
    run_ranks(2, [&](const auto& mesh) {
        auto x = from_local(at::zeros({3, 2}), mesh, {Shard(0)});
        load_sharded(folder / "state", {{"x", x}}, *mesh);
        EXPECT_TRUE(at::equal(full_tensor(x), at::full({6, 2}, 2.0)));
    });
}

TEST(ShardedState, WritesWhatSeveralRanksHoldOnce)
{
    const TemporaryFolder folder;
    run_ranks({2, 2}, {"data", "domain"}, [&](const auto& mesh) {
        const auto domain = mesh->sub_mesh("domain");
        const auto rows = from_local(at::ones({1000, 8}), domain, {Shard(0)});
        save_sharded(folder / "state", {{"rows", rows}, {"plain", at::ones({1000, 16})}, {"same", from_local(at::ones({1000, 16}), replicated_spec(mesh))}},
                     *mesh);
    });
    std::uintmax_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "state")) bytes += entry.file_size();
    EXPECT_LT(bytes, 3 * 64000 + 4000u);
}

TEST(ShardedState, RefusesOnEveryRank)
{
    const TemporaryFolder folder;
    const auto path = folder / "state";
    run_ranks(2, [&](const auto& mesh) {
        const auto rank = mesh->coordinate(0);
        const auto x = from_local(at::ones({2 + rank, 2}), mesh, {Shard(0)});
        EXPECT_THROW(load_sharded(path, {{"x", x}}, *mesh), IoError);
        EXPECT_TRUE(throws_with<InvalidInput>("occurs twice", [&] { save_sharded(path, {{"x", x}, {"x", x}}, *mesh); }));
        EXPECT_THROW(save_sharded(path, {{rank == 0 ? "x" : "y", x}}, *mesh), InvalidInput);
        EXPECT_THROW(save_sharded(path, {{"x", at::zeros({2}, at::kComplexFloat)}}, *mesh), InvalidInput);
        EXPECT_THROW(save_sharded(path, {{"x", x, owned({0, 0, 0, 1, 1}, rank)}}, *mesh), InvalidInput);
        EXPECT_THROW(save_sharded("/proc/no/such/folder", {{"x", x}}, *mesh), IoError);
        save_sharded(path, {{"x", x}}, *mesh);
        EXPECT_TRUE(throws_with<IoError>("has no 'z'", [&] { load_sharded(path, {{"z", x}}, *mesh); }));
        EXPECT_TRUE(throws_with<IoError>("expected F64", [&] { load_sharded(path, {{"x", x.to(at::kDouble)}}, *mesh); }));
        EXPECT_TRUE(throws_with<IoError>("expected F32 [6]", [&] { load_sharded(path, {{"x", at::zeros({6})}}, *mesh); }));
        mesh->all().barrier();
        if (rank == 0) {
            for (const auto& entry : std::filesystem::directory_iterator(path)) {
                if (entry.path().filename().string().ends_with("-1.safetensors")) std::filesystem::resize_file(entry.path(), entry.file_size() - 1);
            }
        }
        mesh->all().barrier();
        EXPECT_TRUE(throws_with<IoError>("another size", [&] { load_sharded(path, {{"x", x}}, *mesh); }));
        mesh->all().barrier();
        if (rank == 0) write_bytes(path / "index.json", R"({"format": "meshard sharded state 1"})");
        mesh->all().barrier();
        EXPECT_TRUE(throws_with<IoError>("damaged", [&] { load_sharded(path, {{"x", x}}, *mesh); }));
    });
}

TEST(ShardedState, DoesNotFollowAnIndexOutOfItsFolder)
{
    const TemporaryFolder folder;
    const auto path = folder / "state";
    run_ranks(2, [&](const auto& mesh) {
        const auto rank = mesh->coordinate(0);
        const auto x = from_local(at::zeros({2, 2}), mesh, {Shard(0)});
        save_sharded(path, {{"x", from_local(at::ones({2, 2}), mesh, {Shard(0)})}}, *mesh);
        mesh->all().barrier();
        auto index = nlohmann::json::parse(read_bytes(path / "index.json"));
        index.erase("hash");
        const auto part = index["files"][0]["name"].template get<std::string>();
        const auto whole = std::filesystem::absolute(path / part).string();
        mesh->all().barrier();
        if (rank == 0) {
            std::filesystem::create_directories(path / "part-below");
            std::filesystem::copy_file(path / part, folder / part);
            std::filesystem::copy_file(path / part, path / "part-below" / part);
            std::filesystem::copy_file(path / part, path / "other.safetensors");
        }
        // Each names a file that is there and whole.
        for (const auto& name :
             {"../" + part, whole, "./" + part, "part-below/" + part, "part-below/../" + part, "part-below/../../" + part, std::string("other.safetensors")}) {
            if (rank == 0) {
                auto hostile = index;
                hostile["files"][0]["name"] = name;
                write_bytes(path / "index.json", hostile.dump());
            }
            mesh->all().barrier();
            EXPECT_TRUE(throws_with<IoError>("names '" + name + "'", [&] { load_sharded(path, {{"x", x}}, *mesh); })) << name;
            mesh->all().barrier();
        }
        for (const auto& name : {std::string(), std::string("."), std::string(".."), std::string("part-"), std::string("part-no-such")}) {
            if (rank == 0) {
                auto hostile = index;
                hostile["files"][0]["name"] = name;
                write_bytes(path / "index.json", hostile.dump());
            }
            mesh->all().barrier();
            EXPECT_THROW(load_sharded(path, {{"x", x}}, *mesh), IoError) << name;
            mesh->all().barrier();
        }
        for (const auto& bytes : {nlohmann::json(-1), nlohmann::json("many"), nlohmann::json(1e30), nlohmann::json()}) {
            if (rank == 0) {
                auto hostile = index;
                hostile["files"][0]["bytes"] = bytes;
                write_bytes(path / "index.json", hostile.dump());
            }
            mesh->all().barrier();
            EXPECT_THROW(load_sharded(path, {{"x", x}}, *mesh), IoError) << bytes;
            mesh->all().barrier();
        }
        if (rank == 0) write_bytes(path / "index.json", index.dump());
        mesh->all().barrier();
        load_sharded(path, {{"x", x}}, *mesh);
        EXPECT_TRUE(at::equal(local_of(x), at::ones({2, 2})));
    });
}

TEST(ShardedState, RefusesRowsThatAreNotThere)
{
    constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
    const TemporaryFolder folder;
    const auto path = folder / "state";
    run_ranks(1, [&](const auto& mesh) {
        const auto x = at::ones({4, 2});
        const auto x_of = [&] { return at::zeros({4, 2}); };
        save_sharded(path, {{"x", x}}, *mesh);
        auto index = nlohmann::json::parse(read_bytes(path / "index.json"));
        index.erase("hash");
        const auto part = path / index["files"][0]["name"].template get<std::string>();
        const auto refuses = [&](const std::vector<std::int64_t>& rows, const at::Tensor& values, const std::string& text) {
            NamedArrays hostile;
            hostile.arrays.push_back(to_named_array("x", values));
            hostile.arrays.push_back(to_named_array("x#rows0", at::tensor(rows, at::kLong).view({-1, 2})));
            write_safetensors(part, hostile);
            index["files"][0]["bytes"] = std::filesystem::file_size(part);
            write_bytes(path / "index.json", index.dump());
            return throws_with<IoError>(text, [&] { load_sharded(path, {{"x", x_of()}}, *mesh); });
        };

        EXPECT_TRUE(refuses({-1, 4}, x, "does not say which rows"));
        EXPECT_TRUE(refuses({1, 4}, x, "does not say which rows"));
        EXPECT_TRUE(refuses({kLargest, 4}, x, "does not say which rows"));
        EXPECT_TRUE(refuses({0, 5, 2, -1}, x, "does not say which rows"));
        EXPECT_TRUE(refuses({0, kLargest, 0, kLargest, 0, 6}, x, "does not say which rows"));
        EXPECT_TRUE(refuses({0, 3}, x, "does not say which rows"));
        EXPECT_TRUE(refuses({0, 4}, x.view({4, 2, 1}), "number of dimensions"));
        EXPECT_TRUE(refuses({0, 4}, at::ones({4, 3}), "does not say which rows"));
        EXPECT_TRUE(refuses({0, 4}, x.to(at::kDouble), "of another type"));
    });
}

}  // namespace
}  // namespace meshard
