// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>

namespace meshard {

/// What multiplies and what is added: of a linear layer, or a layer norm.
template <class Each>
struct Affine {
    Each weight{}, bias{};
};

/// Something of each weight of a block of slice attention, by name: the tensor, where its numbers lie, its gradient. Matrices are (out, in), as
/// torch::nn::Linear has them. What a block does not have is an undefined tensor, or null.
template <class Each>
struct BlockWeights {
    Affine<Each> norm1{}, project_x{}, project_fx{};  ///< project_fx: not where points have temperatures of their own
    Affine<Each> slices{};                            ///< of each head: (H, S, D) and (H, S), with the temperature unless points have their own
    Affine<Each> out{}, norm2{}, hidden{}, mlp_out{};
    Affine<Each> norm3{}, head{};  ///< of the last block only
    Each activation{};             ///< the number of the MLP's activation, (1), if it has one
    Each temperature{};            ///< (H), where points have temperatures of their own; what they come from, all heads share:
    Affine<Each> temperature_hidden{}, temperature_out{};

    /// Where each of them lies, in the order of lists.
    auto all() { return all_of(*this); }
    auto all() const { return all_of(*this); }

    /// f(weight) of each.
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
