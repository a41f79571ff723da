// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/mapped_file.h"
#include "partition/mesh/mesh.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// A simulation on a mesh whose cells stay the same.
class Trajectory {
public:
    /// A feature of a record: (frames, rows, components), one frame if it is constant.
    struct Feature {
        DataArray values;  ///< all frames, one after another
        std::int64_t num_frames;
    };

    /// @param features   with `mesh_pos` and `cells`
    /// @throws IoError, beginning with `where`, if they do not fit one another
    Trajectory(std::vector<Feature> features, double step, const std::string& where);

    const std::vector<double>& times() const { return times_; }
    Mesh state(std::size_t index) const;

private:
    Mesh mesh_;  // with all that is constant
    std::vector<Feature> features_;
    std::vector<double> times_;
};

/// Simulations in TensorFlow's records, as the data sets of MeshGraphNets (Pfaff et al., ICLR 2021) have them: a record
/// (length, its masked CRC-32C, an Example in protocol buffers' encoding, its masked CRC-32C) is a run. `meta.json`
/// beside the file has its features' types and shapes, and the time step `dt`, 1 where it is missing. The points are
/// `mesh_pos`, or `world_pos` where that changes; `cells` are lines, triangles or tetrahedra; all other features are
/// point data.
class TrajectoryRecords {
public:
    /// @throws IoError if the file or its meta.json is missing or damaged
    explicit TrajectoryRecords(const std::filesystem::path& path);

    /// Reads the next run; none after the last. @throws IoError if it is damaged
    std::optional<Trajectory> next();

private:
    struct Shape {
        std::string name;
        ScalarType type;
        std::int64_t num_frames, num_components;
    };

    Trajectory::Feature feature(const Shape& shape, std::string_view bytes, const std::string& where) const;

    std::string where_;
    std::shared_ptr<const MappedFile> file_;
    std::vector<Shape> shapes_;
    double step_ = 1;
    std::size_t offset_ = 0;
    std::int64_t num_read_ = 0;
};

}  // namespace meshard
