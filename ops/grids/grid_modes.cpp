// SPDX-License-Identifier: Apache-2.0
#include "ops/grids/grid_modes.h"

#include "ops/slices/slice_layout.h"
#include "partition/error.h"
#include "sharding/tensor/exact_mode.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numbers>
#include <vector>

namespace meshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kFirst = 2;  // dimension of the grid's first direction, after samples and channels

/// One direction of a grid, and this rank's share of it.
struct Direction {
    std::int64_t dim = 0;
    std::int64_t size = 0;       ///< entries of the whole
    std::int64_t begin = 0;      ///< this rank's first entry
    std::int64_t count = 0;      ///< number of this rank's entries
    std::int64_t num_modes = 0;  ///< m
    bool is_last = false;        ///< the last direction, of which only low modes are kept
    bool is_cut = false;

    std::int64_t num_kept() const { return is_last ? num_modes : 2 * num_modes; }
};

using Directions = std::vector<Direction>;

void require_modes(const char* where, at::IntArrayRef sizes, at::IntArrayRef num_modes)
{
    const auto d = std::ssize(num_modes);
    bool fits = d >= 1 && std::ssize(sizes) == d + kFirst;
    for (std::int64_t a = 0; fits && a < d; ++a) {
        const auto most = a + 1 == d ? sizes[kFirst + a] / 2 + 1 : sizes[kFirst + a];
        fits = num_modes[a] >= 1 && num_modes[a] <= most;
    }
    if (fits) return;
    throw InvalidInput(
        "{}: modes {} cannot be kept of a grid of shape {}; it is (batch, channels, n_1, ..., n_d), with 1 "
        "to n_a modes along each direction, along the last one 1 to n_d / 2 + 1.",
        where, c10::str(num_modes), c10::str(sizes));
}

/// The layout in which a grid is transformed: its own, with pending sums reduced and directions gathered whose parts
/// are not ranges. Null for a plain tensor.
SpecPtr transformed_spec(const at::Tensor& grid)
{
    if (!is_sharded(grid)) return nullptr;
    reduce_partials({grid});
    const auto& spec = spec_of(grid);
    auto axes = spec->axes;
    std::vector<bool> is_cut(grid.dim(), false);
    for (auto& axis : axes) {
        if (!axis.is_shard()) continue;
        const auto dim = axis.placement.dim;
        const bool is_direction = dim >= kFirst;
        if (is_direction && (axis.blocks > 1 || is_cut[dim] || exact_mode()))
            axis = {};
        else
            is_cut[dim] = true;
    }
    return make_spec(spec->device_mesh, axes);
}

Directions directions_of(at::IntArrayRef sizes, const SpecPtr& spec, at::IntArrayRef num_modes)
{
    Directions directions;
    for (std::size_t a = 0; a < num_modes.size(); ++a) {
        Direction direction{.dim = kFirst + static_cast<std::int64_t>(a),
                            .num_modes = num_modes[a],
                            .is_last = a + 1 == num_modes.size()};
        direction.size = direction.count = sizes[direction.dim];
        const auto axis = spec ? spec->axis_of_dim(direction.dim) : -1;
        if (axis >= 0 && spec->device_mesh->size(axis) > 1) {
            const auto coordinate = spec->device_mesh->coordinate(axis);
            direction.is_cut = true;
            direction.begin = spec->axes[axis].offset(coordinate);
            direction.count = (*spec->axes[axis].extents)[coordinate];
        }
        directions.push_back(direction);
    }
    return directions;
}

bool cuts_direction(const AxisLayout& axis)
{
    return axis.is_shard() && axis.placement.dim >= kFirst;
}

/// Layout of the modes of a grid with this layout: whole along every direction.
SpecPtr modes_spec(const SpecPtr& spec)
{
    if (!spec) return nullptr;
    auto axes = spec->axes;
    for (auto& axis : axes) {
        if (cuts_direction(axis)) axis = {};
    }
    return make_spec(spec->device_mesh, axes);
}

