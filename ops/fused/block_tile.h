// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/block_weights.h"
#include "ops/fused/tile_functions.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace meshard {

constexpr std::size_t kCacheLine = 64;  // bytes of a cache line of common processors

struct DeleteLines {
    void operator()(void* lines) const { ::operator delete(lines, std::align_val_t(kCacheLine)); }
};

/// An array that starts at a cache line: a vector of 64 bytes across two lines is read and written in two accesses.
template <class T>
using LineArray = std::unique_ptr<T[], DeleteLines>;

/// `count` numbers, not initialised. T: float or double.
template <class T>
LineArray<T> make_lines(std::int64_t count)
{
    return LineArray<T>(
        static_cast<T*>(::operator new(static_cast<std::size_t>(count) * sizeof(T), std::align_val_t(kCacheLine))));
}

/// Sizes of an attention block on points, with the letters used in comments.
struct BlockShape {
    std::int64_t channels = 0;       ///< C
    std::int64_t heads = 1;          ///< H
    std::int64_t head_dim = 1;       ///< D
    std::int64_t slices = 1;         ///< S
    std::int64_t hidden = 0;         ///< R: hidden channels of the MLP
    std::int64_t outputs = 0;        ///< O: outputs of a head after the MLP; 0: no head
    bool point_temperature = false;  ///< Transolver++: every point has its own temperature, and one projection is used
                                     ///< for both x_mid and features
    const ActivationFunction* activation = nullptr;  ///< activation of the MLP; null: gelu

    std::int64_t inner() const { return heads * head_dim; }  ///< I
    std::int64_t out_channels() const { return outputs > 0 ? outputs : channels; }
    std::int64_t num_sums() const { return heads * slices * (head_dim + 1); }
    /// Numbers that the first half computes for each point.
    std::int64_t projected() const { return (point_temperature ? 1 : 2) * inner(); }
};

/// Gradients of a block's weights, initially zero: pointers into `values`.
template <class T>
struct BlockGradients : BlockWeights<T*> {
    explicit BlockGradients(const BlockShape& shape);
    BlockGradients(BlockGradients&&) = default;  // the pointers stay valid: moving a vector does not move its memory
    void add(const BlockGradients& other);

    std::vector<T> values;
};

/// The activations of a tile of n points that backward needs besides the block's input; kept from forward or computed
/// again.
template <class T>
struct BlockActivations {
    T* x_mid = nullptr;     ///< (I, n), projected points
    T* features = nullptr;  ///< (I, n), whose means are the slices' tokens; null if these are x_mid
    T* mixed = nullptr;     ///< (I, n), the slices' states, weighted and summed at the points
    T* residual = nullptr;  ///< (n, C), after attention
    T* hidden = nullptr;    ///< (n, R), before the activation
    T* last = nullptr;      ///< (n, C), before the head; null without a head
    TileNoise noise;        ///< added to the slices' logits

    /// Pointers to consecutive arrays for n points, beginning at `memory`.
    static BlockActivations in(T* memory, const BlockShape& shape, std::int64_t n);
    static std::int64_t floats_per_point(const BlockShape& shape);
};

/// One attention block (Wu et al. 2024, Transolver) on a tile of points, so small that the data of each stage fit a
/// core's second-level cache:
///
///     x' = x + out(deslice(w, states)),  w = softmax(slice(project_x(norm1(x)))),  y = x' + mlp(norm2(x'))
///     result = y or head(norm3(y))
///
/// or, if points have temperatures t = max(bias + gelu(out(gelu(hidden(h)))), 0.01) of h = project_x(norm1(x)),
/// softmax((slice(h) + noise) / t) (Luo et al. 2025, Transolver++, section 3.2). Sums over the points of all tiles are
/// needed: of the slices in forward (`add_slice_sums`), of the gradients of their states in backward. Hence forward and
/// backward each make two passes over the tiles, and the softmax weights w are not kept after their tile.
template <class T>
class BlockTile {
public:
    using Weights = BlockWeights<const T*>;

    BlockTile(const BlockShape& shape, std::int64_t max_points);

    /// First half: computes x_mid and features from x (n, C), and adds to `sums` (H, S, D + 1) the weighted features,
    /// then the weights.
    void add_slice_sums(const Weights& weights, const T* x, std::int64_t n, const BlockActivations<T>& kept,
                        double* sums);

    /// Compute x_mid, or x_mid and features, if those of the first half were not kept.
    void project(const Weights& weights, const T* x, std::int64_t n, const BlockActivations<T>& kept);
    void project_both(const Weights& weights, const T* x, std::int64_t n, const BlockActivations<T>& kept);

