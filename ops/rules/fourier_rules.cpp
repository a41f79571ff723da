// SPDX-License-Identifier: Apache-2.0
// Fourier transforms: a transformed dimension must be whole; its sharding is moved to another dimension, and back
// afterwards.
#include "ops/rules/rank_parts.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// Shards the transformed dimensions as before if their sizes are the same, otherwise evenly.
AxisLayouts back_to(const RuleCall& call, const AxisLayouts& before, c10::IntArrayRef sizes)
{
    auto axes = before;
    for (std::size_t a = 0; a < axes.size(); ++a) {
        if (!axes[a].is_shard() || axes[a].blocks * axes[a].total() == sizes[axes[a].placement.dim]) continue;
        const auto extents =
            even_extents(sizes[axes[a].placement.dim], call.device_mesh()->size(static_cast<std::int64_t>(a)));
        axes[a] = {axes[a].placement, std::make_shared<Extents>(extents), 1};
    }
    return axes;
}

/// _fft_r2c(self, dim, normalization, onesided), _fft_c2c(self, dim, normalization, forward), _fft_c2r(self, dim,
/// normalization, last_dim_size)
void transform(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    auto dims = call.arg(1).toIntVector();
    if (dims.empty() || tensor.numel() == 0) return gathered_rule(call);
    for (auto& dim : dims) dim = from_front(dim, tensor.dim());
    call.reduce({tensor});
    const auto before = layouts_of(call, tensor), during = layouts_off_dims(call, tensor, dims);
    const auto local = local_of(with_layouts(call, tensor, during));
    const auto spec = call.spec(during);
    if (local.numel() == 0) {
        auto shape = tensor.sizes().vec();
        if (call.name() == "aten::_fft_c2r") shape[dims.back()] = call.arg(3).toInt();
        if (call.name() == "aten::_fft_r2c" && call.arg(3).toBool()) shape[dims.back()] = shape[dims.back()] / 2 + 1;
        const bool to_complex = call.name() == "aten::_fft_r2c", to_real = call.name() == "aten::_fft_c2r";
        const auto type = to_complex ? c10::toComplexType(local.scalar_type())
                          : to_real  ? c10::toRealValueType(local.scalar_type())
                                     : local.scalar_type();
        const auto none = wrap(at::empty(spec->local_shape(shape), local.options().dtype(type)), spec);
        return call.finish({with_layouts(call, none, back_to(call, before, none.sizes()))});
    }
    call.arg(0) = local;
    const auto result = wrap(call.run_local()[0].toTensor(), spec);
    call.push({with_layouts(call, result, back_to(call, before, result.sizes()))});
}

// LibTorch 2.11 composes these such that a transform along one dimension is never written to the given tensor: the two
// arguments of the last operator are swapped.
const RuleRegistration fourier_rules[] = {
    {"shortcuts", {"aten::fft_ihfft2.out", "aten::fft_ihfftn.out"}, out_rule},
    {"Fourier transforms", {"aten::_fft_r2c", "aten::_fft_c2c", "aten::_fft_c2r"}, transform},
};

}  // namespace
}  // namespace meshard