/// Sums the ranks' shares of the modes along dimension `dim`; each rank gets the modes that `layout` gives it. Shares
/// are added in rank order, so that the bits are always the same.
at::Tensor sum_of_shares(const at::Tensor& modes, const AxisLayout& layout, const RankGroup& group)
{
    const auto dim = layout.placement.dim;
    const auto own = (*layout.extents)[group.rank()];
    const auto rows = at::view_as_real(modes.movedim(dim, 0).contiguous());
    const std::vector<std::int64_t> receive(group.size(), own);
    const auto parts = group.all_to_all_rows(rows, *layout.extents, receive);
    auto sum = parts.narrow(0, 0, own).clone();
    for (std::int64_t r = 1; r < group.size(); ++r) sum.add_(parts.narrow(0, r * own, own));
    return at::view_as_complex(sum).movedim(0, dim).contiguous();
}

/// This rank's part, in the layout `of_modes`, of the sums over all ranks of the modes of a grid with the layout
/// `spec`.
at::Tensor summed(at::Tensor modes, const SpecPtr& spec, const SpecPtr& of_modes)
{
    if (!spec) return modes;
    if (std::ranges::all_of(spec->axes, cuts_direction) && std::ranges::none_of(of_modes->axes, cuts_direction)) {
        auto numbers = at::view_as_real(modes);
        spec->device_mesh->all().all_reduce(numbers);
        return modes;
    }
    for (std::size_t a = 0; a < spec->axes.size(); ++a) {
        const auto& layout = of_modes->axes[a];
        const auto& group = spec->device_mesh->group(static_cast<std::int64_t>(a));
        const bool is_shared = cuts_direction(layout);
        if (is_shared && cuts_direction(spec->axes[a])) {
            modes = sum_of_shares(modes, layout, group);
        } else if (is_shared) {  // the grid has been gathered
            modes = narrow_to_shard(modes, layout, group.rank()).contiguous();
        } else if (cuts_direction(spec->axes[a])) {
            auto numbers = at::view_as_real(modes);
            group.all_reduce(numbers);
        }
    }
    return modes;
}

/// `modes_spec` with the modes of the last direction cut among the ranks of the grid's first cut axis.
SpecPtr shared_modes_spec(const at::Tensor& grid, const SpecPtr& spec, at::IntArrayRef shares)
{
    if (shares.empty()) return modes_spec(spec);
    const auto axis = axis_of_directions(grid);
    const auto num_ranks = axis < 0 ? 1 : spec->device_mesh->size(axis);
    if (axis < 0 || num_ranks != std::ssize(shares)) {
        throw InvalidInput(
            "grid_modes: the modes are cut among {} ranks, and the grid among {}. Cut both among the same ranks.",
            shares.size(), num_ranks);
    }
    auto axes = modes_spec(spec)->axes;
    axes[axis] = {Shard(grid.dim() - 1), std::make_shared<const Extents>(shares.vec()), 1};
    return make_spec(spec->device_mesh, axes);
}

/// exp(-2 pi i k r / n) for the kept modes k (rows) and this rank's entries r (columns). Phases are computed in
/// integers, so that large k r lose no precision.
at::Tensor transform_matrix(const Direction& direction, const at::TensorOptions& options)
{
    const auto whole = options.dtype(at::kLong), real = options.dtype(at::kDouble);
    const auto turn = at::arange(direction.size, real) * (-2 * std::numbers::pi / static_cast<double>(direction.size));
    auto modes = at::arange(direction.num_modes, whole);
    if (!direction.is_last) modes = at::cat({modes, modes + (direction.size - direction.num_modes)});
    const auto entries = at::arange(direction.begin, direction.begin + direction.count, whole);
    const auto phases = (modes.unsqueeze(1) * entries).remainder(direction.size).flatten();
    return at::polar(at::ones_like(turn), turn)
        .index_select(0, phases)
        .view({direction.num_kept(), direction.count})
        .to(options.dtype());
}

/// Multiplies the vectors of `x` along `dim` by the matrix, in their own precision: there are no complex numbers of
/// that of autocast.
at::Tensor product_along(const at::Tensor& matrix, const at::Tensor& x, std::int64_t dim)
{
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    return at::matmul(x.movedim(dim, -1), matrix.t()).movedim(-1, dim);
}

