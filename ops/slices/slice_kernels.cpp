// SPDX-License-Identifier: Apache-2.0
#include "ops/slices/slice_kernels.h"

#include "ops/rows/on_gpu.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

bool is_double(const at::Tensor& x)
{
    return x.scalar_type() == at::kDouble;
}

SlicedPoints<double> pointers(const at::Tensor& x, const at::Tensor& slices, const at::Tensor& bias,
                              const at::Tensor& log_sums)
{
    return {x.const_data_ptr<double>(),
            slices.const_data_ptr<double>(),
            bias.const_data_ptr<double>(),
            log_sums.data_ptr<double>(),
            x.size(0),
            slices.size(0),
            slices.size(1),
            slices.size(2)};
}

TileRows tile_rows(const at::Tensor& rows)
{
    return {rows.data_ptr(), rows.stride(0)};
}

}  // namespace

at::Tensor for_kernels(const at::Tensor& rows)
{
    const auto whole = rows.contiguous();
    return reinterpret_cast<std::uintptr_t>(whole.const_data_ptr()) % 16 == 0 ? whole : whole.clone();
}

TileMath tile_math(at::ScalarType type)
{
    if (type == at::kBFloat16) return TileMath::Bfloat16;
    if (type == at::kHalf) return TileMath::Float16;
    return at::globalContext().allowTF32CuBLAS() ? TileMath::Tf32 : TileMath::Float32;
}

SlicePoints::SlicePoints(const at::Tensor& x, const at::Tensor& slices, const at::Tensor& bias,
                         const at::Tensor& inverse_temperature, const at::Tensor& noise, const at::Tensor& log_sums)
    : x_(is_double(x) ? x.contiguous() : x), slices_(slices.contiguous()), bias_(bias.contiguous()),
      warmth_(inverse_temperature), noise_(noise), log_sums_(log_sums), has_log_sums_(log_sums.defined())
{
    if (has_log_sums_) return;
    log_sums_ = is_double(x) ? at::empty({x.size(0), slices.size(0)}, slices_.options())
                             : at::empty({slices.size(0), padded_points(x.size(0))}, slices_.options());
}

TilePoints SlicePoints::tiles() const
{
    return {tile_math(x_.scalar_type()),
            tile_rows(x_),
            slices_.const_data_ptr<float>(),
            bias_.const_data_ptr<float>(),
            warmth_.defined() ? warmth_.const_data_ptr<float>() : nullptr,
            noise_.defined() ? noise_.const_data_ptr<float>() : nullptr,
            log_sums_.data_ptr<float>(),
            x_.size(0),
            static_cast<int>(slices_.size(0)),
            static_cast<int>(slices_.size(1)),
            static_cast<int>(slices_.size(2))};
}

const at::Tensor& SlicePoints::log_sums()
{
    if (has_log_sums_) return log_sums_;
    by_kernels(x_, [&](const auto& executor) {
        if (is_double(x_))
            sum_exponentials(executor, pointers(x_, slices_, bias_, log_sums_));
        else
            find_log_sums(executor, tiles());
    });
    has_log_sums_ = true;
    return log_sums_;
}

at::Tensor SlicePoints::sums(const at::Tensor& values)
{
    const at::IntArrayRef shape = slices_.sizes();
    if (is_double(x_)) {
        log_sums();
        const auto given = values.contiguous();
        auto chunks = at::empty({num_slice_chunks(x_.size(0)), shape[0], shape[1], shape[2] + 1}, slices_.options());
        by_kernels(x_, [&](const auto& executor) {
            add_to_slices(executor, pointers(x_, slices_, bias_, log_sums_), given.const_data_ptr<double>(),
                          chunks.mutable_data_ptr<double>());
        });
        return chunks.sum(0);
    }
    auto found = at::empty({shape[0], shape[1], shape[2] + 1}, slices_.options());
    by_kernels(x_, [&](const auto& executor) {
        sum_in_slices(executor, tiles(), tile_rows(values), !has_log_sums_, found.mutable_data_ptr<float>());
    });
    has_log_sums_ = true;
    return found;
}

