// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/mesh/data_array.h"
#include "partition/mesh/mesh_faults.h"
#include "partition/mesh/mesh_graph.h"
#include "partition/mesh/stored_mesh.h"
#include "sharding/messages/rank_messages.h"
#include "sharding/windows/window_graph.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace meshard {

class NearestGraph;

/// The cells of a mesh that is too large for one memory, ordered along a Hilbert curve and divided into windows, which
/// are runs along the curve. A cell's index in that order is its **position**. Each rank has a run of windows; it reads
/// cells when it needs them, and fetches other data from the ranks that have it. The cells of a point cloud are its
/// points, and neighbours are the 8 nearest, as in `mesh_graph`; the same holds for a mesh of vertices.
///
/// Windows depend on the mesh and on `cells_a_window`, never on the number of ranks.
class CurveWindows {
public:
    /// Finds the windows and the neighbours across their borders. Graphs of windows are cached, up to `cache_bytes`.
    /// Collective.
    /// @throws InvalidInput for coordinates that are NaN or infinite, or in a cloud above 1e150; BadCell with the
    /// number in the file as `cell_graph`; IoError as `StoredMesh::cells`.
    CurveWindows(const StoredMesh& mesh, RankMessages& messages, std::int64_t cells_a_window, std::int64_t cache_bytes);
    ~CurveWindows();

    std::int32_t num_windows() const { return static_cast<std::int32_t>(begins_.size()) - 1; }
    std::int32_t first_window() const { return first_window_of(messages_.rank()); }
    std::int32_t end_window() const { return first_window_of(messages_.rank() + 1); }
    std::int64_t begin(std::int32_t window) const { return begins_[window]; }  ///< its first position
    std::int64_t size(std::int32_t window) const { return begins_[window + 1] - begins_[window]; }
    std::int32_t window_of(std::int64_t position) const;

    /// The largest number of windows of a rank, which is the number of rounds in a collective loop over windows.
    std::int32_t num_rounds() const;

    /// The window that a rank processes in a round, or -1.
    std::int32_t window_in_round(int rank, std::int32_t round) const
    {
        const auto window = first_window_of(rank) + round;
        return window < first_window_of(rank + 1) ? window : -1;
    }

    const RankRanges& positions() const { return positions_; }  ///< positions of each rank
    const RankRanges& points() const { return points_; }        ///< points whose data each rank keeps
    /// Cells, by number in the file, whose data each rank keeps.
    const RankRanges& cells() const { return cells_; }

    /// Number in the file of the cell at each of this rank's positions.
    std::span<const std::int32_t> ids() const { return ids_; }
    std::span<const std::int32_t> ids(std::int32_t window) const;

    /// The first cell that uses each of this rank's points, or -1; empty for a cloud.
    std::span<const std::int32_t> first_cells() const { return first_cells_; }
    std::vector<std::int32_t> take_first_cells() { return std::move(first_cells_); }

    /// Suspicious cells and points of the whole mesh. Collective; must be called before `take_first_cells`.
    MeshFaults faults() const;

    /// Facets of more than two cells, with numbers in the file: those on borders of windows, and those in graphs made
    /// so far. Collective.
    FacetCrowds crowds() const;

    const StoredMesh& mesh() const { return mesh_; }
    bool is_point_cloud() const { return mesh_.num_cells() == 0; }

    /// Centroids of the cells of a window, (cells, 3), as `row_centroids`; in single precision relative to the mesh's
    /// first point.
    template <class T>
    std::vector<T> centroids(std::int32_t window) const;

    /// The points of the rows of a window, in a cloud or a mesh of vertices; (rows, 3), in the file's type.
    DataArray points_of_rows(std::int32_t window) const;

    /// The cells of a window, as StoredMesh returns them; not for a cloud.
    Mesh cells(std::int32_t window) const { return mesh_.cells(ids(window)); }

    /// Neighbours within the window, by index in the window.
    Csr inner_graph(std::int32_t window) const;

    /// Neighbours in other windows, ascending.
    std::span<const Crossing> crossings(std::int32_t window) const;

    WindowGraph graph(std::int32_t window) const;

private:
    struct OnCurve {
        std::uint64_t key;
        std::int32_t id;

        auto operator<=>(const OnCurve&) const = default;
    };

    std::int32_t first_window_of(int rank) const
    {
        return static_cast<std::int32_t>(std::int64_t{num_windows()} * rank / messages_.size());
    }

    void find_box();
    std::vector<OnCurve> places(std::span<const std::int32_t> ids, const Mesh& cells) const;
    std::vector<OnCurve> find_splitters(std::int64_t num_windows) const;
    void deal_cells(const std::vector<OnCurve>& splitters);
    std::vector<bool> find_shared_points() const;
    void find_crossings(const std::vector<bool>& is_shared);
    void find_nearest();
    Csr inner_graph_of(std::int32_t window, const Mesh& cells) const;
    void keep_inner_graph(std::int32_t window, const Mesh& cells);
    void add_faults(std::int32_t window, const Mesh& cells);

    const StoredMesh& mesh_;
    RankMessages& messages_;
    RankRanges cells_, points_, positions_;
    std::array<double, 3> low_{};
    double scale_ = 0;
    CellDimensions dimensions_{};
    std::vector<std::int64_t> begins_;
    std::vector<std::int32_t> ids_;
    std::vector<std::int32_t> first_cells_;
    bool rows_are_points_ = false;
    std::unique_ptr<NearestGraph> nearest_;  // if rows are points
    std::vector<Crossing> crossings_;        // if rows are not points
    MeshFaults faults_;                      // found in this rank's cells
    // Pairs of neighbours in one window that share a facet on its border.
    std::vector<Crossing> inner_crossings_;
    // For each window of this rank, the points that other windows use too.
    std::vector<std::vector<std::int32_t>> border_points_;
    mutable FacetCrowds crowds_;
    std::int64_t cache_left_;
    std::vector<std::optional<Csr>> cache_;  // graphs of this rank's windows
};

}  // namespace meshard
