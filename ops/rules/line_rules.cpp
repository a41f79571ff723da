// SPDX-License-Identifier: Apache-2.0
// Operators that work along the lines of one dimension: running sums, sorting, order statistics, flips.
#include "ops/rules/rank_parts.h"
#include "sharding/tensor/exact_mode.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// median(self, dim, keepdim) and nanmedian of whole lines, by sorting: among equal values the first is chosen, where
/// GPU kernels choose any.
torch::jit::Stack sorted_medians(const RuleCall& call, const at::Tensor& lines)
{
    const auto dim = call.arg(1).toInt(), n = lines.size(dim);
    const auto [sorted, order] = at::sort(lines, /*stable=*/true, dim, /*descending=*/false);  // NaN last
    const auto num_valid = at::isnan(lines).logical_not().sum(dim, /*keepdim=*/true);
    const auto place = call.name() == "aten::median" ? at::where(num_valid.lt(n), num_valid, (n - 1) / 2)
                                                     : (num_valid - 1).clamp_min(0).floor_divide(2);
    const auto picked = [&](const at::Tensor& from) {
        const auto entries = from.gather(dim, place);
        return call.arg(2).toBool() ? entries : entries.squeeze(dim);
    };
    return {picked(sorted), picked(order)};
}

/// Gathers the lines along dimension `dim`; results of the same size get the input's layout again.
void with_lines(RuleCall& call, std::int64_t dim)
{
    const auto tensor = call.tensor(0);
    call.reduce(call.tensors());
    const auto before = layouts_of(call, tensor);
    const auto moved = with_whole_lines(call, tensor, dim);
    const auto axes = layouts_of(call, moved);
    call.set_local(0, at::Tensor(local_of(moved)));
    const bool is_median = call.name() == "aten::median" || call.name() == "aten::nanmedian";
    const bool sorts = is_median && exact_mode() && !local_of(moved).is_cpu();
    auto results = sorts ? sorted_medians(call, local_of(moved)) : call.run_local();
    for (auto& result : results) {
        const auto& local = result.toTensor();
        if (local.dim() < tensor.dim()) {
            result = wrap(local, call.spec(map_dims(axes, [&](std::int64_t d) { return d > dim ? d - 1 : d; })));
        } else {
            const auto whole = wrap(local, call.spec(axes));
            result = local.size(dim) == tensor.size(dim) ? with_layouts(call, whole, before) : whole;
        }
    }
    if (sorts) return call.finish(std::move(results));
    call.push(std::move(results));
}

/// op(self, ..., dim, ...): sort, topk, cummax, median, mode, ...
void along_dim(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    std::int64_t arg = -1;
    for (std::int64_t i = 1; i < call.num_args(); ++i) {
        if (call.schema().arguments()[i].name() == "dim") arg = i;
    }
    if (arg < 0 || tensor.dim() == 0 || tensor.numel() == 0) return gathered_rule(call);
    with_lines(call, from_front(call.arg(arg).toInt(), tensor.dim()));
}

/// flip(self, dims), roll(self, shifts, dims): one dimension after the other.
void along_dims(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const bool rolls = call.name() == "aten::roll";
    const auto dims = call.arg(rolls ? 2 : 1).toIntVector();
    if (tensor.dim() == 0 || tensor.numel() == 0 || dims.empty()) return gathered_rule(call);
    call.reduce({tensor});
    const auto shifts = rolls ? call.arg(1).toIntVector() : std::vector<std::int64_t>(dims.size());
    const auto before = layouts_of(call, tensor);
    auto value = is_sharded(tensor) ? tensor : wrap(tensor, call.replicated());
    for (std::size_t i = 0; i < dims.size(); ++i) {
        const auto dim = from_front(dims[i], tensor.dim());
        value = with_whole_lines(call, value, dim);
        const auto& local = local_of(value);
        value = wrap(rolls ? at::roll(local, shifts[i], dim) : at::flip(local, dim), spec_of(value));
    }
    call.finish({with_layouts(call, value, before)});
}

/// cumsum, cumprod (self, dim, dtype?): a rank's rows start from the sum, or product, of the lower ranks' totals, which
/// are sent in one message.
template <bool kProduct>
void cumulative(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    if (tensor.dim() == 0 || tensor.numel() == 0) return gathered_rule(call);
    const auto dim = from_front(call.arg(1).toInt(), tensor.dim());
    call.reduce({tensor});
    const auto spec = spec_of(tensor);
    const auto cutting = axes_cutting(call, tensor, {dim});
    if (cutting.size() == 1 && spec->axes[cutting[0]].blocks > 1) return along_dim(call);
    call.make_local();
    auto result = call.run_local()[0].toTensor();
    for (const auto axis : cutting) {
        auto shape = result.sizes().vec();
        shape[dim] = 1;
        const auto rows = result.size(dim);
        const auto total =
            rows > 0 ? result.narrow(dim, rows - 1, 1) : at::full(shape, kProduct ? 1 : 0, result.options());
        const auto parts = parts_of_all(call, axis, total);
        for (std::int64_t r = 0; r < call.coordinate(axis); ++r)
            result = kProduct ? result.mul_(parts[r]) : result.add_(parts[r]);
    }
    call.push({wrap(result, spec)});
}

const RuleRegistration line_rules[] = {
    {"running sums", {"aten::cumsum"}, cumulative<false>},
    {"running sums", {"aten::cumprod"}, cumulative<true>},
    {"lines",
     {"aten::sort", "aten::sort.stable", "aten::argsort", "aten::argsort.stable", "aten::topk", "aten::cummax",
      "aten::cummin", "aten::logcumsumexp", "aten::median.dim", "aten::nanmedian.dim", "aten::mode", "aten::kthvalue"},
     along_dim},
    {"lines", {"aten::flip", "aten::roll"}, along_dims},
};

}  // namespace
}  // namespace meshard
