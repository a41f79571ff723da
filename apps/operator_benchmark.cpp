// SPDX-License-Identifier: Apache-2.0
#include "apps/operator_benchmark.h"

#include <ctime>
#include <functional>

#include <torch/torch.h>

#include "apps/rank_timing.h"
#include "sharding/shard_tensor.h"

namespace meshard {
namespace {

constexpr int kCallsPerRound = 2000;

/// Of this thread: what else runs on the machine does not count.
double cpu_nanoseconds()
{
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

double nanoseconds_per_call(const std::function<void()>& call)
{
    const auto start = cpu_nanoseconds();
    for (int i = 0; i < kCallsPerRound; ++i) call();
    return (cpu_nanoseconds() - start) / kCallsPerRound;
}

}  // namespace

std::vector<OperatorCost> time_operators(int num_rounds)
{
    const torch::NoGradGuard no_grad;
    const auto x = torch::rand({1, 8, 16}), y = torch::rand({1, 8, 16}), rows = torch::rand({8, 16}), weight = torch::rand({16, 16}), bias = torch::rand({16});
    const auto mesh = DeviceMesh::single();
    const auto cut = [&](const torch::Tensor& tensor, std::int64_t dim) { return from_local(tensor, mesh, {Shard(dim)}); };
    const auto sx = cut(x, 1), srows = cut(rows, 0);
    const auto sy = from_local(y, spec_of(sx));

    using Call = std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&)>;
    const std::vector<std::pair<const char*, Call>> calls{
        {"add", [](auto& a, auto& b, auto&) { return a + b; }},
        {"mul by a number", [](auto& a, auto&, auto&) { return a * 2; }},
        {"gelu", [](auto& a, auto&, auto&) { return torch::gelu(a); }},
        {"add in place", [](auto& a, auto& b, auto&) { return torch::Tensor(a).add_(b); }},
        {"addmm", [&](auto&, auto&, auto& r) { return torch::addmm(bias, r, weight); }},
        {"linear", [&](auto& a, auto&, auto&) { return torch::linear(a, weight, bias); }},
        {"layer norm", [&](auto& a, auto&, auto&) { return torch::layer_norm(a, {16}, bias, bias); }},
        {"view", [](auto& a, auto&, auto&) { return a.view({1, 8, 4, 4}); }},
        {"transpose", [](auto& a, auto&, auto&) { return a.transpose(1, 2); }},
        {"sum of rows", [](auto& a, auto&, auto&) { return a.sum(-1); }},
        {"softmax", [](auto& a, auto&, auto&) { return torch::softmax(a, -1); }},
        {"cat", [](auto& a, auto& b, auto&) { return torch::cat({a, b}, 2); }},
    };
    std::vector<OperatorCost> costs;
    for (const auto& [name, call] : calls) {
        std::vector<double> plain, sharded, added;
        for (int round = -2; round < num_rounds; ++round) {
            const auto a = nanoseconds_per_call([&, &call = call] { call(x, y, rows); });
            const auto b = nanoseconds_per_call([&, &call = call] { call(sx, sy, srows); });
            if (round < 0) continue;
            plain.push_back(a);
            sharded.push_back(b);
            added.push_back(b - a);
        }
        costs.push_back({name, median(plain), median(sharded), median(added)});
    }
    return costs;
}

}  // namespace meshard
