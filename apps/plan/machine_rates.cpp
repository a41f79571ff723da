// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/machine_rates.h"

#include "apps/bench/rank_timing.h"
#include "apps/devices/rank_device.h"
#include "ops/fused/line_array.h"
#include "ops/fused/matrix_product.h"
#include "ops/fused/tile_functions.h"
#include "ops/fused/tile_math.h"
#include "ops/slices/row_noise.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace meshard {
namespace {

using Kind = Operation::Kind;
using Work = std::function<void()>;

constexpr std::int64_t kMostRows = 8192;  // of a large product that is measured
constexpr std::int64_t kTileRows = 64, kTilePoints = 256;

/// Seconds of a call, the best of several runs of about a millisecond. With one thread they are seconds in which it computes, which other programs lengthen
/// less.
double best_seconds(const Work& work)
{
    constexpr int kRuns = 7;
    constexpr double kRunSeconds = 1.5e-3;
    const auto seconds_of_calls = [&](std::int64_t calls) {
        const auto [wall, cpu] = seconds_of([&] {
            for (std::int64_t i = 0; i < calls; ++i) work();
        });
        return (at::get_num_threads() == 1 ? cpu : wall) / static_cast<double>(calls);
    };
    work();
    const auto once = std::max(1e-8, seconds_of_calls(1));
    const auto calls = std::max<std::int64_t>(1, static_cast<std::int64_t>(kRunSeconds / once));
    double best = once;
    for (int i = 0; i < kRuns; ++i) best = std::min(best, seconds_of_calls(calls));
    return best;
}

/// Seconds of a call, divided by the number of threads: every thread makes its own calls at the same time.
/// @param make   a thread's work, with memory of its own
double best_seconds_of_threads(const std::function<Work()>& make)
{
    const auto num_threads = at::get_num_threads();
    std::vector<Work> of_threads;
    for (int i = 0; i < num_threads; ++i) of_threads.push_back(make());
    constexpr std::int64_t kCalls = 8;
    return best_seconds([&] {
               at::parallel_for(0, num_threads, 1, [&](std::int64_t begin, std::int64_t end) {
                   for (auto thread = begin; thread < end; ++thread) {
                       for (std::int64_t i = 0; i < kCalls; ++i) of_threads[static_cast<std::size_t>(thread)]();
                   }
               });
           }) /
           static_cast<double>(kCalls * num_threads);
}

std::shared_ptr<float[]> numbers(std::int64_t count)
{
    auto lines = make_lines<float>(count);
    for (std::int64_t i = 0; i < count; ++i) lines[i] = 0.01F * static_cast<float>(i % 199 - 99);
    return {std::move(lines)};
}

/// A product as blocks multiply.
double seconds_of_tile_product(const Operation& o)
{
    return best_seconds_of_threads([&o]() -> Work {
        const auto a = numbers(o.rows * o.inner), b = numbers(o.inner * o.columns), c = numbers(o.rows * o.columns);
        const auto as_a = o.transposed_a ? As::Transposed : As::Given, as_b = o.transposed_b ? As::Transposed : As::Given;
        return [=, m = o.rows, n = o.columns, k = o.inner] {
            multiply(as_a, as_b, m, n, k, a.get(), as_a == As::Given ? k : m, b.get(), as_b == As::Given ? n : k, {}, c.get(), n);
        };
    });
}

/// A product of LibTorch's, of the rows that are measured. Its matrices come from memory as in a step, whose other operators take the caches in between:
/// calls go through so many of them that none is still there when its turn comes.
double seconds_of_large_product(std::int64_t rows, std::int64_t columns, std::int64_t inner)
{
    constexpr std::int64_t kMoreThanCaches = 64 << 20;
    const auto bytes = 4 * (rows * inner + inner * columns + rows * columns);
    std::vector<std::array<at::Tensor, 3>> sets;
    for (std::int64_t i = 0; i < std::clamp<std::int64_t>(kMoreThanCaches / bytes, 1, 1024); ++i)
        sets.push_back({at::ones({rows, inner}), at::ones({inner, columns}), at::empty({rows, columns})});
    std::size_t turn = 0;
    return best_seconds([&] {
        auto& [a, b, c] = sets[turn++ % sets.size()];
        at::mm_out(c, a, b);
    });
}

/// Seconds per number. Functions that work in place begin with the same numbers each time, and the copying is taken off.
double seconds_of_tile_function(Kind kind)
{
    const auto count = kTileRows * kTilePoints;
    const bool in_place = kind == Kind::SoftmaxGradient || kind == Kind::ActivationGradient;
    const auto copying = in_place ? best_seconds_of_threads([&]() -> Work {
        const auto x = numbers(count), y = numbers(count);
        return [=] { std::copy_n(x.get(), count, y.get()); };
    })
                                  : 0.0;
    const auto per_call = best_seconds_of_threads([&]() -> Work {
        const auto x = numbers(count), y = numbers(count), z = numbers(count), row = numbers(2 * kTilePoints), weights = numbers(4 * kTileRows);
        switch (kind) {
        case Kind::Softmax:
            return [=] { softmax_rows(y.get(), kTileRows, kTilePoints); };
        case Kind::SoftmaxGradient:
            return [=] {
                std::copy_n(x.get(), count, y.get());
                softmax_rows_backward(y.get(), z.get(), kTileRows, kTilePoints);
            };
        case Kind::Activation:
            return [=] { gelu(y.get(), x.get(), count); };
        case Kind::ActivationGradient:
            return [=] {
                std::copy_n(x.get(), count, z.get());
                gelu_backward(z.get(), y.get(), x.get(), count);
            };
        case Kind::NormGradient:
            return [=] {
                layer_norm_backward(y.get(), weights.get(), weights.get() + kTileRows, z.get(), x.get(), row.get(), row.get() + kTilePoints,
                                    weights.get() + 2 * kTileRows, kTilePoints, kTileRows);
            };
        case Kind::Sum:
            return [=] { add_row_sums(weights.get(), 1, x.get(), kTileRows, kTilePoints); };
        case Kind::Noise: {
            const auto draw = std::make_shared<RowDraw>(RowNoise(1).next_draw(at::empty({1, kTilePoints, 1})));
            return [=] { gumbel_noise(TileNoise{draw.get(), 0, 0}, kTileRows, kTilePoints, y.get()); };
        }
        default:
            return [=] {
                layer_norm(y.get(), row.get(), row.get() + kTilePoints, x.get(), weights.get(), weights.get() + kTileRows, kTilePoints, kTileRows, 1e-5);
            };
        }
    });
    return (per_call - copying) / static_cast<double>(count);
}

/// What LibTorch's operators compute from memory to memory in a time of its own. All else takes that of its bytes.
bool is_measured_alone(Kind kind)
{
    return kind == Kind::Activation || kind == Kind::ActivationGradient || kind == Kind::Norm || kind == Kind::NormGradient;
}

/// Seconds per number of LibTorch's operators on tensors that are too large for a core's cache.
double seconds_of_large_function(Kind kind)
{
    constexpr std::int64_t kRows = 1 << 15, kChannels = 128;
    const auto x = at::randn({kRows, kChannels}), gradient = at::randn({kRows, kChannels}), weight = at::ones({kChannels}), bias = at::zeros({kChannels});
    const auto mean = at::zeros({kRows, 1}), rstd = at::ones({kRows, 1});
    const auto per_call = best_seconds([&] {
        switch (kind) {
        case Kind::Activation:
            at::gelu(x);
            break;
        case Kind::ActivationGradient:
            at::gelu_backward(gradient, x);
            break;
        case Kind::Norm:
            at::native_layer_norm(x, {kChannels}, weight, bias, 1e-5);
            break;
        default:
            at::native_layer_norm_backward(gradient, x, {kChannels}, mean, rstd, weight, bias, {true, true, true});
        }
    });
    return per_call / static_cast<double>(x.numel());
}

}  // namespace

