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

/// The cells of a mesh that is too large for one memory, in the order of a Hilbert curve and cut into windows, runs along the curve. A cell's
/// index in that order is its **position**. Windows are dealt out to the ranks in runs; each rank knows its own, takes cells when it
/// needs them, and asks others for the rest. Of a point cloud the cells are its points, and neighbours are the 8 nearest, as in `mesh_graph`; so they are of
/// a mesh of vertices.
///
/// Windows depend on the mesh and on `cells_a_window`, never on the number of ranks.
class CurveWindows {
public:
    /// Collective. Finds the windows and the neighbours across their borders. Up to `cache_bytes` of graphs are kept for later.
    /// @throws InvalidInput for coordinates that are NaN or infinite, or of a cloud above 1e150, BadCell with the number in the file as `cell_graph`, IoError
    /// as `StoredMesh::cells`.
    CurveWindows(const StoredMesh& mesh, RankMessages& messages, std::int64_t cells_a_window, std::int64_t cache_bytes);
    ~CurveWindows();

    std::int32_t num_windows() const { return static_cast<std::int32_t>(begins_.size()) - 1; }
    std::int32_t first_window() const { return first_window_of(messages_.rank()); }
    std::int32_t end_window() const { return first_window_of(messages_.rank() + 1); }
    std::int64_t begin(std::int32_t window) const { return begins_[window]; }  ///< its first position
    std::int64_t size(std::int32_t window) const { return begins_[window + 1] - begins_[window]; }
    std::int32_t window_of(std::int64_t position) const;

    /// Windows that the rank with most has: what all go through together takes so many rounds.
    std::int32_t num_rounds() const;

    /// The window that a rank goes through in a round, or -1.
    std::int32_t window_in_round(int rank, std::int32_t round) const
    {
        const auto window = first_window_of(rank) + round;
        return window < first_window_of(rank + 1) ? window : -1;
    }

    const RankRanges& positions() const { return positions_; }  ///< of each rank
    const RankRanges& points() const { return points_; }        ///< rank that keeps what there is to say of a point
    const RankRanges& cells() const { return cells_; }          ///< the same for cells by their number in the file

    std::span<const std::int32_t> ids() const { return ids_; }  ///< number in the file of each of this rank's positions
    std::span<const std::int32_t> ids(std::int32_t window) const;

    /// First cell that uses each of this rank's points, or -1; nothing for a cloud.
    std::span<const std::int32_t> first_cells() const { return first_cells_; }
    std::vector<std::int32_t> take_first_cells() { return std::move(first_cells_); }

    /// Collective. What is suspicious about the whole mesh. While there are `first_cells`.
    MeshFaults faults() const;

    /// Collective. Facets of more than two cells, with numbers in the file, on the borders of windows and in the graphs that were made so far.
    FacetCrowds crowds() const;

    const StoredMesh& mesh() const { return mesh_; }
    bool is_point_cloud() const { return mesh_.num_cells() == 0; }

    /// Centroids of the cells of a window, (cells, 3), as `row_centroids`.
    std::vector<float> centroids(std::int32_t window) const;

    /// The points that the rows of a window are, in a cloud or a mesh of vertices; (rows, 3), in the file's type.
    DataArray points_of_rows(std::int32_t window) const;

    /// The cells of a window, as StoredMesh gives them; not of a cloud.
    Mesh cells(std::int32_t window) const { return mesh_.cells(ids(window)); }

    /// Neighbours within the window, by index in it.
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

    std::int32_t first_window_of(int rank) const { return static_cast<std::int32_t>(std::int64_t{num_windows()} * rank / messages_.size()); }

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
    std::unique_ptr<NearestGraph> nearest_;                 // of rows that are points
    std::vector<Crossing> crossings_;                       // of others
    MeshFaults faults_;                                     // of this rank's cells
    std::vector<Crossing> inner_crossings_;                 // neighbours in one window by facets on its border
    std::vector<std::vector<std::int32_t>> border_points_;  // points of each window of this rank that others use, too
    mutable FacetCrowds crowds_;
    std::int64_t cache_left_;
    std::vector<std::optional<Csr>> cache_;  // of this rank's windows
};

}  // namespace meshard
