// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/scaling_benchmark.h"

#include "apps/bench/rank_timing.h"
#include "apps/console/repeated_times.h"
#include "apps/learning/grids/grid_case.h"
#include "models/grids/fno.h"
#include "models/layers/metrics.h"
#include "models/registry/registry.h"
#include "partition/lists.h"
#include "sharding/parameters/fully_shard.h"
#include "sharding/parameters/fused_adamw.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <thread>

namespace meshard {
namespace {

using RankMesh = std::shared_ptr<const DeviceMesh>;
using Work = std::function<void()>;

/// Times plain and sharded work in pairs. `share` is the factor from the time of the plain work to that of a rank's
/// share.
ScalingResult compare(const std::string& workload, const std::string& kind, const RankMesh& mesh, int num_repeats,
                      double share, const Work& plain, const Work& sharded)
{
    ScalingResult result{workload, kind};
    std::vector<double> ceilings, times, ratios;
    for (int i = -1; i < num_repeats; ++i) {  // one pair to warm up
        const auto ceiling = share * seconds_together(*mesh, plain);
        const auto time = seconds_together(*mesh, [&] {
            mesh->counter().reset();
            sharded();
            result.num_messages = mesh->counter().num_calls();
            result.message_bytes = mesh->counter().total_bytes();
        });
        if (i < 0) continue;
        ceilings.push_back(ceiling);
        times.push_back(time);
        ratios.push_back(ceiling / time);
    }
    result.ceiling_seconds = median(ceilings);
    result.sharded_seconds = median(times);
    result.efficiency = median(ratios);
    return result;
}

AxisLayout even_layout(std::int64_t n, std::int64_t dim, const DeviceMesh& mesh)
{
    return {Shard(dim), std::make_shared<Extents>(even_extents(n, mesh.num_ranks())), 1};
}

/// Cuts rows in the ratio of seven on rank 0 to three on every other rank.
AxisLayout uneven_layout(std::int64_t n, std::int64_t dim, const DeviceMesh& mesh)
{
    Extents extents(mesh.num_ranks(), 3 * n / (3 * mesh.num_ranks() + 4));
    extents[0] += n - std::accumulate(extents.begin(), extents.end(), std::int64_t{0});
    return {Shard(dim), std::make_shared<Extents>(extents), 1};
}

at::Tensor cut(const at::Tensor& whole, const AxisLayout& layout, const RankMesh& mesh)
{
    return from_local(narrow_to_shard(whole, layout, mesh->coordinate(0)).clone(), make_spec(mesh, {layout}));
}

ScalingResult attention(const RankMesh& mesh, int num_repeats, bool uneven)
{
    constexpr std::int64_t kLength = 8192, kHeads = 8, kWidth = 32;
    torch::manual_seed(0);
    const auto whole = [&] { return torch::randn({1, kHeads, kLength, kWidth}); };
    const auto q = whole(), k = whole(), v = whole();
    const auto run = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
        std::vector<at::Tensor> leaves;
        for (const auto& tensor : {q, k, v}) leaves.push_back(tensor.detach().requires_grad_());
        torch::scaled_dot_product_attention(leaves[0], leaves[1], leaves[2]).sum().backward();
    };
    const auto layout = uneven ? uneven_layout(kLength, 2, *mesh) : even_layout(kLength, 2, *mesh);
    const auto own = narrow_to_shard(q, layout, mesh->coordinate(0)).clone();
    const auto sq = cut(q, layout, mesh), sk = cut(k, layout, mesh), sv = cut(v, layout, mesh);
    return compare(
        std::string("ring attention, 8192 tokens, 8 heads of 32") + (uneven ? ", 7:3" : ""), "strong", mesh,
        num_repeats, 1, [&] { run(own, k, v); }, [&] { run(sq, sk, sv); });
}

/// Times a spectral convolution of FNO on a cut grid against the same on the gathered grid, whose FFT every rank
/// computes.
/// @param shares_modes   whether each rank has the weights of its own modes only; the gathered run has all weights
ScalingResult spectral_convolution(const RankMesh& mesh, int num_repeats, const std::vector<std::int64_t>& extents,
                                   std::int64_t num_modes, bool shares_modes)
{
    constexpr std::int64_t kChannels = 32;
    torch::manual_seed(0);
    const std::vector<std::int64_t> modes(extents.size(), num_modes);
    SpectralConvolution whole(kChannels, modes), own(kChannels, modes);
    torch::nn::ModuleList model(own);  // gives the parameters the names by which they are cut
    std::optional<FullyShardedModule> sharded;
    if (shares_modes)
        sharded.emplace(
            fully_shard(*model, mesh,
                        {.is_unit = {}, .over_all_axes = true, .kept_parts = share_modes(*model, mesh->num_ranks())}));
    std::vector<std::int64_t> shape{1, kChannels};
    append(shape, extents);
    const auto grid = cut(torch::randn(shape), even_layout(extents[0], 2, *mesh), mesh);
    const auto gathered = [&] {
        const auto leaf = grid.detach().requires_grad_();
        redistribute(whole->forward(redistribute(leaf, {Replicate()})), spec_of(grid)).square().sum().backward();
    };
    const auto as_cut = [&] { own->forward(grid.detach().requires_grad_()).square().sum().backward(); };
    auto name = fmt::format("spectral convolution, 32 channels, {} modes, {}", num_modes, extents[0]);
    for (std::size_t i = 1; i < extents.size(); ++i) name += fmt::format(" x {}", extents[i]);
    return compare(name + (shares_modes ? ", shared modes" : ""), "gathered", mesh, num_repeats, 1, gathered, as_cut);
}

/// Multiplies extents by `factor` in all, by two along one direction after the other while it is even.
std::vector<std::int64_t> grown(std::vector<std::int64_t> extents, std::int64_t factor)
{
    for (std::size_t d = 0; factor > 1; d = (d + 1) % extents.size()) {
        const auto step = factor % 2 == 0 ? 2 : factor;
        extents[d] *= step;
        factor /= step;
    }
    return extents;
}

/// A model of grids that is timed, and how its grids are cut.
struct TimedGridModel {
    std::string name;
    nlohmann::json arguments;
    /// Rows that stay on one rank: those of a patch, or of a cell of the coarsest grid.
    std::int64_t rows_together = 1;
};

/// Times the passes of a model on a grid that is cut into blocks with the least halo against its part of the whole
/// grid's time.
ScalingResult grid_model(const TimedGridModel& of, const std::string& kind, const std::vector<std::int64_t>& extents,
                         const RankMesh& mesh, int num_repeats, World& world)
{
    constexpr std::int64_t kInputs = 3, kOutputs = 1;
    auto arguments = find_model(of.name).of_grids()->widths({kInputs, kOutputs, extents});
    arguments.update(of.arguments);
    torch::manual_seed(0);
    const auto plain = make_model(of.name, arguments), model = make_model(of.name, arguments);
    const auto cut = cut_of_least_halo(extents, of.rows_together, mesh->num_ranks());
    const auto blocks = mesh->folded(world, "domain", cut);
    const auto replicated = replicate(*model.module, blocks);
    const auto layout = grid_layout(extents, of.rows_together, blocks, "bench");
    auto shape = extents;
    shape.insert(shape.begin(), {1, kInputs});
    const auto whole = torch::randn(shape);
    const auto sharded = from_local(own_part(whole, *layout.of_grid).clone(), layout.of_grid);
    const auto run = [](const Model& net, const at::Tensor& grid) {
        net.module->zero_grad();
        net.forward_grid(grid).square().mean().backward();
    };
    const auto name = fmt::format("{}, {}, on {} blocks", of.name, fmt::join(extents, " x "), fmt::join(cut, " x "));
    const auto num_ranks = mesh->num_ranks();
    if (num_ranks * at::get_num_threads() > static_cast<std::int64_t>(std::thread::hardware_concurrency())) {
        // Every rank would run the whole on its part of a core, for a time that says nothing.
        const auto counted = compare(name, kind, blocks, 1, 1, [] {}, [&] { run(model, sharded); });
        return {.workload = name,
                .kind = kind,
                .num_messages = counted.num_messages,
                .message_bytes = counted.message_bytes};
    }
    return compare(
        name, kind, blocks, num_repeats, 1.0 / static_cast<double>(num_ranks), [&] { run(plain, whole); },
        [&] { run(model, sharded); });
}

/// A training step of a model on the rows of one rank, or of all.
Work step_of(Transolver model, const at::Tensor& fx, const at::Tensor& embedding, const at::Tensor& target,
             const at::Device& device)
{
    const std::shared_ptr<torch::optim::AdamW> optimizer =
        make_adamw(model->parameters(), torch::optim::AdamWOptions(1e-3));
    return [=]() mutable {
        optimizer->zero_grad();
        mean_squared_error(model->forward(fx, embedding), target).backward();
        optimizer->step();
        wait_for_device(device);
    };
}

MachineCeilings ceilings_of(const DeviceMesh& mesh)
{
    MachineCeilings ceilings;
    const auto best = [&](int repeats, const Work& work) {
        double seconds = 1e30;
        for (int i = 0; i < repeats; ++i) seconds = std::min(seconds, seconds_together(mesh, work));
        return seconds;
    };
    const auto a = torch::rand({1024, 1024}), b = torch::rand({1024, 1024});
    ceilings.sgemm_gflops = 2.0 * 1024 * 1024 * 1024 / best(5, [&] { torch::mm(a, b); }) * 1e-9;
    const auto from = torch::ones({32 << 20}), to = torch::ones({32 << 20});
    ceilings.copy_gigabytes = 2.0 * 4 * (32 << 20) / best(5, [&] { to.copy_(from); }) * 1e-9;
    if (mesh.num_ranks() > 1) {
        auto small = torch::ones({2}), large = torch::ones({1 << 20});
        constexpr int kMessages = 200;
        ceilings.message_microseconds = best(3,
                                             [&] {
                                                 for (int i = 0; i < kMessages; ++i) mesh.all().all_reduce(small);
                                             }) /
                                        kMessages * 1e6;
        ceilings.reduce_gigabytes = 4.0 * (1 << 20) / best(10, [&] { mesh.all().all_reduce(large); }) * 1e-9;
    }
    return ceilings;
}

}  // namespace