at::Tensor SlicePoints::point_means(const at::Tensor& values)
{
    auto found = at::empty({slices_.size(0), slices_.size(1), slices_.size(2) + 1}, slices_.options());
    by_kernels(x_, [&](const auto& executor) {
        find_point_means(executor, tiles(), tile_rows(values), found.mutable_data_ptr<float>());
    });
    has_log_sums_ = true;
    return found;
}

void SlicePoints::deslice(const at::Tensor& states, at::Tensor& result)
{
    log_sums();
    const auto given = states.contiguous();
    by_kernels(x_, [&](const auto& executor) {
        if (is_double(x_))
            bring_back_from_slices(executor, pointers(x_, slices_, bias_, log_sums_), given.const_data_ptr<double>(),
                                   result.mutable_data_ptr<double>());
        else
            deslice_rows(executor, tiles(), given.const_data_ptr<float>(), tile_rows(result));
    });
}

SlicePoints::Gradients SlicePoints::backward(const at::Tensor& features, const at::Tensor& states,
                                             const at::Tensor& sums_gradient, const at::Tensor& mixed_gradient,
                                             at::Tensor& x_gradient, at::Tensor& features_gradient,
                                             const at::Tensor& point_means)
{
    log_sums();
    const auto s = states.contiguous(), g = sums_gradient.contiguous();
    const auto D = slices_.size(2);
    Gradients gradients;
    at::Tensor sum;
    if (is_double(x_)) {
        const auto f = features.contiguous(), m = mixed_gradient.contiguous();
        auto of_x = at::empty_like(x_), of_features = at::empty_like(x_), means = at::empty_like(log_sums_),
             chunks = at::empty({num_slice_chunks(x_.size(0)), slices_.size(0), slices_.size(1), D + 1}, x_.options());
        by_kernels(x_, [&](const auto& executor) {
            const SliceGradients<double> of{s.const_data_ptr<double>(),      g.const_data_ptr<double>(),
                                            f.const_data_ptr<double>(),      m.const_data_ptr<double>(),
                                            of_x.mutable_data_ptr<double>(), of_features.mutable_data_ptr<double>(),
                                            means.mutable_data_ptr<double>()};
            slice_gradients(executor, pointers(x_, slices_, bias_, log_sums_), of, chunks.mutable_data_ptr<double>());
        });
        x_gradient.copy_(of_x);
        features_gradient.copy_(of_features);
        sum = chunks.sum(0);
    } else {
        sum = at::empty({slices_.size(0), slices_.size(1), D + 1}, slices_.options());
        if (warmth_.defined()) gradients.inverse_temperature = at::empty_like(warmth_);
        by_kernels(x_, [&](const auto& executor) {
            const TileGradients of{s.const_data_ptr<float>(),
                                   g.const_data_ptr<float>(),
                                   tile_rows(features),
                                   tile_rows(mixed_gradient),
                                   tile_rows(x_gradient),
                                   tile_rows(features_gradient),
                                   warmth_.defined() ? gradients.inverse_temperature.mutable_data_ptr<float>()
                                                     : nullptr,
                                   point_means.defined() ? point_means.const_data_ptr<float>() : nullptr};
            find_slice_gradients(executor, tiles(), of, sum.mutable_data_ptr<float>());
        });
    }
    gradients.slices = sum.narrow(2, 0, D);
    gradients.bias = sum.select(2, D);
    return gradients;
}

void round_totals(at::ScalarType type, const at::Tensor& states, const at::Tensor& sums,
                  const at::Tensor& state_gradients, at::Tensor& sums_gradient)
{
    if (type == at::kDouble || tile_math(type) == TileMath::Float32) return;
    const auto s = states.contiguous(), all = sums.contiguous(), of_states = state_gradients.contiguous();
    by_kernels(s, [&](const auto& executor) {
        round_totals(executor, tile_math(type), s.const_data_ptr<float>(), all.const_data_ptr<float>(),
                     of_states.const_data_ptr<float>(), sums_gradient.mutable_data_ptr<float>(), s.numel() / s.size(-1),
                     static_cast<int>(s.size(-1)));
    });
}

}  // namespace meshard
