// SPDX-License-Identifier: Apache-2.0
// The operators meshard::neighbourhood_attention and its backward for plain tensors: with our own kernels on the CPU,
// elsewhere composed of LibTorch's operators.
#include "ops/attention/neighbourhood_attention.h"

#include "ops/attention/attention_block.h"
#include "ops/slices/slice_layout.h"
#include "partition/error.h"
#include "sharding/ranks/parallel_for.h"

#include <ATen/ATen.h>
#include <c10/util/strides.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

namespace meshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kGridRows = 1, kGridColumns = 2, kGridHeads = 3, kGridChannels = 4;

/// The entries `begin`, `begin` + dilation, ... before `end` with remainder `group`, as a range of entries in the
/// group's own grid.
std::pair<std::int64_t, std::int64_t> entries_of_group(std::int64_t begin, std::int64_t count, std::int64_t group,
                                                       std::int64_t dilation)
{
    const auto up = [&](std::int64_t entry) { return entry <= group ? 0 : (entry - group + dilation - 1) / dilation; };
    const auto first = up(begin);
    return {first, up(begin + count) - first};
}

/// The windows on the entries of an axis with remainder `group`.
AxisWindows windows_of_group(const GridAxis& axis, std::int64_t group)
{
    const auto& here = axis.here;
    AxisWindows windows = here;
    windows.length = (here.length - group + axis.dilation - 1) / axis.dilation;
    std::tie(windows.first_query, windows.num_queries) =
        entries_of_group(here.first_query, here.num_queries, group, axis.dilation);
    std::tie(windows.first_key, windows.num_keys) =
        entries_of_group(here.first_key, here.num_keys, group, axis.dilation);
    return windows;
}

/// One head of one sample, and the rows and columns of one pair of remainders.
struct Problem {
    std::int64_t sample = 0, head = 0;
    std::array<std::int64_t, 2> group{};
};

/// All problems with at least one query.
std::vector<Problem> problems(const at::Tensor& queries, const std::array<GridAxis, 2>& axes)
{
    std::vector<Problem> all;
    for (std::int64_t sample = 0; sample < queries.size(0); ++sample) {
        for (std::int64_t head = 0; head < queries.size(kGridHeads); ++head) {
            for (std::int64_t row = 0; row < axes[0].dilation; ++row) {
                for (std::int64_t column = 0; column < axes[1].dilation; ++column) {
                    if (windows_of_group(axes[0], row).num_queries > 0 &&
                        windows_of_group(axes[1], column).num_queries > 0)
                        all.push_back({sample, head, {row, column}});
                }
            }
        }
    }
    return all;
}

/// The part of a tensor for a problem. `first` are the grid's row and column at which the tensor begins.
template <class T>
GridOfVectors<T> part(const at::Tensor& tensor, const Problem& problem, const std::array<GridAxis, 2>& axes,
                      std::array<std::int64_t, 2> first)
{
    auto* data = static_cast<T*>(tensor.data_ptr()) + problem.sample * tensor.stride(0) +
                 problem.head * tensor.stride(kGridHeads);
    for (int axis = 0; axis < 2; ++axis) {
        const auto dilation = axes[axis].dilation;
        data +=
            ((problem.group[axis] - first[axis]) % dilation + dilation) % dilation * tensor.stride(kGridRows + axis);
    }
    return {data, tensor.stride(kGridRows) * axes[0].dilation, tensor.stride(kGridColumns) * axes[1].dilation};
}

template <class T>
GridOfVectors<const T> constant(const GridOfVectors<T>& grid)
{
    return {grid.data, grid.row_stride, grid.column_stride};
}

std::array<std::int64_t, 2> first_queries(const std::array<GridAxis, 2>& axes)
{
    return {axes[0].here.first_query, axes[1].here.first_query};
}

std::array<std::int64_t, 2> first_keys(const std::array<GridAxis, 2>& axes)
{
    return {axes[0].here.first_key, axes[1].here.first_key};
}

