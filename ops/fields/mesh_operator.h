// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fields/mesh_geometry.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace meshard {

/// Weights of some rows for each row of a result; a sparse matrix whose entries are vectors of 1 or 3 components.
struct Stencil {
    std::int64_t num_columns = 0;
    int components = 1;
    std::vector<std::int64_t> offsets{0};
    std::vector<std::int32_t> columns;
    std::vector<double> weights;  ///< (entries, components)

    struct Entry {
        std::int32_t column = 0;
        Vector3 weights{};  ///< the first `components` of them
    };

    std::int64_t num_rows() const { return static_cast<std::int64_t>(offsets.size()) - 1; }

    /// Adds a row: its entries in the order of their columns' ids, those of one column together. So a sum does not depend on the local numbering.
    void push_row(std::vector<Entry>& entries, std::span<const std::int64_t> ids);

    Stencil transposed() const;
};

/// A linear operator between fields of a mesh, made once and used often: gradient, Laplacian, means, ...
///
/// Works on fields of a whole mesh (plain) and of a cut one (cut in the same way) alike; on each rank's own rows the results are those of the whole
/// mesh. Collective on a cut one: one message of ghosts to each neighbour, on its way while rows that need none are worked on; the same again in
/// backward. Differentiable in the values. Values are of a floating type; sums run in double precision on the CPU.
class MeshOperator {
public:
    /// What happens to the three components of a weight.
    enum class Form : std::uint8_t {
        Scalar,     ///< (rows, ...) to (rows, ...)
        Gradient,   ///< (rows, ...) to (rows, ..., 3)
        Divergence  ///< (rows, ..., 3) to (rows, ...)
    };

    /// Whose ghosts travel.
    enum class Ghosts : std::uint8_t {
        OfInput,  ///< the stencil has a column for each local row of `from`, and a row for each owned one of `to`
        OfResult  ///< a column for each owned row of `from`, and a row for each local one of `to`: ghosts are added to their owners
    };

    /// `name` begins messages.
    MeshOperator(const char* name, const FieldLayout& from, const FieldLayout& to, Form form, Ghosts ghosts, Stencil stencil);

    /// @throws InvalidInput if the field does not lie as the mesh's fields do, or, for a divergence, if its last dimension is not 3
    at::Tensor operator()(const at::Tensor& field) const;

    /// The same weights as a divergence. @throws InvalidInput unless this is a gradient
    MeshOperator as_divergence(const char* name) const;

private:
    struct Shared;
    std::shared_ptr<const Shared> shared_;
    const char* name_;
    Form form_;
};

}  // namespace meshard
