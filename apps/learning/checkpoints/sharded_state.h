// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/ghosts/index_map.h"
#include "sharding/ranks/device_mesh.h"

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace meshard {

/// A tensor of a saved state, plain or sharded.
struct NamedState {
    std::string name;
    at::Tensor tensor;
    /// Global ids of the rows that are cut on the axis `domain`, if they come from a partition; else those of the tensor's layout,
    /// else rows count as they lie, rank after rank.
    std::shared_ptr<const IndexMap> index_map = nullptr;
};

/// Saves tensors as they lie: a folder with one safetensors file a rank, and index.json, which names them and is written last.
///
///     index.json                      shapes and types of the wholes, names and sizes of the files, `metadata`
///     part-<generation>-<rank>.safetensors   the rank's part of each tensor; NAME#rows<d> lists the runs (first, count) of dimension d that it is
///
/// No rank gathers anything. What several ranks hold alike, one writes; of plain tensors rank 0. A save that is cut short leaves the
/// earlier state of that folder as it was; files of an earlier state go when the new one is complete. Collective over all ranks of
/// `device_mesh`, which must see one file system.
/// @throws InvalidInput on every rank if ranks differ in names, shapes or types, a name occurs twice, a type cannot be stored, or an
/// index map does not
///         fit its tensor; IoError on every rank if one cannot write.
void save_sharded(const std::filesystem::path& folder, const std::vector<NamedState>& state, const DeviceMesh& device_mesh,
                  const std::map<std::string, std::string>& metadata = {});

/// Reads values into tensors as they lie now, bit by bit: on any number of ranks, cut in any way, in the order of any partition. Every
/// rank reads what it holds and no more. Returns the metadata. Collective likewise.
/// @throws IoError on every rank if a file is missing, damaged or of another save, or a tensor is missing or of another shape or type,
/// naming it.
std::map<std::string, std::string> load_sharded(const std::filesystem::path& folder, const std::vector<NamedState>& state, const DeviceMesh& device_mesh);

}  // namespace meshard
