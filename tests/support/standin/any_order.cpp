// SPDX-License-Identifier: Apache-2.0
// Which of LibTorch's kernels for GPUs add with atomics, and so in another order in each run, as
// `torch.use_deterministic_algorithms` lists them.
#include "tests/support/standin/any_order.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <atomic>
#include <random>
#include <unordered_set>

namespace meshard::standin {
namespace {

std::atomic<bool> in_any_order = false;

/// Kernels that have a fixed order, too.
const std::unordered_set<std::string>& with_fixed_order()
{
    static const std::unordered_set<std::string> names{
        "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce",       "aten::scatter_reduce_",
        "aten::index_add",   "aten::index_add_",   "aten::convolution_backward", "aten::put_"};
    return names;
}

/// Those that have none.
const std::unordered_set<std::string>& without_fixed_order()
{
    static const std::unordered_set<std::string> names{"aten::_adaptive_avg_pool2d_backward",
                                                       "aten::_adaptive_avg_pool3d_backward",
                                                       "aten::adaptive_max_pool2d_backward",
                                                       "aten::adaptive_max_pool3d_backward",
                                                       "aten::avg_pool3d_backward",
                                                       "aten::max_pool3d_with_indices_backward",
                                                       "aten::reflection_pad1d_backward",
                                                       "aten::reflection_pad2d_backward",
                                                       "aten::reflection_pad3d_backward",
                                                       "aten::replication_pad1d_backward",
                                                       "aten::replication_pad2d_backward",
                                                       "aten::replication_pad3d_backward",
                                                       "aten::upsample_linear1d_backward",
                                                       "aten::upsample_bilinear2d_backward",
                                                       "aten::upsample_trilinear3d_backward",
                                                       "aten::upsample_bicubic2d_backward",
                                                       "aten::_upsample_bilinear2d_aa_backward",
                                                       "aten::_upsample_bicubic2d_aa_backward",
                                                       "aten::grid_sampler_2d_backward",
                                                       "aten::grid_sampler_3d_backward",
                                                       "aten::nll_loss2d_forward",
                                                       "aten::index_reduce",
                                                       "aten::index_reduce_"};
    return names;
}

/// LibTorch does not say so of this one.
constexpr const char* kUnsaid = "aten::max_pool2d_with_indices_backward";

template <class T>
void round_some(const at::Tensor& sums)
{
    static thread_local std::mt19937 engine{std::random_device{}()};
    auto numbers = sums.contiguous();
    auto* const data = numbers.data_ptr<T>();
    for (std::int64_t i = 0; i < numbers.numel(); ++i) {
        if (engine() % 2 == 0) data[i] *= 1 + std::numeric_limits<T>::epsilon();
    }
    if (!numbers.is_same(sums)) sums.copy_(numbers);
}

}  // namespace

void add_in_any_order(bool on)
{
    in_any_order = on;
}

void tell_of_any_order(const std::string& name, const std::vector<c10::IValue>& arguments)
{
    if (!at::globalContext().deterministicAlgorithms()) return;
    const bool reduces = name != "aten::nll_loss2d_forward" || arguments[3].toInt() != at::Reduction::None;
    if (name == "aten::histc") at::globalContext().alertNotDeterministic("_histc_cuda with floating point input");
    if (name == "aten::median" && arguments.size() == 3)
        at::globalContext().alertNotDeterministic("median CUDA with indices output");
    if (without_fixed_order().count(name) > 0 && reduces)
        at::globalContext().alertNotDeterministic(name.substr(6) + "_cuda");
}

void reorder_sums(const std::string& name, const std::vector<c10::IValue>& arguments, const at::Tensor& result)
{
    if (!in_any_order || !result.defined()) return;
    if (name.starts_with("aten::scatter_reduce") && arguments[4].toStringRef() != "sum" &&
        arguments[4].toStringRef() != "mean")
        return;
    const bool may = with_fixed_order().count(name) > 0 && !at::globalContext().deterministicAlgorithms();
    if (!may && without_fixed_order().count(name) == 0 && name != kUnsaid) return;
    if (result.scalar_type() == at::kFloat) round_some<float>(result);
    if (result.scalar_type() == at::kDouble) round_some<double>(result);
}

}  // namespace meshard::standin