MachineRates::MachineRates(const DeviceMesh& mesh)
{
    num_ranks_ = mesh.num_ranks();
    constexpr std::int64_t kLarge = 16 << 20, kSmall = 1 << 14, kSquare = 1024;
    mesh.all().barrier();
    {
        const auto from = at::ones({kLarge});
        auto to = at::ones({kLarge});
        copy_rate_ = 8.0 * kLarge / best_seconds([&] { to.copy_(from); });
    }
    const auto a = at::rand({kSquare, kSquare}), b = at::rand({kSquare, kSquare});
    product_rate_ = 2.0 * kSquare * kSquare * kSquare / best_seconds([&] { at::mm(a, b); });
    const auto logits = at::rand({kSmall});
    auto results = at::empty({kSmall});
    exponential_rate_ = kSmall / best_seconds([&] { at::exp_out(results, logits); });
    auto one = at::ones({16});
    small_call_ = best_seconds([&] { one.mul_(1.0); });
    if (num_ranks_ == 1) return;
    auto few = at::ones({2}), many = at::ones({1 << 20});
    constexpr int kMessages = 50, kRuns = 5;
    message_latency_ = 1;
    for (int run = 0; run < kRuns; ++run) {
        const auto small = seconds_together(mesh, [&] {
            for (int i = 0; i < kMessages; ++i) mesh.all().all_reduce(few);
        });
        message_latency_ = std::min(message_latency_, small / kMessages);
        message_rate_ = std::max(message_rate_, 4.0 * static_cast<double>(many.numel()) / seconds_together(mesh, [&] { mesh.all().all_reduce(many); }));
    }
}

