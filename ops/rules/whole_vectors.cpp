// SPDX-License-Identifier: Apache-2.0
#include "ops/rules/whole_vectors.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <vector>

namespace meshard {
namespace {

constexpr std::int64_t kVector = 64;  // entries: a multiple of the longest vector of any processor and type
constexpr std::int64_t kLine = 4096;  // entries: fewer than LibTorch and MKL divide among threads

bool rounds(const at::Tensor& tensor)
{
    return at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type());
}

/// A copy of the entries `begin` to `end`, padded to whole vectors with copies of the last entry, which the operator
/// supports.
at::Tensor line_of(const at::Tensor& flat, std::int64_t begin, std::int64_t end)
{
    const auto missing = (kVector - (end - begin) % kVector) % kVector;
    return at::cat({flat.narrow(0, begin, end - begin), flat.narrow(0, end - 1, 1).expand({missing})});
}

/// The operator's results, computed on padded copies; empty if padding makes no difference. The call's arguments are
/// not changed.
std::vector<at::Tensor> results_from_lines(RuleCall& call)
{
    if (call.is_random() || call.name() == "aten::clone") return {};
    std::vector<std::int64_t> shape;
    bool has_dims = false, has_rounding = false;
    for (std::int64_t i = 0; i < call.num_args(); ++i) {
        if (!call.arg(i).isTensor()) continue;
        const auto& tensor = call.arg(i).toTensor();
        if (!tensor.defined()) continue;
        has_rounding |= rounds(tensor);
        if (tensor.dim() == 0) continue;  // a scalar tensor has its own role in type promotion, and is passed unchanged
        shape = at::infer_size(shape, tensor.sizes());
        has_dims = true;
    }
    const auto n = c10::multiply_integers(shape);
    if (!has_dims || !has_rounding || n == 0) return {};

    torch::jit::Stack arguments;
    std::vector<at::Tensor> flat(call.num_args());
    for (std::int64_t i = 0; i < call.num_args(); ++i) {
        arguments.push_back(call.arg(i));
        if (const auto tensor = call.tensor(i); tensor.defined() && tensor.dim() > 0)
            flat[i] = tensor.expand(shape).reshape({-1});
    }
    std::vector<std::vector<at::Tensor>> lines;
    for (std::int64_t begin = 0; begin < n; begin += kLine) {
        const auto end = std::min(n, begin + kLine);
        for (std::size_t i = 0; i < flat.size(); ++i) {
            if (flat[i].defined()) call.arg(static_cast<std::int64_t>(i)) = line_of(flat[i], begin, end);
        }
        const auto results = call.run_local();
        call.push(arguments);
        lines.resize(results.size());
        for (std::size_t k = 0; k < results.size(); ++k) {
            const auto& line = results[k].toTensor();
            if (line.dim() == 1 && line.numel() >= end - begin) lines[k].push_back(line.narrow(0, 0, end - begin));
        }
    }
    std::vector<at::Tensor> results;
    for (const auto& pieces : lines) results.push_back(pieces.empty() ? at::Tensor() : at::cat(pieces).view(shape));
    return results;
}

}  // namespace

void run_in_whole_vectors(RuleCall& call, const SpecPtr& spec)
{
    const auto written = call.mutated_arg() >= 0 ? call.tensor(call.mutated_arg()) : at::Tensor();
    const auto values = results_from_lines(call);
    auto results = call.run_local();  // for types, strides and in-place writes
    for (std::size_t k = 0; k < results.size(); ++k) {
        const auto local = results[k].toTensor();
        if (k < values.size() && values[k].defined()) local.copy_(values[k]);
        if (written.defined() && local.is_same(written)) {
            results[k] = call.written();
            continue;
        }
        const auto result = wrap(local, spec, call.strides(k));
        mark_fresh(result);
        results[k] = result;
    }
    call.push(std::move(results));
}

}  // namespace meshard