template <class T>
WindowAttention<T> attention_of(const Problem& problem, const at::Tensor& queries, const at::Tensor& keys,
                                const at::Tensor& values, const std::array<GridAxis, 2>& axes, double scale)
{
    return {windows_of_group(axes[0], problem.group[0]),
            windows_of_group(axes[1], problem.group[1]),
            queries.size(kGridChannels),
            static_cast<T>(scale),
            constant(part<T>(queries, problem, axes, first_queries(axes))),
            constant(part<T>(keys, problem, axes, first_keys(axes))),
            constant(part<T>(values, problem, axes, first_keys(axes)))};
}

at::Tensor with_adjacent_channels(const at::Tensor& tensor, at::ScalarType type)
{
    const auto typed = tensor.to(type);
    return typed.stride(kGridChannels) == 1 || typed.size(kGridChannels) == 1 ? typed : typed.contiguous();
}

template <class T>
void run_forward(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                 const std::array<GridAxis, 2>& axes, double scale, const at::Tensor& output)
{
    const auto all = problems(queries, axes);
    at::parallel_for(0, std::ssize(all), 1, [&](std::int64_t begin, std::int64_t end) {
        for (auto i = begin; i < end; ++i) {
            window_attention(attention_of<T>(all[i], queries, keys, values, axes, scale),
                             part<T>(output, all[i], axes, first_queries(axes)));
        }
    });
}

template <class T>
void run_backward(const at::Tensor& gradient, const at::Tensor& queries, const at::Tensor& keys,
                  const at::Tensor& values, const std::array<GridAxis, 2>& axes, double scale,
                  const std::array<at::Tensor, 3>& gradients)
{
    const auto all = problems(queries, axes);
    at::parallel_for(0, std::ssize(all), 1, [&](std::int64_t begin, std::int64_t end) {
        for (auto i = begin; i < end; ++i) {
            window_attention_backward(attention_of<T>(all[i], queries, keys, values, axes, scale),
                                      constant(part<T>(gradient, all[i], axes, first_queries(axes))),
                                      part<T>(gradients[0], all[i], axes, first_queries(axes)),
                                      part<T>(gradients[1], all[i], axes, first_keys(axes)),
                                      part<T>(gradients[2], all[i], axes, first_keys(axes)));
        }
    });
}

// --- composed of LibTorch's operators --------------------------------------------------------------------------------

/// A rectangle of queries and the rectangle of keys that they attend to, relative to this rank's first query and key.
struct QueryTile {
    std::array<std::int64_t, 2> first_query, num_queries, first_key, num_keys;
};

std::vector<QueryTile> tiles(const std::array<GridAxis, 2>& axes)
{
    constexpr std::int64_t kLeast = 16, kMost = 64;
    std::array<std::int64_t, 2> length;
    for (int axis = 0; axis < 2; ++axis)
        length[axis] = std::clamp(axes[axis].here.window * axes[axis].dilation, kLeast, kMost);
    std::vector<QueryTile> all;
    const auto& [rows, columns] = axes;
    for (std::int64_t row = 0; row < rows.here.num_queries; row += length[0]) {
        for (std::int64_t column = 0; column < columns.here.num_queries; column += length[1]) {
            QueryTile tile{{row, column}, {}, {}, {}};
            for (int axis = 0; axis < 2; ++axis) {
                const auto& here = axes[axis].here;
                tile.num_queries[axis] = std::min(length[axis], here.num_queries - tile.first_query[axis]);
                const auto first = here.first_query + tile.first_query[axis];
                const auto [begin, end] = axes[axis].seen(first, first + tile.num_queries[axis]);
                tile.first_key[axis] = begin - here.first_key;
                tile.num_keys[axis] = end - begin;
            }
            all.push_back(tile);
        }
    }
    return all;
}

at::Tensor rectangle(const at::Tensor& tensor, const std::array<std::int64_t, 2>& first,
                     const std::array<std::int64_t, 2>& count)
{
    return tensor.narrow(kGridRows, first[0], count[0]).narrow(kGridColumns, first[1], count[1]);
}

/// (B, rows, columns, H, D) to a contiguous (B, H, rows * columns, D): libraries round products of other memory orders
/// differently, even if only the strides of dimensions of size one differ.
at::Tensor by_heads(const at::Tensor& tensor, at::ScalarType type)
{
    const auto rows = tensor.flatten(kGridRows, kGridColumns).transpose(1, 2).to(type).contiguous();
    return rows.as_strided(rows.sizes(), c10::contiguous_strides(rows.sizes()));
}

