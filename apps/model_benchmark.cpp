// SPDX-License-Identifier: Apache-2.0
#include "apps/model_benchmark.h"

#include <chrono>
#include <ctime>
#include <fstream>
#include <functional>
#include <limits>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include <torch/torch.h>

#include "apps/rank_timing.h"
#include "models/metrics.h"
#include "models/transolver.h"

namespace meshard {
namespace {

constexpr std::int64_t kInputs = 7, kOutputs = 4, kMlpRatio = 2;

struct Seconds {
    double wall = 0, cpu = 0;
};

double cpu_seconds()
{
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Seconds seconds_of(const std::function<void()>& work)
{
    const auto cpu = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    work();
    return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), cpu_seconds() - cpu};
}

Seconds median_of(int num_repeats, const std::function<void()>& work)
{
    work();
    std::vector<double> wall, cpu;
    for (int i = 0; i < num_repeats; ++i) {
        const auto seconds = seconds_of(work);
        wall.push_back(seconds.wall);
        cpu.push_back(seconds.cpu);
    }
    return {median(wall), median(cpu)};
}

std::int64_t resident_bytes()
{
    std::ifstream stream("/proc/self/statm");
    std::int64_t size = 0, resident = 0;
    stream >> size >> resident;
    return resident * sysconf(_SC_PAGESIZE);
}

/// Multiplications and additions of the forward pass's products over points.
double forward_flops(const StepShape& shape)
{
    const double C = static_cast<double>(shape.n_hidden), S = static_cast<double>(shape.slice_num);
    const double block = 6 * C * C + 6 * C * S + 4 * kMlpRatio * C * C;
    return static_cast<double>(shape.num_points) * (static_cast<double>(shape.n_layers) * block + 2 * C * (2 * kInputs + 2 * C + kOutputs));
}

}  // namespace

ModelTimes time_model(const StepShape& shape, MemoryMode memory, bool inference_only, int num_repeats)
{
    TransolverOptions options;
    options.functional_dim = 1;
    options.embedding_dim = kInputs - 1;
    options.out_dim = kOutputs;
    options.n_layers = shape.n_layers;
    options.n_hidden = shape.n_hidden;
    options.n_head = shape.n_head;
    options.slice_num = shape.slice_num;
    options.mlp_ratio = kMlpRatio;
    torch::manual_seed(0);
    Transolver model(options);
    model->set_memory(memory);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    const auto fx = torch::ones({1, shape.num_points, 1}), embedding = torch::rand({1, shape.num_points, kInputs - 1});
    const auto target = inference_only ? torch::Tensor() : torch::rand({1, shape.num_points, kOutputs});

    ModelTimes times;
    times.num_threads = at::get_num_threads();
    times.training_gflop = 3 * forward_flops(shape) * 1e-9;
    times.bytes_before = resident_bytes();
    if (!inference_only) {
        const auto step = median_of(num_repeats, [&] {
            optimizer.zero_grad();
            mean_squared_error(model->forward(fx, embedding), target).backward();
            optimizer.step();
        });
        times.training_seconds = step.wall;
        times.training_cpu_seconds = step.cpu;
    }
    {
        const torch::NoGradGuard no_grad;
        model->eval();
        const auto inference = median_of(num_repeats, [&] { model->forward(fx, embedding); });
        times.inference_seconds = inference.wall;
        times.inference_cpu_seconds = inference.cpu;
    }
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    times.peak_bytes = static_cast<std::int64_t>(usage.ru_maxrss) * 1024;

    const auto a = torch::rand({1024, 1024}), b = torch::rand({1024, 1024});
    const auto product = median_of(9, [&] { torch::mm(a, b); });
    times.sgemm_gflops = 2.0 * 1024 * 1024 * 1024 / product.wall * 1e-9;
    return times;
}

}  // namespace meshard
