// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/cut/cut_steps.h"
#include "apps/cut/mesh_cut.h"
#include "partition/ghosts/subdomain.h"
#include "partition/mesh/stored_mesh.h"
#include "sharding/messages/rank_messages.h"
#include "sharding/windows/curve_windows.h"
#include "sharding/windows/window_cut.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// The steps on a mesh that no process holds whole: with --max-memory, or on several ranks.
///
/// The cells are sorted along a Hilbert curve and cut into windows (curve_windows.h). Small clusters of cells within a
/// window are blocks; rank 0 cuts the weighted graph of the blocks by the chosen method, also with levels and connected
/// parts. Then each window moves single cells between parts, except those at its border, within its share of the
/// allowed imbalance. Ghosts, points and pieces are made part by part. For a point cloud the points take the place of
/// cells. The result depends on the mesh, the options and the allowed memory, not on the number of ranks. A rank holds
/// only its windows and the parts that it writes, and one bit for each point of the mesh.
class WindowSteps : public CutSteps {
public:
    /// Amounts that a rank holds at a time.
    struct Sizes {
        std::int64_t cells_a_window = 200'000;
        std::int64_t most_blocks = 2'000'000;
        std::int64_t cache_bytes = std::int64_t{1} << 40;
        std::int64_t dumped_cells = 4'000'000;
    };

    /// The object keeps references to all arguments.
    WindowSteps(const StoredMesh& mesh, const MeshSource& source, RankMessages& messages);
    ~WindowSteps() override;

    const Mesh& mesh() const override { return mesh_.rest(); }
    std::int64_t num_cells() const override { return mesh_.num_cells(); }
    void release_pages() const override { mesh_.release_pages(); }
    void find_graph(CutJob& job) override;
    void cut(CutJob& job) override;
    void find_ghosts(CutJob& job) override;
    FacetCrowds crowds() const override { return crowds_; }
    UnjoinedCells unjoined_cells() const override { return unjoined_; }
    void extract_parts(CutJob& job, ShardSink& sink) override;
    void dump(CutJob& job, const std::filesystem::path& folder) override;
    void draw(CutJob& job, const std::filesystem::path& png) override;
    std::vector<std::pair<std::string, std::string>> options() const override;

private:
    Mesh drawn_piece(std::int32_t round) const;
    Subdomain next_part(const Subdomain& like, std::int32_t first, std::int32_t part) const;

    const StoredMesh& mesh_;
    const MeshSource& source_;
    RankMessages& messages_;
    Sizes sizes_;
    FacetCrowds crowds_;
    UnjoinedCells unjoined_;
    std::optional<CurveWindows> windows_;
    std::optional<WindowCut> cut_;
};

/// Returns the bytes of a size such as 800M, 1G or 1.5GiB (powers of 1024). @throws UsageError
std::int64_t parse_memory_size(const std::string& text);

}  // namespace meshard
