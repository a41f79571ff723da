// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/plan/operation.h"
#include "ops/fused/block_tile.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Counts what a fused block of slice attention does with a rank's points; each function is the stage of `BlockTile` of the same name, so that a step is
/// counted by calling them as `fused_block` and `streamed_blocks` do.
class BlockWork {
public:
    /// @param size   bytes of a number that goes through memory
    /// @param noise   of Transolver++'s slices, in training
    BlockWork(std::vector<Operation>& operations, const BlockShape& shape, double points, WorkForm form, double size, bool noise);

    void project();
    void project_both();
    void add_slice_sums();
    void bring_back(bool with_result = true);  ///< without: only what backward needs
    void bring_back_backward(bool with_gradients, bool with_states);
    void mix_backward();
    void add_slice_sums_backward(bool with_gradients);

    /// So many numbers of each point, read from memory and written to it by the tiles of a CPU; nothing on a GPU, where every operator's own are counted.
    void stream(double read, double written);

private:
    Operation& add(Operation::Kind kind, const std::string& part, double calls);
    void product(const std::string& part, std::int64_t rows, std::int64_t columns, std::int64_t inner, bool transposed_a, bool transposed_b, double calls = 1);
    void of_heads(std::int64_t rows, std::int64_t columns, std::int64_t inner, bool transposed_a, bool transposed_b);
    void numbers(Operation::Kind kind, const std::string& part, double per_point, double memory_accesses);
    void normalize();
    void weigh(double read_and_written);

    std::vector<Operation>& operations_;
    BlockShape shape_;
    double points_;
    std::int64_t outputs() const;

    WorkForm form_;
    double size_;
    bool noise_;
    std::int64_t tile_;
    double tiles_;
};

/// Counts what LibTorch's operators do with rows of a tensor, forward and backward, each through memory.
class RowWork {
public:
    RowWork(std::vector<Operation>& operations, std::string part, double rows, WorkForm form, double size)
        : operations_(operations), part_(std::move(part)), rows_(rows), form_(form), size_(size)
    {
    }

    /// A linear layer on `fold` pieces of each row.
    void linear(std::int64_t in, std::int64_t out, bool wants_input_gradient, std::int64_t fold = 1);
    void product(std::int64_t rows, std::int64_t columns, std::int64_t inner, double calls = 1);
    void norm(std::int64_t channels);
    void activation(std::int64_t channels);
    void exponentials(double per_row, double accesses_per_row);
    void pass(double accesses_per_row);  ///< an operator that reads and writes so many numbers of each row

private:
    Operation& add(Operation::Kind kind);
    void numbers(Operation::Kind kind, double per_row, double accesses_per_row);

    std::vector<Operation>& operations_;
    std::string part_;
    double rows_;
    WorkForm form_;
    double size_;
};

}  // namespace meshard
