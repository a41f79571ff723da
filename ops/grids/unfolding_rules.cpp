// SPDX-License-Identifier: Apache-2.0
// Windows of an image as columns (im2col), and back. Windows are counted row by row, so that an image cut along its
// rows gives columns that are cut in whole rows of windows; an image that is cut along W is gathered first.
#include "ops/grids/grid_cuts.h"
#include "ops/rules/placement_algebra.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// Arguments of both operators: kernel_size, dilation, padding, stride.
struct Unfolding {
    SlidingWindow rows, columns;
    std::vector<std::int64_t> kernel, dilation, stride;
};

std::optional<Unfolding> read_windows(const RuleCall& call, std::int64_t first_arg, std::int64_t height,
                                      std::int64_t width)
{
    std::vector<std::vector<std::int64_t>> lists;
    for (std::int64_t i = 0; i < 4; ++i) {
        auto list = call.arg(first_arg + i).toIntVector();
        if (list.size() == 1) list.assign(2, list[0]);
        if (list.size() != 2) return std::nullopt;
        lists.push_back(list);
    }
    Unfolding unfolding{{}, {}, lists[0], lists[1], lists[3]};
    for (int d = 0; d < 2; ++d) {
        auto& window = d == 0 ? unfolding.rows : unfolding.columns;
        window = {d == 0 ? height : width, 0, lists[0][d], lists[3][d], lists[2][d], lists[1][d]};
        if (window.kernel < 1 || window.stride < 1 || window.padding < 0 || window.dilation < 1 || window.in < 1)
            return std::nullopt;
        window.out = window.count_outputs();
        if (window.out < 1) return std::nullopt;
    }
    return unfolding;
}

/// The axis that cuts `dim`, or -1, and the layouts in which only `dim` and the dimensions before `channels` are cut.
/// Nothing for a dimension that is cut in blocks or twice.
struct RowCut {
    AxisLayouts layouts;
    std::int64_t axis = -1;
};

std::optional<RowCut> find_row_cut(const RuleCall& call, const at::Tensor& tensor, std::int64_t channels,
                                   std::int64_t dim)
{
    RowCut cut{layouts_of(call, tensor), -1};
    for (std::size_t a = 0; a < cut.layouts.size(); ++a) {
        auto& layout = cut.layouts[a];
        if (layout.is_partial() ||
            (layout.is_shard() && layout.placement.dim >= channels && layout.placement.dim != dim))
            layout = {};
        if (!layout.is_shard() || layout.placement.dim != dim) continue;
        if (cut.axis >= 0 || layout.blocks > 1) return std::nullopt;
        cut.axis = static_cast<std::int64_t>(a);
    }
    return cut_axes(cut.layouts, tensor.dim(), dim) ? std::optional(cut) : std::nullopt;
}

std::vector<Range> read_by(const SlidingWindow& window, const std::vector<Range>& outputs)
{
    std::vector<Range> needed;
    for (const auto& range : outputs) needed.push_back(clip(window.window(range), window.in).inside);
    return needed;
}

AxisLayout columns_of(const AxisLayout& rows, std::int64_t dim, Extents extents, std::int64_t width)
{
    for (auto& extent : extents) extent *= width;
    return cut_layout(rows, dim, std::move(extents));
}

