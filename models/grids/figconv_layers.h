// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/grids/figconv_options.h"

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <memory>
#include <string>

namespace meshard {

// Layers of FIGConvUNet, with the parameter names of its checkpoints.

/// cos and sin of 2 pi 2^k s / range for k < width / 2, for each coordinate its cosines, then its sines: (..., d) to
/// (..., d width).
torch::Tensor wave_encoding(const torch::Tensor& positions, std::int64_t width, double range);

/// Crops the last two of four dimensions to the size of `like`, or pads them with zeros at the end.
torch::Tensor fitted(torch::Tensor image, const torch::Tensor& like);

/// Makes a module that holds another one under a name, as parameter names require.
std::shared_ptr<torch::nn::Module> holder(const char* name, const std::shared_ptr<torch::nn::Module>& module);

/// GELU(LN(fc2(GELU(LN(fc1 x)))) + shortcut x).
class ShortcutMlp : public torch::nn::Module {
public:
    ShortcutMlp(std::int64_t in, std::int64_t out);

    torch::Tensor forward(const torch::Tensor& x) { return finished(fc1_(x), shortcut_(x)); }

    /// The same function for edges whose inputs are the concatenation of a source row, a target row and numbers of
    /// their own: the first layers are applied to source and target rows before these are gathered, since each has many
    /// edges.
    /// @param own   (edges, ...), undefined if edges have no numbers of their own
    torch::Tensor of_edges(const torch::Tensor& sources, const torch::Tensor& from, const torch::Tensor& targets,
                           const torch::Tensor& to, const torch::Tensor& own);

private:
    torch::Tensor finished(const torch::Tensor& hidden, const torch::Tensor& beside);

    std::int64_t out_;
    torch::nn::Linear fc1_{nullptr}, fc2_{nullptr}, shortcut_{nullptr};
    torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
};

/// Messages along the pairs of points and vertices, in one direction.
class FigConvMessages : public torch::nn::Module {
public:
    FigConvMessages(std::int64_t sources, std::int64_t targets, std::int64_t channels,
                    const FigConvUNetOptions& options);

    /// Returns (edges, C). @param offsets   positions of sources minus those of targets, (edges, 3)
    torch::Tensor messages(const torch::Tensor& sources, const torch::Tensor& from, const torch::Tensor& targets,
                           const torch::Tensor& to, const torch::Tensor& offsets) const;

    /// Converts `edge_sums`, (..., width), to (..., C).
    torch::Tensor finished(const torch::Tensor& sums) const;

private:
    const FigConvUNetOptions options_;
    std::int64_t channels_;
    std::shared_ptr<ShortcutMlp> edges_, out_;
};

/// Two convolutions with a shortcut, on one plane, (B, C, rows, columns).
class FigConvPlaneBlock : public torch::nn::Module {
public:
    enum class Step { Halves, Keeps, Doubles, KeepsTransposed };

    FigConvPlaneBlock(std::int64_t in, std::int64_t out, std::int64_t kernel, Step step);

    torch::Tensor forward(const torch::Tensor& image);

private:
    torch::nn::AnyModule conv1_, conv2_, shortcut_;
    torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
};

/// Pools a plane to one row: (B, C, rows, columns) to (B, out).
class FigConvPlanePool : public torch::nn::Module {
public:
    /// @param type   `max`, `mean` or `attention`
    FigConvPlanePool(std::int64_t in, std::int64_t out, std::string type);

    torch::Tensor forward(const torch::Tensor& image);

private:
    std::string type_;
    torch::nn::Conv2d conv_{nullptr};
    torch::nn::Linear qkv_{nullptr}, out_{nullptr};
    torch::nn::LayerNorm norm_{nullptr};
};

/// GELU(LN(linear x)) without a bias.
class FigConvLinearBlock : public torch::nn::Module {
public:
    FigConvLinearBlock(std::int64_t in, std::int64_t out);

    torch::Tensor forward(const torch::Tensor& x);

private:
    torch::nn::Linear linear_{nullptr};
    torch::nn::LayerNorm norm_{nullptr};
};

/// GELU(LN(linear(GELU(LN(linear x)))) + shortcut x).
class FigConvResidualBlock : public torch::nn::Module {
public:
    FigConvResidualBlock(std::int64_t in, std::int64_t out);

    torch::Tensor forward(const torch::Tensor& x);

private:
    torch::nn::Linear first_{nullptr}, second_{nullptr}, shortcut_{nullptr};
    torch::nn::LayerNorm first_norm_{nullptr}, second_norm_{nullptr};
};

}  // namespace meshard