ScalingResult time_training_step(const StepShape& shape, const std::string& kind, int num_repeats, World& world)
{
    const auto mesh = DeviceMesh::create(world, {world.size()}, {"domain"});
    const auto device = world.device();
    torch::manual_seed(0);
    auto plain = make_transolver(shape, device), sharded = make_transolver(shape, device);
    const auto replicated = replicate(*sharded, mesh);
    const auto layout = even_layout(shape.num_points, 1, *mesh);
    const auto own = layout.extents->at(mesh->all().rank());
    const auto fx = torch::ones({1, own, 1}, device), embedding = torch::rand({1, own, 6}, device),
               target = torch::rand({1, own, 4}, device);
    const auto spec = make_spec(mesh, {layout});
    return compare(
        fmt::format("Transolver, {}k points", shape.num_points / 1000), kind, mesh, num_repeats, 1,
        step_of(plain, fx, embedding, target, device),
        step_of(sharded, from_local(fx, spec), from_local(embedding, spec), from_local(target, spec), device));
}

ScalingReport measure_scaling(const std::vector<std::string>& workloads, int num_repeats, World& world)
{
    const auto is_wanted = [&](const char* name) { return contains(workloads, name); };
    const auto mesh = DeviceMesh::create(world, {world.size()}, {"domain"});
    ScalingReport report;
    report.num_ranks = world.size();
    report.threads_per_rank = at::get_num_threads();
    report.backend = world.backend_name();
    report.ceilings = ceilings_of(*mesh);
    if (is_wanted("transolver")) {
        report.results.push_back(time_training_step({.num_points = 20'000}, "strong", num_repeats, world));
        report.results.push_back(time_training_step({.num_points = 80'000}, "strong", num_repeats, world));
        report.results.push_back(time_training_step({.num_points = 10'000 * world.size()}, "weak", num_repeats, world));
    }
    if (is_wanted("attention")) {
        report.results.push_back(attention(mesh, num_repeats, false));
        if (mesh->num_ranks() > 1) report.results.push_back(attention(mesh, num_repeats, true));
    }
    const TimedGridModel vit{.name = "vit",
                             .arguments = {{"patch_size", 8}, {"n_layers", 16}, {"n_hidden", 128}, {"n_head", 4}},
                             .rows_together = 8};
    const TimedGridModel unet{.name = "unet",
                              .arguments = {{"model_depth", 3},
                                            {"feature_map_channels", {16, 16, 32, 32, 64, 64}},
                                            {"gradient_checkpointing", false}},
                              .rows_together = 4};
    const auto n = static_cast<std::int64_t>(world.size());
    if (is_wanted("vit")) {
        report.results.push_back(grid_model(vit, "strong", {512, 512}, mesh, num_repeats, world));
        report.results.push_back(grid_model(vit, "weak", grown({256, 256}, n), mesh, num_repeats, world));
    }
    if (is_wanted("unet")) {
        report.results.push_back(grid_model(unet, "strong", {64, 64, 64}, mesh, num_repeats, world));
        report.results.push_back(grid_model(unet, "weak", grown({32, 32, 32}, n), mesh, num_repeats, world));
    }
    if (!is_wanted("spectral")) return report;
    for (const std::int64_t extent : {128, 256, 512, 1024})
        report.results.push_back(spectral_convolution(mesh, num_repeats, {extent, extent}, 16, false));
    for (const std::int64_t extent : {32, 64, 96}) {
        for (const bool shares_modes : {false, true})
            report.results.push_back(
                spectral_convolution(mesh, num_repeats, {extent, extent, extent}, 8, shares_modes));
    }
    return report;
}

}  // namespace meshard