/// (queries, keys): whether a query of the tile attends to a key, along one axis.
at::Tensor sees(const GridAxis& axis, std::int64_t first_query, std::int64_t num_queries, std::int64_t first_key,
                std::int64_t num_keys, at::Device device)
{
    const auto options = at::TensorOptions(at::kLong).device(device);
    const auto& here = axis.here;
    const auto query =
        at::arange(here.first_query + first_query, here.first_query + first_query + num_queries, options).unsqueeze(1);
    const auto key =
        at::arange(here.first_key + first_key, here.first_key + first_key + num_keys, options).unsqueeze(0);
    const auto group = query.remainder(axis.dilation);
    const auto length = (here.length - group + axis.dilation - 1).div(axis.dilation, "floor");
    const auto first =
        at::minimum((query.div(axis.dilation, "floor") - here.window / 2).clamp_min(0), length - here.window);
    const auto place = key.div(axis.dilation, "floor");
    return key.remainder(axis.dilation)
        .eq(group)
        .logical_and_(place.ge(first))
        .logical_and_(place.lt(first + here.window));
}

/// Attention weights of a tile, (B, H, queries, keys).
at::Tensor tile_weights(const at::Tensor& queries, const at::Tensor& keys, const QueryTile& tile,
                        const std::array<GridAxis, 2>& axes, double scale)
{
    std::array<at::Tensor, 2> seen;
    for (int axis = 0; axis < 2; ++axis)
        seen[axis] = sees(axes[axis], tile.first_query[axis], tile.num_queries[axis], tile.first_key[axis],
                          tile.num_keys[axis], queries.device());
    // (rows, columns, key rows, key columns).
    const auto both = seen[0].unsqueeze(1).unsqueeze(3).logical_and(seen[1].unsqueeze(0).unsqueeze(2));
    const auto mask = both.flatten(2, 3).flatten(0, 1);
    return at::softmax(at::matmul(queries * scale, keys.transpose(2, 3))
                           .masked_fill_(mask.logical_not(), -std::numeric_limits<double>::infinity()),
                       -1);
}

void add_by_heads(const at::Tensor& to, const at::Tensor& addend)
{
    to.add_(addend.transpose(1, 2).unflatten(1, to.sizes().slice(kGridRows, 2)));
}

void compose_forward(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                     const std::array<GridAxis, 2>& axes, double scale, const at::Tensor& output)
{
    const auto type = output.scalar_type();
    for (const auto& tile : tiles(axes)) {
        const auto of_keys = [&](const at::Tensor& tensor) {
            return by_heads(rectangle(tensor, tile.first_key, tile.num_keys), type);
        };
        const auto q = by_heads(rectangle(queries, tile.first_query, tile.num_queries), type);
        add_by_heads(rectangle(output, tile.first_query, tile.num_queries),
                     at::matmul(tile_weights(q, of_keys(keys), tile, axes, scale), of_keys(values)));
    }
}

void compose_backward(const at::Tensor& gradient, const at::Tensor& queries, const at::Tensor& keys,
                      const at::Tensor& values, const std::array<GridAxis, 2>& axes, double scale,
                      const std::array<at::Tensor, 3>& gradients)
{
    const auto type = gradients[0].scalar_type();
    for (const auto& tile : tiles(axes)) {
        const auto of_queries = [&](const at::Tensor& tensor) {
            return rectangle(tensor, tile.first_query, tile.num_queries);
        };
        const auto of_keys = [&](const at::Tensor& tensor) { return rectangle(tensor, tile.first_key, tile.num_keys); };
        const auto q = by_heads(of_queries(queries), type), g = by_heads(of_queries(gradient), type);
        const auto k = by_heads(of_keys(keys), type), v = by_heads(of_keys(values), type);
        const auto weights = tile_weights(q, k, tile, axes, scale);
        const auto of_weights = at::matmul(g, v.transpose(2, 3));
        const auto slopes = weights * (of_weights - (of_weights * weights).sum(-1, /*keepdim=*/true)) * scale;
        add_by_heads(of_queries(gradients[0]), at::matmul(slopes, k));
        add_by_heads(of_keys(gradients[1]), at::matmul(slopes.transpose(2, 3), q));
        add_by_heads(of_keys(gradients[2]), at::matmul(weights.transpose(2, 3), g));
    }
}

