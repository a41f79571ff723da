// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/block_work.h"

#include "ops/fused/device_block.h"

#include <algorithm>
#include <cmath>

namespace meshard {

using namespace step_part;

BlockWork::BlockWork(std::vector<Operation>& operations, const BlockShape& shape, double points, WorkForm form, double size, bool noise)
    : operations_(operations), shape_(shape), points_(points), form_(form), size_(size), noise_(noise)
{
    const auto limit = form == WorkForm::Cpu ? points_per_tile(shape, 4) : kDeviceTilePoints;
    tile_ = std::max<std::int64_t>(1, std::min(limit, static_cast<std::int64_t>(std::llround(points))));
    tiles_ = points / static_cast<double>(tile_);
}

Operation& BlockWork::add(Operation::Kind kind, const std::string& part, double calls)
{
    auto& operation = operations_.emplace_back();
    operation.kind = kind;
    operation.part = part;
    operation.calls = calls * tiles_;
    operation.launches = std::ceil(operation.calls);
    operation.in_tile = form_ == WorkForm::Cpu;
    return operation;
}

/// One number of a row or column stands for a point: `tile_`.
void BlockWork::product(const std::string& part, std::int64_t rows, std::int64_t columns, std::int64_t inner, bool transposed_a, bool transposed_b,
                        double calls)
{
    auto& operation = add(Operation::Kind::Product, part, calls);
    operation.rows = rows;
    operation.columns = columns;
    operation.inner = inner;
    operation.transposed_a = transposed_a;
    operation.transposed_b = transposed_b;
    if (!operation.in_tile) operation.bytes = size_ * operation.calls * static_cast<double>(rows * inner + inner * columns + rows * columns);
}

/// A product of each head; on a GPU in the kernel that `weigh` counts.
void BlockWork::of_heads(std::int64_t rows, std::int64_t columns, std::int64_t inner, bool transposed_a, bool transposed_b)
{
    product(kSlices, rows, columns, inner, transposed_a, transposed_b, static_cast<double>(shape_.heads));
    operations_.back().bytes = 0;
    operations_.back().launches = 0;
}

void BlockWork::numbers(Operation::Kind kind, const std::string& part, double per_point, double memory_accesses)
{
    auto& operation = add(kind, part, 1);
    operation.numbers = per_point * points_;
    if (!operation.in_tile) operation.bytes = size_ * memory_accesses * points_;
}

/// The head's outputs, which a GPU pads to rows of whole words.
std::int64_t BlockWork::outputs() const
{
    return form_ == WorkForm::Gpu ? (shape_.outputs + 7) / 8 * 8 : shape_.outputs;
}

void BlockWork::normalize()
{
    const auto C = static_cast<double>(shape_.channels);
    numbers(Operation::Kind::Norm, kNorms, C, 2 * C);
}

/// The weights of all heads' slices.
/// @param read_and_written   numbers of each point that a GPU's kernel takes from memory and brings there
void BlockWork::weigh(double read_and_written)
{
    const auto H = static_cast<double>(shape_.heads), S = static_cast<double>(shape_.slices);
    of_heads(shape_.slices, tile_, shape_.head_dim, false, false);
    if (shape_.point_temperature) {
        of_heads(shape_.slices, tile_, shape_.head_dim, false, false);
        of_heads(1, tile_, shape_.slices, false, false);
        numbers(Operation::Kind::Activation, kSlices, H * (S + 1), 0);
        if (noise_) numbers(Operation::Kind::Noise, kSlices, H * S, 0);
    }
    numbers(Operation::Kind::Softmax, kSlices, H * S, read_and_written);
}

void BlockWork::project()
{
    normalize();
    product(kProjections, shape_.inner(), tile_, shape_.channels, false, true);
    if (form_ == WorkForm::Gpu && !shape_.point_temperature) product(kProjections, shape_.inner(), tile_, shape_.channels, false, true);
}

void BlockWork::project_both()
{
    project();
    if (form_ == WorkForm::Cpu && !shape_.point_temperature) product(kProjections, shape_.inner(), tile_, shape_.channels, false, true);
}

void BlockWork::add_slice_sums()
{
    project_both();
    weigh(2 * static_cast<double>(shape_.inner()));
    of_heads(shape_.slices, shape_.head_dim, tile_, false, true);
    numbers(Operation::Kind::Sum, kSlices, static_cast<double>(shape_.heads * shape_.slices), 0);
    operations_.back().launches = 0;
}

void BlockWork::bring_back(bool with_result)
{
    const auto C = shape_.channels, I = shape_.inner(), R = shape_.hidden, O = outputs();
    weigh(2 * static_cast<double>(I));
    of_heads(shape_.head_dim, tile_, shape_.slices, true, false);
    product(kProjections, tile_, C, I, true, true);
    numbers(Operation::Kind::Pass, kNorms, 0, 3 * static_cast<double>(C));
    normalize();
    product(kMlp, tile_, R, C, false, true);
    if (!with_result && O == 0) return;
    numbers(Operation::Kind::Activation, kMlp, static_cast<double>(R), 2 * static_cast<double>(R));
    product(kMlp, tile_, C, R, false, true);
    numbers(Operation::Kind::Pass, kNorms, 0, 3 * static_cast<double>(C));
    if (!with_result || O == 0) return;
    normalize();
    product(kHead, tile_, O, C, false, true);
}

void BlockWork::bring_back_backward(bool with_gradients, bool with_states)
{
    const auto C = shape_.channels, I = shape_.inner(), R = shape_.hidden, O = outputs();
    const auto c = static_cast<double>(C), r = static_cast<double>(R);
    const bool again = form_ == WorkForm::Cpu;  // norms are computed again rather than kept
    if (O > 0) {
        if (again) normalize();
        product(kHead, tile_, C, O, false, false);
        if (with_gradients) product(kHead, O, C, tile_, true, false);
        numbers(Operation::Kind::NormGradient, kNorms, c, 4 * c);
    }
    product(kMlp, tile_, R, C, false, false);
    numbers(Operation::Kind::ActivationGradient, kMlp, r, 3 * r);
    if (again) normalize();
    if (with_gradients) {
        product(kMlp, C, R, tile_, true, false);
        product(kMlp, R, C, tile_, true, false);
        numbers(Operation::Kind::Sum, kMlp, c + r, c + r);
    }
    product(kMlp, tile_, C, R, false, false);
    numbers(Operation::Kind::NormGradient, kNorms, c, 4 * c);
    mix_backward();
    if (with_gradients) {
        product(kProjections, C, I, tile_, true, true);
        numbers(Operation::Kind::Sum, kProjections, c, c);
    }
    if (!with_states) return;
    weigh(2 * static_cast<double>(I));
    of_heads(shape_.slices, shape_.head_dim, tile_, false, true);
}

void BlockWork::mix_backward()
{
    product(kProjections, shape_.inner(), tile_, shape_.channels, true, true);
}

void BlockWork::add_slice_sums_backward(bool with_gradients)
{
    const auto C = shape_.channels, D = shape_.head_dim, S = shape_.slices, I = shape_.inner();
    const auto c = static_cast<double>(C), i = static_cast<double>(I), hs = static_cast<double>(shape_.heads * S);
    const bool plus = shape_.point_temperature;
    weigh((plus ? 3 : 5) * i);
    of_heads(S, tile_, D, false, false);
    of_heads(S, tile_, D, false, false);
    of_heads(D, tile_, S, true, false);
    numbers(Operation::Kind::SoftmaxGradient, kSlices, hs, 0);
    if (plus) {
        of_heads(S, tile_, D, false, false);
        of_heads(1, tile_, S, false, false);
        of_heads(S, tile_, 1, true, false);
        if (with_gradients) {
            of_heads(S, 1, tile_, false, true);
            of_heads(S, D, tile_, false, true);
        }
        of_heads(D, tile_, S, true, false);
        numbers(Operation::Kind::Activation, kSlices, hs, 0);
        numbers(Operation::Kind::ActivationGradient, kSlices, hs, 0);
    }
    of_heads(D, tile_, S, true, false);
    if (with_gradients) {
        of_heads(S, D, tile_, false, true);
        numbers(Operation::Kind::Sum, kSlices, hs, 0);
        operations_.back().launches = 0;
    }

    if (form_ == WorkForm::Cpu) normalize();
    if (form_ == WorkForm::Gpu && !plus && with_gradients) product(kProjections, 1, D, S, false, false, 2 * static_cast<double>(shape_.heads));  // both biases
    for (int k = 0; k < (plus ? 1 : 2); ++k) {
        if (with_gradients) {
            product(kProjections, I, C, tile_, false, false);
            numbers(Operation::Kind::Sum, kProjections, i, i);
        }
        product(kProjections, tile_, C, I, true, false);
    }
    numbers(Operation::Kind::NormGradient, kNorms, c, 5 * c);
}

void BlockWork::stream(double read, double written)
{
    if (form_ == WorkForm::Gpu) return;
    auto& operation = add(Operation::Kind::Pass, kKept, 1);
    operation.in_tile = false;
    operation.bytes = size_ * (read + 2 * written) * points_;  // a line is read before it is written
}

Operation& RowWork::add(Operation::Kind kind)
{
    auto& operation = operations_.emplace_back();
    operation.kind = kind;
    operation.part = part_;
    return operation;
}

void RowWork::numbers(Operation::Kind kind, double per_row, double accesses_per_row)
{
    auto& operation = add(kind);
    operation.numbers = per_row * rows_;
    operation.bytes = size_ * accesses_per_row * rows_;
}

void RowWork::product(std::int64_t rows, std::int64_t columns, std::int64_t inner, double calls)
{
    auto& operation = add(Operation::Kind::Product);
    operation.calls = calls;
    operation.rows = rows;
    operation.columns = columns;
    operation.inner = inner;
    operation.bytes = size_ * calls *
                      (static_cast<double>(rows) * static_cast<double>(inner) + static_cast<double>(inner) * static_cast<double>(columns) +
                       static_cast<double>(rows) * static_cast<double>(columns));
}

void RowWork::linear(std::int64_t in, std::int64_t out, bool wants_input_gradient, std::int64_t fold)
{
    const auto n = static_cast<std::int64_t>(std::llround(rows_)) * fold;
    product(n, out, in);
    if (form_ == WorkForm::Cpu) pass(2 * static_cast<double>(out * fold));  // the bias is written first, and the product added; a GPU adds both at once
    product(out, in, n);
    operations_.back().transposed_a = true;
    pass(static_cast<double>(out * fold));  // the bias's gradient
    if (wants_input_gradient) product(n, in, out);
}

void RowWork::norm(std::int64_t channels)
{
    const auto c = static_cast<double>(channels);
    numbers(Operation::Kind::Norm, c, 2 * c);
    numbers(Operation::Kind::NormGradient, c, 5 * c);
    operations_.back().launches = 2;
}

void RowWork::activation(std::int64_t channels)
{
    const auto c = static_cast<double>(channels);
    numbers(Operation::Kind::Activation, c, 2 * c);
    numbers(Operation::Kind::ActivationGradient, c, 3 * c);
}

void RowWork::exponentials(double per_row, double accesses_per_row)
{
    numbers(Operation::Kind::Exponentials, per_row, accesses_per_row);
}

void RowWork::pass(double accesses_per_row)
{
    numbers(Operation::Kind::Pass, 0, accesses_per_row);
}

}  // namespace meshard
