// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace meshard {

/// Arithmetic of one kind that a training step repeats, counted over all its calls on one rank.
struct Operation {
    enum class Kind : std::uint8_t {
        Product,             ///< of matrices (rows, inner) and (inner, columns)
        Softmax,             ///< over slices
        SoftmaxGradient,     ///< from the gradient of its results to that of the logits
        Activation,          ///< of an MLP
        ActivationGradient,  ///< with the activation itself
        Norm,                ///< layer norm
        NormGradient,        ///< with the gradients of its scale and shift
        Sum,                 ///< of rows or columns
        Noise,               ///< of Transolver++'s slices
        Exponentials,        ///< one by one, from memory to memory
        Pass                 ///< nothing but reading and writing
    };

    Kind kind = Kind::Pass;
    std::string part;      ///< of the step: `slices`, `mlp`, ...
    double calls = 1;      ///< all other figures but `rows`, `columns` and `inner` are of all calls together
    bool in_tile = false;  ///< on a tile of points that stays in a core's cache: `bytes` is 0

    std::int64_t rows = 0, columns = 0, inner = 0;    ///< of a product
    bool transposed_a = false, transposed_b = false;  ///< whether an operand is stored as its transpose
    double numbers = 0;                               ///< that the other kinds work on
    double bytes = 0;                                 ///< read from memory and written to it
    double launches = 1;                              ///< of kernels on a GPU

    double flop() const
    {
        return kind == Kind::Product ? 2.0 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(inner) * calls : 0.0;
    }
};

/// Parts of a step, as reports name them.
namespace step_part {
inline constexpr const char *kInputs = "inputs", *kProjections = "projections", *kSlices = "slices", *kAttention = "attention", *kMlp = "mlp",
                            *kNorms = "norms", *kHead = "head", *kContext = "context", *kEdges = "edges", *kNodes = "nodes", *kKept = "kept numbers",
                            *kOptimizer = "optimizer", *kSmall = "small operators";
}

/// What computes a step.
enum class WorkForm : std::uint8_t {
    Cpu,  ///< blocks of slice attention tile by tile in the cache, all else by LibTorch's operators
    Gpu   ///< products and norms by LibTorch's operators on many points at a time, slices by kernels that keep no weights of slices
};

}  // namespace meshard
