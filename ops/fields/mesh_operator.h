// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fields/mesh_geometry.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace meshard {

/// A sparse matrix: for each row of a result the input rows (columns) that it is computed from, each with a weight of 1
/// or 3 components.
struct Stencil {
    std::int64_t num_columns = 0;
    int components = 1;
    std::vector<std::int64_t> offsets{0};
    std::vector<std::int32_t> columns;
    std::vector<double> weights;  ///< (entries, components)

    struct Entry {
        std::int32_t column = 0;
        Vector3 weights{};  ///< only the first `components` are used
    };

    std::int64_t num_rows() const { return std::ssize(offsets) - 1; }

    /// Appends a row. Its entries are sorted by the ids of their columns, and weights of the same column added, so that
    /// sums do not depend on the local numbering.
    void push_row(std::vector<Entry>& entries, std::span<const std::int64_t> ids);

    Stencil transposed() const;
};

/// A linear operator between fields of a mesh, made once and applied to many fields: gradient, Laplacian, means, ...
///
/// It takes plain fields of a whole mesh, and sharded fields of a mesh that is cut among ranks; each rank's owned rows
/// of the result equal those of the whole mesh. Collective on a cut mesh: each rank sends one message of ghosts to each
/// neighbour and meanwhile computes rows that need no ghosts; backward does the same. Differentiable in the values.
/// Values have a floating type; sums are computed in double precision on the CPU.
class MeshOperator {
public:
    /// How a weight's components are applied.
    enum class Form : std::uint8_t {
        Scalar,   ///< (rows, ...) to (rows, ...)
        Gradient  ///< (rows, ...) to (rows, ..., 3)
    };

    /// Whether ghosts of the input or of the result are exchanged.
    enum class Ghosts : std::uint8_t {
        /// Owners send rows of the input: the stencil has a column for each local row of `from`, and a row for each
        /// owned row of `to`.
        OfInput,
        /// Ghost rows of the result are added to their owners': a column for each owned row of `from`, and a row for
        /// each local row of `to`.
        OfResult
    };

    /// @param name   begins error messages
    MeshOperator(const char* name, const FieldLayout& from, const FieldLayout& to, Form form, Ghosts ghosts,
                 Stencil stencil);

    /// @throws InvalidInput if the field does not have the layout `from`
    at::Tensor operator()(const at::Tensor& field) const;

    /// For each row of the stencil, whether it has no entries, so that its result is always zero; (rows), bool.
    at::Tensor is_empty_row() const;

private:
    struct Shared;
    std::shared_ptr<const Shared> shared_;
    const char* name_;
    Form form_;
};

}  // namespace meshard
