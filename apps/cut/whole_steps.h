// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/cut/cut_steps.h"
#include "apps/cut/mesh_cut.h"
#include "partition/csr.h"
#include "partition/cut/partition.h"
#include "partition/ghosts/ghost_layer.h"

#include <vector>

namespace meshard {

/// The steps on a mesh that is whole in the memory of a single process.
class WholeSteps : public CutSteps {
public:
    /// The object keeps references to both arguments. It frees a large mesh while it is not needed, if
    /// `source.read_again` can read it again.
    WholeSteps(Mesh& mesh, const MeshSource& source) : mesh_(mesh), source_(source), num_cells_(mesh.num_cells()) {}

    const Mesh& mesh() const override { return mesh_; }
    std::int64_t num_cells() const override { return num_cells_; }
    void find_graph(CutJob& job) override;
    void cut(CutJob& job) override;
    void find_ghosts(CutJob& job) override;
    FacetCrowds crowds() const override { return crowds_; }
    UnjoinedCells unjoined_cells() const override { return unjoined_; }
    void extract_parts(CutJob& job, ShardSink& sink) override;
    void dump(CutJob& job, const std::filesystem::path& folder) override;
    void draw(CutJob& job, const std::filesystem::path& png) override;

private:
    Mesh& mesh_;
    const MeshSource& source_;
    std::int64_t num_cells_;
    FacetCrowds crowds_;
    UnjoinedCells unjoined_;
    Csr graph_;
    Partition partition_;
    std::vector<GhostLayer> ghosts_;
};

}  // namespace meshard