/// im2col(self, kernel_size, dilation, padding, stride): (..., C, H, W) to (..., C * kernel, windows)
void unfold(RuleCall& call)
{
    const auto input = call.tensor(0);
    const auto num_dims = input.dim();
    if (num_dims < 3 || num_dims > 4 || input.numel() == 0) return gathered_rule(call);
    const auto unfolding = read_windows(call, 1, input.size(-2), input.size(-1));
    const auto cut = find_row_cut(call, input, num_dims - 3, num_dims - 2);
    if (!unfolding || !cut) return gathered_rule(call);

    call.reduce({input});
    auto local = local_of(with_layouts(call, input, cut->layouts));
    auto layouts = cut->layouts;
    auto num_rows = unfolding->rows.out, padding = unfolding->rows.padding;
    if (cut->axis >= 0) {
        const auto& in = cut->layouts[cut->axis];
        const auto extents = unfolding->rows.out_extents(*in.extents);
        const auto outputs = ranges_of(extents);
        const auto own = outputs[call.coordinate(cut->axis)];
        const RangeExchange exchange(call.device_mesh()->group(cut->axis), in, read_by(unfolding->rows, outputs));
        const auto clipped = clip(unfolding->rows.window(own), unfolding->rows.in);
        local = exchange.borrow(local, clipped.before, clipped.after);
        layouts[cut->axis] = columns_of(in, num_dims - 2, extents, unfolding->columns.out);
        num_rows = own.size();
        padding = 0;
    }
    std::vector<std::int64_t> shape(local.sizes().begin(), local.sizes().end() - 3);
    shape.push_back(input.size(-3) * unfolding->kernel[0] * unfolding->kernel[1]);
    shape.push_back(num_rows * unfolding->columns.out);
    const auto result = c10::multiply_integers(shape) == 0
                            ? at::empty(shape, local.options())
                            : at::im2col(local, unfolding->kernel, unfolding->dilation,
                                         {padding, unfolding->columns.padding}, unfolding->stride);
    call.finish({wrap(result, call.spec(layouts))});
}

/// col2im(self, output_size, kernel_size, dilation, padding, stride): the adjoint of im2col. Sums for rows of another
/// rank are sent to it.
void fold(RuleCall& call)
{
    const auto input = call.tensor(0);
    const auto size = call.arg(1).toIntVector();
    const auto num_dims = input.dim();
    if (num_dims < 2 || num_dims > 3 || input.numel() == 0 || size.size() != 2) return gathered_rule(call);
    const auto unfolding = read_windows(call, 2, size[0], size[1]);
    auto cut = find_row_cut(call, input, num_dims - 2, num_dims - 1);
    if (!unfolding || !cut) return gathered_rule(call);
    const auto& rows = unfolding->rows;
    const auto kernel_size = unfolding->kernel[0] * unfolding->kernel[1], width = unfolding->columns.out;
    if (input.size(-1) != rows.out * width || input.size(-2) % kernel_size != 0) return gathered_rule(call);

    call.reduce({input});
    auto layouts = cut->layouts;
    std::optional<RangeExchange> exchange;
    Clipped clipped;
    auto num_rows = rows.in, padding = rows.padding;
    if (cut->axis >= 0) {
        // Each rank has whole rows of windows; its image rows are those around the centres of its windows.
        const auto windows = extents_by_boundary(*cut->layouts[cut->axis].extents, rows.out,
                                                 [&](std::int64_t end) { return (end + width / 2) / width; });
        const auto image = extents_by_boundary(
            windows, rows.in, [&](std::int64_t o) { return o * rows.stride - rows.padding + rows.reach() / 2; });
        const auto outputs = ranges_of(windows);
        const auto own = outputs[call.coordinate(cut->axis)];
        layouts[cut->axis] = cut_layout(cut->layouts[cut->axis], num_dims - 1, image);
        cut->layouts[cut->axis] = columns_of(cut->layouts[cut->axis], num_dims - 1, windows, width);
        exchange.emplace(call.device_mesh()->group(cut->axis), layouts[cut->axis], read_by(rows, outputs));
        clipped = clip(rows.window(own), rows.in);
        num_rows = rows.window(own).size();
        padding = 0;
    }
    const auto local = local_of(with_layouts(call, input, cut->layouts));
    std::vector<std::int64_t> shape(local.sizes().begin(), local.sizes().end() - 2);
    shape.push_back(input.size(-2) / kernel_size);
    shape.push_back(num_rows);
    shape.push_back(size[1]);
    auto result = local.numel() == 0 || num_rows == 0
                      ? at::zeros(shape, local.options())
                      : at::col2im(local, {num_rows, size[1]}, unfolding->kernel, unfolding->dilation,
                                   {padding, unfolding->columns.padding}, unfolding->stride);
    if (exchange) result = exchange->give_back(result.narrow(-2, clipped.before, clipped.inside.size()));
    call.finish({wrap(result, call.spec(layouts))});
}

const RuleRegistration unfolding_rules[] = {
    {"rearrangement", {"aten::im2col"}, unfold},
    {"rearrangement", {"aten::col2im"}, fold},
};

}  // namespace
}  // namespace meshard
