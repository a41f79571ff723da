// SPDX-License-Identifier: Apache-2.0
// Not a test: seconds of an attention, forward and backward, whole by LibTorch and in pieces of the keys as ranks
// compute it, without their messages. attention_benchmark [DEVICE [ROWS]], one JSON object a line and type.
#include "ops/attention/attention_block.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace {

using namespace meshard;

constexpr std::int64_t kHeads = 8, kWidth = 64;
constexpr double kScale = 0.125;

double seconds_of(const at::Device& device, const std::function<void()>& work)
{
    const auto wait = [&] {
        if (!device.is_cpu())
            at::accelerator::synchronizeDevice(device.has_index() ? device.index() : at::accelerator::getDeviceIndex());
    };
    wait();
    const auto start = std::chrono::steady_clock::now();
    work();
    wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run_whole(const std::vector<at::Tensor>& inputs, bool causal)
{
    std::vector<at::Tensor> leaves;
    for (int i = 0; i < 3; ++i) leaves.push_back(inputs[i].detach().requires_grad_());
    const auto output = at::scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], {}, 0.0, causal, kScale);
    torch::autograd::grad({output}, leaves, {inputs[3]});
}

void run_in_pieces(const std::vector<at::Tensor>& inputs, bool causal, std::int64_t pieces)
{
    const at::NoGradGuard no_grad;
    const auto &q = inputs[0], &k = inputs[1], &v = inputs[2];
    const auto rows = q.size(2);
    const AttentionSettings settings{.scale = kScale, .causal = causal};
    const auto range = [&](std::int64_t p) {
        return RowRange{rows * p / pieces, rows * (p + 1) / pieces - rows * p / pieces};
    };
    const auto part = [](const at::Tensor& x, RowRange range) { return x.narrow(2, range.start, range.length); };
    AttentionSum sum(settings, q, {0, rows});
    for (std::int64_t p = 0; p < pieces; ++p) sum.add(part(k, range(p)), part(v, range(p)), range(p), {}, 0);
    const auto found = sum.finish(kWidth);
    const AttentionQueries queries{q, inputs[3], found.output.to(q.scalar_type()), found.log_sum_exp, {0, rows}};
    const auto options = q.options().dtype(attention_sum_type(q.scalar_type()));
    const AttentionGradients total{
        at::zeros(q.sizes(), options), at::zeros(k.sizes(), options), at::zeros(v.sizes(), options), {}};
    for (std::int64_t p = 0; p < pieces; ++p) {
        add_attention_gradients(settings, queries, part(k, range(p)), part(v, range(p)), range(p), {}, 0,
                                {total.queries, part(total.keys, range(p)), part(total.values, range(p)), {}});
    }
}

}  // namespace

int main(int count, char** words)
{
    const at::Device device(count > 1 ? words[1] : "cpu");
    const std::int64_t rows = count > 2 ? std::atoll(words[2]) : device.is_cpu() ? 2048 : 32768;
    at::manual_seed(1);
    for (const auto& [type, name] : {std::pair{at::kBFloat16, "bfloat16"}, {at::kFloat, "float32"}}) {
        std::vector<at::Tensor> inputs;
        for (int i = 0; i < 4; ++i)
            inputs.push_back(at::randn({1, kHeads, rows, kWidth}, at::TensorOptions(device).dtype(type)));
        std::printf("{\"type\": \"%s\", \"rows\": %lld", name, static_cast<long long>(rows));
        for (const bool causal : {false, true}) {
            constexpr int kRepeats = 7;
            const std::vector<std::int64_t> pieces{0, 1, 4};  // 0: the whole by LibTorch
            std::vector<std::vector<double>> seconds(pieces.size());
            for (int repeat = -1; repeat < kRepeats; ++repeat) {  // in turn; the first does not count
                for (std::size_t i = 0; i < pieces.size(); ++i) {
                    const auto one = seconds_of(device, [&] {
                        pieces[i] == 0 ? run_whole(inputs, causal) : run_in_pieces(inputs, causal, pieces[i]);
                    });
                    if (repeat >= 0) seconds[i].push_back(one);
                }
            }
            for (auto& times : seconds) std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
            const auto median = [&](int i) { return seconds[i][kRepeats / 2]; };
            const char* const kind = causal ? "causal" : "full";
            std::printf(
                ", \"%s_seconds\": %.5f, \"%s_one_piece_over_whole\": %.3f, \"%s_four_pieces_over_whole\": %.3f", kind,
                median(0), kind, median(1) / median(0), kind, median(2) / median(0));
        }
        std::printf("}\n");
    }
}