double MachineRates::seconds_of_number(Kind kind, bool in_tile) const
{
    const auto [found, is_new] = numbers_.try_emplace({kind, in_tile}, 0);
    if (is_new) found->second = in_tile ? seconds_of_tile_function(kind) : seconds_of_large_function(kind);
    return found->second;
}

double MachineRates::seconds_of_call(const Operation& o) const
{
    if (o.in_tile) {
        const auto [found, is_new] = products_.try_emplace(Shape{true, o.rows, o.columns, o.inner, o.transposed_a, o.transposed_b}, 0);
        if (is_new) found->second = seconds_of_tile_product(o);
        return found->second;
    }
    const auto rows = std::min(o.rows, kMostRows), columns = std::min(o.columns, kMostRows), inner = std::min(o.inner, kMostRows);
    const auto [found, is_new] = products_.try_emplace(Shape{false, rows, columns, inner, false, false}, 0);
    if (is_new) found->second = seconds_of_large_product(rows, columns, inner);
    const auto part = [](std::int64_t whole, std::int64_t measured) { return static_cast<double>(whole) / static_cast<double>(measured); };
    return found->second * part(o.rows, rows) * part(o.columns, columns) * part(o.inner, inner);
}

double MachineRates::seconds(const Operation& o) const
{
    if (o.kind == Kind::Product) return o.calls * seconds_of_call(o);
    if (o.in_tile) return o.kind == Kind::Pass || o.kind == Kind::Exponentials ? 0.0 : o.numbers * seconds_of_number(o.kind, true);
    if (is_measured_alone(o.kind)) return o.numbers * seconds_of_number(o.kind, false);
    const auto arithmetic = o.kind == Kind::Exponentials ? o.numbers / exponential_rate_ : 0.0;
    return o.bytes / copy_rate_ + arithmetic;
}

double MachineRates::seconds_of_small_calls(double count) const
{
    return count * small_call_;
}

double MachineRates::seconds(const StepMessage& message, std::int64_t /*num_ranks*/) const
{
    return static_cast<double>(message.times) * (message_latency_ + static_cast<double>(message.bytes) / message_rate_);
}

double MachineRates::memory_bytes() const
{
    return static_cast<double>(free_memory()) / static_cast<double>(num_ranks_);
}

}  // namespace meshard