// --- the operators ---------------------------------------------------------------------------------------------------

std::array<GridAxis, 2> whole_axes(const at::Tensor& queries, at::IntArrayRef size, at::IntArrayRef dilation)
{
    std::array<GridAxis, 2> axes;
    for (int axis = 0; axis < 2; ++axis) {
        const auto length = queries.size(kGridRows + axis);
        axes[axis] = {{length, size[axis], 0, length, 0, length}, dilation[axis]};
    }
    return axes;
}

/// The second result holds the keys and values that ranks have received, for backward; empty for plain tensors.
std::tuple<at::Tensor, at::Tensor> plain_forward(const at::Tensor& queries, const at::Tensor& keys,
                                                 const at::Tensor& values, at::IntArrayRef size,
                                                 at::IntArrayRef dilation, double scale)
{
    return {grid_attention(queries, keys, values, whole_axes(queries, size, dilation), scale),
            at::empty({0}, queries.options())};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> plain_backward(const at::Tensor& gradient, const at::Tensor& queries,
                                                              const at::Tensor& keys, const at::Tensor& values,
                                                              const at::Tensor& /*received*/, at::IntArrayRef size,
                                                              at::IntArrayRef dilation, double scale)
{
    const auto gradients =
        grid_attention_backward(gradient, queries, keys, values, whole_axes(queries, size, dilation), scale);
    return {gradients[0], gradients[1], gradients[2]};
}

auto call_forward(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values, at::IntArrayRef size,
                  at::IntArrayRef dilation, double scale)
{
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("meshard::neighbourhood_attention", "")
                               .typed<decltype(plain_forward)>();
    return op.call(queries, keys, values, size, dilation, scale);
}

struct WithBackward : torch::autograd::Function<WithBackward> {
    static variable_list forward(AutogradContext* context, const at::Tensor& queries, const at::Tensor& keys,
                                 const at::Tensor& values, const std::vector<std::int64_t>& size,
                                 const std::vector<std::int64_t>& dilation, double scale)
    {
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        auto [output, received] = call_forward(queries, keys, values, size, dilation, scale);
        context->save_for_backward({queries, keys, values, received});
        context->saved_data["size"] = size;
        context->saved_data["dilation"] = dilation;
        context->saved_data["scale"] = scale;
        context->mark_non_differentiable({received});
        return {output, received};
    }

    static variable_list backward(AutogradContext* context, variable_list gradients)
    {
        refuse_second_derivative("neighbourhood_attention");
        static const auto op = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow("meshard::neighbourhood_attention_backward", "")
                                   .typed<decltype(plain_backward)>();
        const auto saved = context->get_saved_variables();
        const auto [of_queries, of_keys, of_values] =
            op.call(gradients[0], saved[0], saved[1], saved[2], saved[3], context->saved_data["size"].toIntVector(),
                    context->saved_data["dilation"].toIntVector(), context->saved_data["scale"].toDouble());
        return {of_queries, of_keys, of_values, at::Tensor(), at::Tensor(), at::Tensor()};
    }
};

std::tuple<at::Tensor, at::Tensor> recorded_forward(const at::Tensor& queries, const at::Tensor& keys,
                                                    const at::Tensor& values, at::IntArrayRef size,
                                                    at::IntArrayRef dilation, double scale)
{
    const auto results = WithBackward::apply(queries, keys, values, size.vec(), dilation.vec(), scale);
    return {results[0], results[1]};
}

TORCH_LIBRARY(meshard, library)
{
    library.def("neighbourhood_attention(Tensor query, Tensor key, Tensor value, int[] size, int[] dilation, float "
                "scale) -> (Tensor, Tensor)");
    library.def("neighbourhood_attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor "
                "received, int[] size, int[] dilation, float "
                "scale) -> "
                "(Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(meshard, CompositeExplicitAutograd, library)
{
    library.impl("neighbourhood_attention", plain_forward);
    library.impl("neighbourhood_attention_backward", plain_backward);
}

TORCH_LIBRARY_IMPL(meshard, Autograd, library)
{
    library.impl("neighbourhood_attention", recorded_forward);
}

[[noreturn]] void refuse(const std::string& what)
{
    throw InvalidInput("neighbourhood_attention: {}", what);
}

}  // namespace

std::pair<std::int64_t, std::int64_t> GridAxis::seen(std::int64_t begin, std::int64_t end) const
{
    if (begin >= end) return {begin, begin};
    // Windows move with their queries: the first and the last query of each group attend to the first and the last
    // keys.
    std::int64_t first = here.length, last = -1;
    for (std::int64_t group = 0; group < dilation; ++group) {
        const auto [first_query, num_queries] = entries_of_group(begin, end - begin, group, dilation);
        if (num_queries == 0) continue;
        const auto windows = windows_of_group(*this, group);
        first = std::min(first, windows.first_seen(first_query) * dilation + group);
        last =
            std::max(last, (windows.first_seen(first_query + num_queries - 1) + windows.window - 1) * dilation + group);
    }
    return {first, last + 1};
}

at::Tensor grid_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                          const std::array<GridAxis, 2>& axes, double scale)
{
    const auto type = attention_sum_type(queries.scalar_type());
    const auto output = at::zeros(queries.sizes(), queries.options().dtype(type));
    if (output.numel() == 0) return output.to(queries.scalar_type());
    if (!queries.is_cpu()) {
        compose_forward(queries, keys, values, axes, scale, output);
    } else {
        const auto q = with_adjacent_channels(queries, type), k = with_adjacent_channels(keys, type),
                   v = with_adjacent_channels(values, type);
        type == at::kDouble ? run_forward<double>(q, k, v, axes, scale, output)
                            : run_forward<float>(q, k, v, axes, scale, output);
    }
    return output.to(queries.scalar_type());
}

std::array<at::Tensor, 3> grid_attention_backward(const at::Tensor& gradient, const at::Tensor& queries,
                                                  const at::Tensor& keys, const at::Tensor& values,
                                                  const std::array<GridAxis, 2>& axes, double scale)
{
    const auto type = attention_sum_type(queries.scalar_type());
    std::array<at::Tensor, 3> gradients;
    for (int i = 0; i < 3; ++i)
        gradients[i] = at::zeros(i == 0 ? queries.sizes() : keys.sizes(), queries.options().dtype(type));
    if (queries.numel() > 0 && !queries.is_cpu()) {
        compose_backward(gradient, queries, keys, values, axes, scale, gradients);
    } else if (queries.numel() > 0) {
        const auto g = with_adjacent_channels(gradient, type), q = with_adjacent_channels(queries, type),
                   k = with_adjacent_channels(keys, type), v = with_adjacent_channels(values, type);
        type == at::kDouble ? run_backward<double>(g, q, k, v, axes, scale, gradients)
                            : run_backward<float>(g, q, k, v, axes, scale, gradients);
    }
    for (auto& one : gradients) one = one.to(queries.scalar_type());
    return gradients;
}

at::Tensor neighbourhood_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                                   const NeighbourhoodWindow& window, std::optional<double> scale)
{
    if (queries.dim() != 5 || keys.sizes() != queries.sizes() || values.sizes() != queries.sizes()) {
        refuse(fmt::format(
            "queries {}, keys {} and values {} must have one shape, (batch, rows, columns, heads, channels).",
            c10::str(queries.sizes()), c10::str(keys.sizes()), c10::str(values.sizes())));
    }
    if (!queries.is_floating_point() || keys.scalar_type() != queries.scalar_type() ||
        values.scalar_type() != queries.scalar_type())
        refuse("queries, keys and values must share one floating type.");
    for (int axis = 0; axis < 2; ++axis) {
        const auto size = window.size[axis], dilation = window.dilation[axis], length = queries.size(kGridRows + axis);
        const std::string name = axis == 0 ? "rows" : "columns";
        if (size < 1 || dilation < 1)
            refuse(fmt::format("a window of {} {} with dilation {}; both must be at least 1.", size, name, dilation));
        if (size > length / dilation) {
            refuse(fmt::format("a window of {} {} with dilation {} needs a grid of at least {} {}; this one has {}.",
                               size, name, dilation, size * dilation, name, length));
        }
    }
    const auto factor =
        scale.value_or(1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, queries.size(kGridChannels)))));
    return std::get<0>(call_forward(queries, keys, values, window.size, window.dilation, factor));
}

}  // namespace meshard