at::TensorOptions complex_options(const at::Tensor& x)
{
    return x.options().dtype(c10::toComplexType(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
}

/// The shape of a tensor with other extents along the directions.
template <class Extent>
std::vector<std::int64_t> shape_with(const at::Tensor& tensor, const Directions& directions, const Extent& extent)
{
    auto shape = tensor.sizes().vec();
    for (const auto& direction : directions) shape[direction.dim] = extent(direction);
    return shape;
}

/// This rank's share of the modes of its real entries (..., n_1, ..., n_d).
at::Tensor transformed(const at::Tensor& local, const Directions& directions)
{
    if (local.numel() == 0)  // FFTs do not accept empty tensors
        return at::zeros(shape_with(local, directions, [](const Direction& direction) { return direction.num_kept(); }),
                         complex_options(local));
    auto x = local.scalar_type() == at::kDouble ? local : local.to(at::kFloat);
    for (auto direction = directions.rbegin(); direction != directions.rend(); ++direction) {
        const auto m = direction->num_modes;
        if (direction->is_cut) {
            const auto matrix = transform_matrix(*direction, complex_options(local));
            if (direction->is_last)
                x = at::complex(product_along(at::real(matrix), x, direction->dim),
                                product_along(at::imag(matrix), x, direction->dim));
            else
                x = product_along(matrix, x, direction->dim);
        } else if (direction->is_last) {
            x = at::fft_rfft(x, std::nullopt, direction->dim).narrow(direction->dim, 0, m);
        } else {
            x = at::fft_fft(x, std::nullopt, direction->dim);
            x = at::cat({x.narrow(direction->dim, 0, m), x.narrow(direction->dim, direction->size - m, m)},
                        direction->dim);
        }
    }
    return x.contiguous();
}

/// The adjoint: sum over the kept modes k of Re(y(k) exp(2 pi i sum k_a r_a / n_a)) at this rank's entries r.
at::Tensor transformed_back(const at::Tensor& modes, const Directions& directions)
{
    const auto shape = shape_with(modes, directions, [](const Direction& direction) { return direction.count; });
    if (c10::multiply_integers(shape) == 0)
        return at::zeros(shape, modes.options().dtype(c10::toRealValueType(modes.scalar_type())));
    auto y = modes;
    for (const auto& direction : directions) {
        const auto m = direction.num_modes, n = direction.size;
        if (direction.is_cut) {
            const auto back = transform_matrix(direction, y.options()).conj_physical().t();  // (entries, modes)
            if (direction.is_last)
                y = product_along(at::real(back), at::real(y), direction.dim) -
                    product_along(at::imag(back), at::imag(y), direction.dim);
            else
                y = product_along(back, y, direction.dim);
        } else if (direction.is_last) {
            // A real inverse transform counts every mode but those that are their own conjugates twice.
            auto half = y * 0.5;
            half.select(direction.dim, 0).mul_(2);
            if (2 * (m - 1) == n) half.select(direction.dim, m - 1).mul_(2);
            y = at::fft_irfft(half, n, direction.dim, "forward");
        } else {
            auto whole = y.sizes().vec();
            whole[direction.dim] = n;
            auto all = at::zeros(whole, y.options());
            all.narrow(direction.dim, 0, m).copy_(y.narrow(direction.dim, 0, m));
            all.narrow(direction.dim, n - m, m).add_(y.narrow(direction.dim, m, m));
            y = at::fft_ifft(all, std::nullopt, direction.dim, "forward");
        }
    }
    return y.contiguous();
}

/// Factors of the inverse transform: 1 / (n_1 ... n_d), and two for each mode along the last direction that also
/// represents its conjugate.
at::Tensor inverse_factors(const Directions& directions, const at::Tensor& modes)
{
    double cells = 1;
    for (const auto& direction : directions) cells *= static_cast<double>(direction.size);
    const auto& last = directions.back();
    auto factors =
        at::full({last.num_modes}, 2 / cells, modes.options().dtype(c10::toRealValueType(modes.scalar_type())));
    factors[0] = 1 / cells;
    if (2 * (last.num_modes - 1) == last.size) factors[last.num_modes - 1] = 1 / cells;
    return factors;
}

struct GridModes : torch::autograd::Function<GridModes> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& grid, std::vector<std::int64_t> num_modes,
                              const std::vector<std::int64_t>& shares)
    {
        const auto spec = transformed_spec(grid);
        const auto of_modes = shared_modes_spec(grid, spec, shares);
        const auto modes = transformed(local_in(grid, spec), directions_of(grid.sizes(), spec, num_modes));
        context->save_for_backward({grid});
        context->saved_data["num_modes"] = std::move(num_modes);
        return wrapped(summed(modes, spec, of_modes), of_modes);
    }

    static variable_list backward(AutogradContext* context, variable_list gradients)
    {
        refuse_second_derivative("grid_modes");
        const auto grid = context->get_saved_variables()[0];
        const auto spec = transformed_spec(grid);
        const auto directions = directions_of(grid.sizes(), spec, context->saved_data["num_modes"].toIntVector());
        reduce_partials(gradients);
        return {wrapped(transformed_back(local_in(gradients[0], modes_spec(spec)), directions).to(grid.scalar_type()),
                        spec),
                {},
                {}};
    }
};

