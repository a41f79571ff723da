// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

/// Settings of a whole attention, softmax(scale * q k^T + mask) v, the same for all parts that ranks compute.
///
/// Queries are (B, H, L, D), keys (B, K, S, D), values (B, K, S, E); K divides H and head h of the queries attends to
/// head h / (H / K). A mask has four dimensions that broadcast to (B, H, L, S); it is added, or, of type bool, true
/// where a query attends to a key.
struct AttentionSettings {
    double scale = 1;
    bool causal = false;  ///< row i attends to keys 0 to i
    double dropout = 0;   ///< probability that a weight is dropped
    /// (B, H, L, S) for the whole: which weights are kept; if undefined, drawn from `seed` and the position in the
    /// whole.
    at::Tensor kept = {};
    std::int64_t seed = 0;
    std::int64_t first_batch = 0;  ///< index of this rank's first batch in the whole
    std::int64_t first_head = 0;   ///< index of this rank's first head in the whole
    std::int64_t num_heads = 1;    ///< number of heads of the whole
};

/// Rows `start` to `start + length - 1` of the whole sequence.
struct RowRange {
    std::int64_t start = 0, length = 0;
    std::int64_t end() const { return start + length; }
    bool operator==(const RowRange&) const = default;
};

/// Output (B, H, L, E) and logarithm of the sum of the exponentials of the scores (B, H, L).
struct AttentionOutput {
    at::Tensor output, log_sum_exp;
};

/// Attention of some queries to keys that are added block by block, by online softmax (Milakov and Gimelshein 2018);
/// blocks are merged by log-sum-exp as in Liu, Zaharia and Abbeel 2023.
class AttentionSum {
public:
    AttentionSum(const AttentionSettings& settings, at::Tensor queries, RowRange rows);

    /// Adds the keys and values of the rows `columns`. `mask` covers all queries and the keys from `first_masked` on;
    /// undefined for none.
    void add(const at::Tensor& keys, const at::Tensor& values, RowRange columns, const at::Tensor& mask,
             std::int64_t first_masked);

    /// Merges a partial result that another rank has computed for the queries from `row` on.
    void merge(const at::Tensor& output, const at::Tensor& log_sum_exp, std::int64_t row);

    /// Returns the output (B, H, L, E) in float (double for double inputs), or in the type of the queries if one kernel
    /// has computed it all, and the log-sum-exp (B, H, L) in float or double. Rows without any key get zero and minus
    /// infinity.
    AttentionOutput finish(std::int64_t value_size);

private:
    void start(std::int64_t value_size);

    const AttentionSettings& settings_;
    at::Tensor queries_;
    RowRange rows_;
    at::Tensor output_, log_sum_exp_;  // undefined before the first keys
};

/// Tensors of the queries for backward: (B, H, L, D), (B, H, L, E), (B, H, L, E) and (B, H, L). Output and log-sum-exp
/// are those over all keys; rows without any key have log-sum-exp 0.
struct AttentionQueries {
    at::Tensor queries, output_gradient, output, log_sum_exp;
    RowRange rows;

    AttentionQueries narrow(std::int64_t row, std::int64_t length) const;
};

/// Tensors to which gradients are added, in float or double; undefined for gradients that are not needed.
struct AttentionGradients {
    at::Tensor queries, keys, values, mask;
};

/// Adds the contribution of the keys and values of the rows `columns` to the gradients. `gradients.keys` and `.values`
/// are those of `columns`; the other gradients are those of all queries and of the whole mask.
void add_attention_gradients(const AttentionSettings& settings, const AttentionQueries& queries, const at::Tensor& keys,
                             const at::Tensor& values, RowRange columns, const at::Tensor& mask,
                             std::int64_t first_masked, const AttentionGradients& gradients);

/// Number of key rows in a piece: `on_cpus` on CPUs, more on a device, where each operator is a launch and a kernel
/// divides a piece among all multiprocessors.
std::int64_t piece_rows(const at::Tensor& keys, std::int64_t on_cpus);

/// The type in which attention adds values of `type`.
at::ScalarType attention_sum_type(at::ScalarType type);

}  // namespace meshard
