// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/cut/balance_target.h"
#include "partition/mesh/mesh.h"
#include "partition/cut/partition.h"

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// Middle of each row: the mean of a cell's points; of a cloud, the point. (rows, 3). A cell without points lies at the
/// origin.
std::vector<float> row_centers(const Mesh& mesh);

/// Recursive coordinate bisection (Berger and Bokhari 1987): cuts the rows in two across the longest side of their box, in
/// shares of what the parts on each side may take, and so on. Ties by row.
/// Without weights, parts are equal within one row; with several, each row counts with the mean of its shares.
/// @param centers (rows, 3). @throws InvalidInput if sizes disagree or the balance does not fit.
Partition partition_by_bisection(std::span<const float> centers, std::int32_t num_parts, const BalanceTarget& balance);

/// Runs of equal weight along the Hilbert curve through the rows' box. Ties by row. The fastest way to cut; parts may be in
/// several pieces. As for bisection otherwise.
Partition partition_by_curve(std::span<const float> centers, std::int32_t num_parts, const BalanceTarget& balance);

} // namespace meshard
