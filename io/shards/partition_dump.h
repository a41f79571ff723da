// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "partition/csr.h"

namespace meshard {

/// The graph as METIS, KaHIP and others read it: a line `vertices edges`, then for each vertex its neighbours, numbered from 1.
/// `graph` must be symmetric. Atomic. @throws IoError
void write_metis_graph(const std::filesystem::path& path, const Csr& graph);

/// The part of each row, one number a line: what METIS's gpmetis writes as `graph.part.N`. Atomic. @throws IoError
void write_part_file(const std::filesystem::path& path, std::span<const std::int32_t> owners);

/// The part of each cell as OpenFOAM's `decomposePar` reads it with `method manual;` and
/// `manualCoeffs { dataFile "cellDecomposition"; }`, when the file lies in the case's `constant` folder. Atomic. @throws IoError
void write_foam_decomposition(const std::filesystem::path& path, std::span<const std::int32_t> owners);

/// Kinds of dumps from a list such as `metis,foam`. @throws InvalidInput naming an unknown one.
std::vector<std::string> parse_dump_kinds(std::string_view list);

/// Writes into `folder`, for `metis`: `mesh.graph` and `mesh.graph.part.<num_parts>`; for `foam`: `cellDecomposition` and a
/// `decomposeParDict` that names it. Returns the files written. @throws InvalidInput for an unknown kind, IoError
std::vector<std::filesystem::path> dump_partition(const std::filesystem::path& folder, std::span<const std::string> kinds, const Csr& graph,
                                                  std::span<const std::int32_t> owners, std::int32_t num_parts);

}  // namespace meshard
