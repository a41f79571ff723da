// SPDX-License-Identifier: Apache-2.0
#include "ops/slices/slice_kernels.h"

#include "ops/rows/on_gpu.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// Calls `work(executor, number)` with the executor of the tensor's device; `number` is a null pointer of the tensor's type.
template <class Work>
void by_kernels(const at::Tensor& tensor, const Work& work)
{
    const auto typed = [&](const auto& executor) {
        if (tensor.scalar_type() == at::kDouble)
            work(executor, static_cast<double*>(nullptr));
        else
            work(executor, static_cast<float*>(nullptr));
    };
    if (tensor.is_cpu())
        typed(HostExecutor());
    else
        on_gpu(tensor, typed);
}

template <class T>
SlicedPoints<T> pointers(const at::Tensor& x, const at::Tensor& slices, const at::Tensor& bias, const at::Tensor& log_sums)
{
    return {x.const_data_ptr<T>(), slices.const_data_ptr<T>(), bias.const_data_ptr<T>(), log_sums.data_ptr<T>(), x.size(0), slices.size(0), slices.size(1),
            slices.size(2)};
}

}  // namespace

SlicePoints::SlicePoints(const at::Tensor& x, const at::Tensor& slices, const at::Tensor& bias)
    : x_(x.contiguous()), slices_(slices.contiguous()), bias_(bias.contiguous()), log_sums_(at::empty({x.size(0), slices.size(0)}, x.options()))
{
    by_kernels(x_, [&](const auto& executor, auto* number) {
        using T = std::remove_pointer_t<decltype(number)>;
        sum_exponentials(executor, pointers<T>(x_, slices_, bias_, log_sums_));
    });
}

at::Tensor SlicePoints::sums(const at::Tensor& features) const
{
    const auto given = features.contiguous();
    auto chunks = at::empty({num_slice_chunks(x_.size(0)), slices_.size(0), slices_.size(1), slices_.size(2) + 1}, x_.options());
    by_kernels(x_, [&](const auto& executor, auto* number) {
        using T = std::remove_pointer_t<decltype(number)>;
        add_to_slices(executor, pointers<T>(x_, slices_, bias_, log_sums_), given.const_data_ptr<T>(), chunks.mutable_data_ptr<T>());
    });
    return chunks.sum(0, /*keepdim=*/false, at::kDouble);
}

at::Tensor SlicePoints::deslice(const at::Tensor& states) const
{
    const auto given = states.contiguous();
    auto mixed = at::empty_like(x_);
    by_kernels(x_, [&](const auto& executor, auto* number) {
        using T = std::remove_pointer_t<decltype(number)>;
        bring_back_from_slices(executor, pointers<T>(x_, slices_, bias_, log_sums_), given.const_data_ptr<T>(), mixed.mutable_data_ptr<T>());
    });
    return mixed;
}

SlicePoints::Gradients SlicePoints::backward(const at::Tensor& features, const at::Tensor& states, const at::Tensor& sums_gradient,
                                             const at::Tensor& mixed_gradient) const
{
    const auto f = features.contiguous(), s = states.contiguous(), g = sums_gradient.contiguous(), m = mixed_gradient.contiguous();
    const auto D = slices_.size(2);
    Gradients gradients{at::empty_like(x_), at::empty_like(x_), {}, {}};
    auto means = at::empty_like(log_sums_), chunks = at::empty({num_slice_chunks(x_.size(0)), slices_.size(0), slices_.size(1), D + 1}, x_.options());
    by_kernels(x_, [&](const auto& executor, auto* number) {
        using T = std::remove_pointer_t<decltype(number)>;
        const SliceGradients<T> of{s.const_data_ptr<T>(),
                                   g.const_data_ptr<T>(),
                                   f.const_data_ptr<T>(),
                                   m.const_data_ptr<T>(),
                                   gradients.x.mutable_data_ptr<T>(),
                                   gradients.features.mutable_data_ptr<T>(),
                                   means.mutable_data_ptr<T>()};
        slice_gradients(executor, pointers<T>(x_, slices_, bias_, log_sums_), of, chunks.mutable_data_ptr<T>());
    });
    const auto sum = chunks.sum(0, /*keepdim=*/false, at::kDouble).to(x_.scalar_type());
    gradients.slices = sum.narrow(2, 0, D);
    gradients.bias = sum.select(2, D);
    return gradients;
}

bool fits_slice_kernels(std::int64_t head_dim)
{
    return head_dim <= kMaxHeadDim;
}

}  // namespace meshard