struct GridFromModes : torch::autograd::Function<GridFromModes> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& modes, const at::Tensor& like,
                              std::vector<std::int64_t> num_modes)
    {
        const auto spec = transformed_spec(like);
        const auto directions = directions_of(like.sizes(), spec, num_modes);
        if (is_sharded(modes)) reduce_partials({modes});
        const auto local = local_in(modes, modes_spec(spec));
        context->save_for_backward({like});
        const auto axis = axis_of_directions(modes);
        context->saved_data["shares"] = axis < 0 ? Extents() : *spec_of(modes)->axes[axis].extents;
        context->saved_data["num_modes"] = std::move(num_modes);
        return wrapped(transformed_back(local * inverse_factors(directions, local), directions).to(like.scalar_type()),
                       spec);
    }

    static variable_list backward(AutogradContext* context, variable_list gradients)
    {
        refuse_second_derivative("grid_from_modes");
        const auto like = context->get_saved_variables()[0];
        const auto spec = transformed_spec(like);
        const auto directions = directions_of(like.sizes(), spec, context->saved_data["num_modes"].toIntVector());
        reduce_partials(gradients);
        const auto shares = context->saved_data["shares"].toIntVector();
        const auto of_modes = shared_modes_spec(like, spec, shares);
        const auto modes = summed(transformed(local_in(gradients[0], spec), directions), spec, of_modes);
        auto factors = inverse_factors(directions, modes);
        if (!shares.empty()) {
            const auto axis = of_modes->axis_of_dim(modes.dim() - 1);
            factors = narrow_to_shard(factors, {Shard(0), of_modes->axes[axis].extents, 1},
                                      of_modes->device_mesh->coordinate(axis));
        }
        return {wrapped(modes * factors, of_modes), {}, {}};
    }
};

}  // namespace

std::int64_t axis_of_directions(const at::Tensor& grid)
{
    if (!is_sharded(grid)) return -1;
    const auto& axes = spec_of(grid)->axes;
    const auto found = std::ranges::find_if(axes, cuts_direction);
    return found == axes.end() ? -1 : found - axes.begin();
}

at::Tensor grid_modes(const at::Tensor& grid, at::IntArrayRef num_modes, at::IntArrayRef shares)
{
    require_modes("grid_modes", grid.sizes(), num_modes);
    return GridModes::apply(grid, num_modes.vec(), shares.vec());
}

at::Tensor grid_from_modes(const at::Tensor& modes, const at::Tensor& like, at::IntArrayRef num_modes)
{
    require_modes("grid_from_modes", like.sizes(), num_modes);
    bool fits = modes.dim() == like.dim() && modes.size(0) == like.size(0);
    for (std::size_t a = 0; fits && a < num_modes.size(); ++a)
        fits = modes.size(kFirst + static_cast<std::int64_t>(a)) == (a + 1 == num_modes.size() ? 1 : 2) * num_modes[a];
    if (!fits)
        throw InvalidInput("grid_from_modes: modes of shape {} are not modes {} of a grid of shape {}.",
                           c10::str(modes.sizes()), c10::str(num_modes), c10::str(like.sizes()));
    return GridFromModes::apply(modes, like, num_modes.vec());
}

}  // namespace meshard
