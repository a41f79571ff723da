// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>

namespace meshard {

/// Weight and bias of a linear layer or a layer norm.
template <class Each>
struct Affine {
    Each weight{}, bias{};
};

/// One object for each weight of a block of slice attention: its tensor, a pointer to its numbers, or its gradient.
/// Matrices are (out, in), as in torch::nn::Linear. For weights that a block does not have, the tensor is undefined, or
/// the pointer null.
template <class Each>
struct BlockWeights {
    Affine<Each> norm1{}, project_x{}, project_fx{};  ///< project_fx is absent if points have temperatures
    /// (H, S, D) and (H, S), divided by the temperature unless points have temperatures.
    Affine<Each> slices{};
    Affine<Each> out{}, norm2{}, hidden{}, mlp_out{};
    Affine<Each> norm3{}, head{};  ///< only in the last block
    Each activation{};             ///< the parameter of the MLP's activation, (1), if it has one
    Each temperature{};  ///< (H), if points have temperatures; the layers that compute them are shared by all heads:
    Affine<Each> temperature_hidden{}, temperature_out{};

    /// Pointers to all members, in a fixed order.
    auto all() { return all_of(*this); }
    auto all() const { return all_of(*this); }

    /// Applies f to each weight.
    template <class F>
    auto map(const F& f) const
    {
        BlockWeights<std::invoke_result_t<F, const Each&>> mapped;
        const auto from = all();
        const auto to = mapped.all();
        for (std::size_t i = 0; i < from.size(); ++i) *to[i] = f(*from[i]);
        return mapped;
    }

private:
    template <class Weights>
    static auto all_of(Weights& w)
    {
        return std::array{&w.norm1.weight,
                          &w.norm1.bias,
                          &w.project_x.weight,
                          &w.project_x.bias,
                          &w.project_fx.weight,
                          &w.project_fx.bias,
                          &w.slices.weight,
                          &w.slices.bias,
                          &w.out.weight,
                          &w.out.bias,
                          &w.norm2.weight,
                          &w.norm2.bias,
                          &w.hidden.weight,
                          &w.hidden.bias,
                          &w.mlp_out.weight,
                          &w.mlp_out.bias,
                          &w.norm3.weight,
                          &w.norm3.bias,
                          &w.head.weight,
                          &w.head.bias,
                          &w.activation,
                          &w.temperature,
                          &w.temperature_hidden.weight,
                          &w.temperature_hidden.bias,
                          &w.temperature_out.weight,
                          &w.temperature_out.bias};
    }
};

}  // namespace meshard
