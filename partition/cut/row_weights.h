// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/mesh/mesh.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// Weights of the rows of a mesh by name, all of which are balanced at the same time:
///
/// | name       | weight of a row                                                                             |
/// | ---------- | ------------------------------------------------------------------------------------------- |
/// | cells      | 1                                                                                           |
/// | points     | the number of points that it owns: those that no earlier cell uses                          |
/// | faces      | 1 + the number of its neighbours in `graph`                                                 |
/// | array:NAME | its value in that array of the mesh (a cell array; of a cloud, a point array), not negative |
///
/// @return (rows, names). Values of an array that are not integers, or too large, are scaled to a sum of about 2^30.
/// @throws InvalidInput for an unknown name, a missing array, one with several components, a negative or NaN value, or
/// if all weights are zero.
std::vector<std::int32_t> row_weights(const Mesh& mesh, const Csr& graph, std::span<const std::string> names);

/// Scales the values of a weight to integers with a sum of about 2^30; integers whose sum is at most that stay as they
/// are.
class WeightScale {
public:
    WeightScale(double total, bool are_integers);
    std::int32_t operator()(double value) const;

private:
    double factor_;
};

/// The array of that name. @throws InvalidInput if there is none, or it has several components.
const DataArray& require_weight_array(std::span<const DataArray> arrays, const std::string& name,
                                      std::string_view group);

/// @param has_some   whether any row has a weight above zero, or there are no rows
/// @throws InvalidInput if not
void require_some_weight(std::span<const std::string> names, bool has_some);

/// The value of a row. @throws InvalidInput if it is negative, infinite or NaN.
double require_weight(const DataArray& array, std::int64_t row);

/// Weights from the costs of the parts of an earlier run: each part's cost is divided evenly among its rows.
/// @param costs   one for each part of `earlier`, positive, in any unit (e.g. seconds).
std::vector<std::int32_t> weights_from_costs(const std::vector<std::int32_t>& earlier_owners,
                                             std::span<const double> costs);

}  // namespace meshard