    /// Second half: computes `result` (n, C) or (n, O), which may be x, from x, x_mid and `states` (H, S, D); fills
    /// mixed, residual, hidden and last. If `result` is null, it only fills these.
    void second_half(const Weights& weights, const T* x, const T* states, std::int64_t n,
                     const BlockActivations<T>& kept, T* result);

    /// Backward of the second half: computes `x_gradient` (n, C) and `mixed_gradient` (I, n) from the result's
    /// gradient; adds to `states_gradient` (H, S, D) and, unless null, to the weights' gradients.
    void second_half_backward(const Weights& weights, std::int64_t n, const BlockActivations<T>& kept,
                              const T* result_gradient, T* x_gradient, T* mixed_gradient, double* states_gradient,
                              BlockGradients<T>* gradients);

    /// Computes `mixed_gradient` again from the `x_gradient` that `second_half_backward` wrote.
    void mix_backward(const Weights& weights, const T* x_gradient, std::int64_t n, T* mixed_gradient) const;

    /// Backward of the first half, and of the softmax for both halves: adds to `x_gradient` and, unless null, to the
    /// weights' gradients.
    ///
    /// @param sums_gradient   (H, S, D + 1), as `sums`
    void add_slice_sums_backward(const Weights& weights, const T* x, const T* states, const T* sums_gradient,
                                 std::int64_t n, const BlockActivations<T>& kept, const T* mixed_gradient,
                                 T* x_gradient, BlockGradients<T>* gradients);

private:
    void normalize(const T* x, const Affine<const T*>& norm, std::int64_t n);
    void project_rows(const Affine<const T*>& projection, std::int64_t n, T* rows) const;
    const T* features(const BlockActivations<T>& kept) const
    {
        return shape_.point_temperature ? kept.x_mid : kept.features;
    }
    /// The weights of a head's slices, (S, n), valid until the next call. Heads must be in ascending order: the first
    /// one draws the noise of all.
    const T* weigh(const Weights& weights, const BlockActivations<T>& kept, std::int64_t head, std::int64_t n);
    void compute_temperatures(const Weights& weights, const T* x_mid, std::int64_t head, std::int64_t n);
    void temperatures_backward(const Weights& weights, const T* x_mid, std::int64_t head, std::int64_t n,
                               T* logits_gradient, T* x_mid_gradient, BlockGradients<T>* gradients);
    const T* backward_of_head(const Weights& weights, std::int64_t n, const T* last, const T* result_gradient,
                              BlockGradients<T>* gradients);

    BlockShape shape_;
    LineArray<T> memory_;
    T *normal_, *slice_weights_, *weights_gradient_, *hidden_, *hidden_gradient_, *last_gradient_, *rows_, *more_rows_,
        *mean_, *inverse_, *small_;
    T *logits_, *before_, *after_, *after_gradient_, *raw_, *temperature_,
        *temperature_gradient_;  // with temperatures of points; for one head, only the logits for all heads
};

/// Two linear layers with an activation in between, (n, in) to (n, out), on a tile of points.
template <class T>
class MlpTile {
public:
    struct Weights {
        const T *hidden, *hidden_bias, *out, *out_bias, *activation;  // activation: its parameter; null if it has none
    };
    struct Gradients {
        T *hidden, *hidden_bias, *out, *out_bias, *activation;
    };

    MlpTile(std::int64_t in, std::int64_t hidden, std::int64_t out, const ActivationFunction* activation,
            std::int64_t max_points);

    /// @param offset   (out), added to every point; may be null
    void forward(const Weights& weights, const T* x, const T* offset, std::int64_t n, T* result);

    /// Computes the hidden layer again. Adds to the gradients of the weights and the offset; writes the gradient of x
    /// unless null.
    void backward(const Weights& weights, const T* x, std::int64_t n, const T* result_gradient, T* x_gradient,
                  const Gradients& gradients, T* offset_gradient);

private:
    void hide(const Weights& weights, const T* x, std::int64_t n);

    std::int64_t in_, hidden_, out_;
    const ActivationFunction* activation_;
    LineArray<T> before_, after_, gradient_;  // (n, hidden)
};

inline constexpr double kMinPointTemperature = 0.01;

/// Number of points of a tile such that the data of each stage of a block fit the second-level cache.
std::int64_t points_per_tile(const BlockShape& shape, std::int64_t bytes_per_number);

}  // namespace meshard
