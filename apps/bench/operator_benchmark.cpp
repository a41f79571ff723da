// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/operator_benchmark.h"

#include "apps/bench/rank_timing.h"
#include "apps/console/repeated_times.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/types.h>

#include <ctime>
#include <functional>

namespace meshard {
namespace {

constexpr int kCallsPerRound = 2000;

/// Returns the CPU time of this thread, which does not depend on other load of the machine.
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

/// The operators' inputs, plain or sharded.
struct Operands {
    torch::Tensor x, y, rows, image;
};

}  // namespace

std::vector<OperatorCost> time_operators(int num_rounds)
{
    const torch::NoGradGuard no_grad;
    const auto weight = torch::rand({16, 16}), bias = torch::rand({16}), kernel = torch::rand({4, 4, 3, 3});
    const Operands plain_operands{torch::rand({1, 8, 16}), torch::rand({1, 8, 16}), torch::rand({8, 16}),
                                  torch::rand({1, 4, 8, 8})};
    const auto mesh = DeviceMesh::single();
    const auto cut = [&](const torch::Tensor& tensor, std::int64_t dim) {
        return from_local(tensor, mesh, {Shard(dim)});
    };
    Operands sharded_operands{cut(plain_operands.x, 1), {}, cut(plain_operands.rows, 0), cut(plain_operands.image, 2)};
    sharded_operands.y = from_local(plain_operands.y, spec_of(sharded_operands.x));

    using Call = std::function<torch::Tensor(const Operands&)>;
    const std::vector<std::pair<const char*, Call>> calls{
        {"add", [](auto& on) { return on.x + on.y; }},
        {"mul by a number", [](auto& on) { return on.x * 2; }},
        {"gelu", [](auto& on) { return torch::gelu(on.x); }},
        {"add in place", [](auto& on) { return torch::Tensor(on.x).add_(on.y); }},
        {"addmm", [&](auto& on) { return torch::addmm(bias, on.rows, weight); }},
        {"linear", [&](auto& on) { return torch::linear(on.x, weight, bias); }},
        {"layer norm", [&](auto& on) { return torch::layer_norm(on.x, {16}, bias, bias); }},
        {"convolution", [&](auto& on) { return torch::conv2d(on.image, kernel, {}, 1, 1); }},
        {"view", [](auto& on) { return on.x.view({1, 8, 4, 4}); }},
        {"transpose", [](auto& on) { return on.x.transpose(1, 2); }},
        {"sum of rows", [](auto& on) { return on.x.sum(-1); }},
        {"softmax", [](auto& on) { return torch::softmax(on.x, -1); }},
        {"cat", [](auto& on) { return torch::cat({on.x, on.y}, 2); }},
    };
    std::vector<OperatorCost> costs;
    for (const auto& [name, call] : calls) {
        std::vector<double> plain, sharded, added;
        for (int round = -2; round < num_rounds; ++round) {
            const auto a = nanoseconds_per_call([&, &call = call] { call(plain_operands); });
            const auto b = nanoseconds_per_call([&, &call = call] { call(sharded_operands); });
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
