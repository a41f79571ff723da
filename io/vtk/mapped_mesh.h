// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/mapped_file.h"
#include "partition/mesh/stored_mesh.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// A mesh that stays in its file: the caller reads only the cells that it needs, so that the file may be larger than
/// memory and several processes may read different parts of it.
///
/// For files whose arrays can be used without decoding: .vtu and .vtp of one piece, appended raw and not compressed,
/// and .vtkhdf of one partition whose data sets are contiguous.
class MappedMesh : public StoredMesh {
public:
    /// @throws IoError if the file is missing, damaged, or of a form that cannot be mapped; the message then says how
    /// to convert it.
    explicit MappedMesh(const std::filesystem::path& path);

    const Mesh& rest() const override { return rest_; }  ///< points and arrays are views into the file
    std::int64_t num_cells() const override { return num_cells_; }
    std::int64_t num_cell_entries() const override;
    Mesh cells(std::span<const std::int32_t> cells) const override;
    void release_pages() const override;

private:
    // Cells in one list of the file. Entries of cell i end at ends[i], or at ends[i + 1] if the list begins with 0.
    struct Group {
        std::int64_t first_cell = 0, num_cells = 0;
        int polydata_group = -1;
        bool begins_with_zero = false;
        DataArray ends, connectivity;
    };

    void open_vtk_xml(const std::filesystem::path& path);
    void open_vtkhdf(const std::filesystem::path& path);
    void require_mapped(const DataArray& array, const std::string& what) const;
    void require_whole() const;
    [[noreturn]] void fail(const std::string& what) const;
    void push_cell(const Group& group, std::int64_t row, std::int32_t cell, Mesh& mesh) const;
    void push_faces(std::int64_t row, std::int32_t cell, Mesh& mesh) const;
    void count_touched(const DataArray& array, std::int64_t row) const;

    std::string where_;
    std::shared_ptr<const MappedFile> file_;
    Mesh rest_;
    std::int64_t num_cells_ = 0;
    std::vector<Group> groups_;
    DataArray types_, faces_, face_ends_;  // for unstructured grids; the face arrays only if there are polyhedra
    bool has_polyhedra_ = false;
    mutable std::array<std::uintptr_t, 4> last_touched_{};
    mutable std::int64_t num_touched_ = 0;
};

/// Returns whether a MappedMesh of that file can be made.
bool can_be_mapped(const std::filesystem::path& path);

}  // namespace meshard
