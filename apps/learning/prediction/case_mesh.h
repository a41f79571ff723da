// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/cases/computed_inputs.h"
#include "apps/learning/cases/mesh_handover.h"
#include "apps/learning/prediction/predictor.h"

#include <functional>
#include <memory>
#include <optional>

namespace meshard {

/// What a user is told where a model that needs both parts does not know the points of the other one.
inline constexpr const char* kOtherPartUnknown = "the points of the case's other part are not known; places drawn from "
                                                 "the body stand for them, to which the model is less used.";

/// Adds the constants and the time of a case: those of the model, or the columns of the case that it names. @throws
/// InvalidInput as `CaseSource::number`
void add_case_inputs(PointInputs& inputs, const Predictor& model, const DataConfig& data, const CaseSource& source,
                     const at::Device& device);

/// How the mesh of a case is read for models.
struct MeshReading {
    std::string where;                        ///< begins messages
    std::function<Mesh()> read = {};          ///< gives the mesh on the first rank, in place of `source.file`
    std::function<void(Mesh&)> prepare = {};  ///< called on the first rank with the whole mesh as it was read
    /// Called on the first rank for a surface that does not face as those of the training cases.
    std::function<void(const std::string& fault)> report = {};
    bool with_geometry = false;  ///< `geometry` is wanted
    bool with_forces = false;    ///< the way in which polygons face matters, whatever models take as inputs
};

/// The mesh of a case, cut into a part a rank, from which inputs of several models are made. All functions are
/// collective.
class CaseMesh {
public:
    /// The first rank reads the mesh and hands out the parts by files beside `output`.
    /// @param models   whose fields are on the same rows: all on cells, or all on points
    /// @throws UnusableInput (usable_input.h) if the mesh cannot be read, or lacks what models take of points
    CaseMesh(const CaseSource& source, std::span<const Predictor> models, const MeshReading& reading,
             const std::filesystem::path& output, std::shared_ptr<const DeviceMesh> device_mesh);

    /// Inputs of a model, on a device.
    /// @param data   the model's data, as they hold for this case
    /// @throws UnusableInput as above, and if the wall cannot be read
    PointInputs inputs(const Predictor& model, const DataConfig& data, const at::Device& device);

    Mesh& whole() { return whole_; }                                ///< on the first rank
    Subdomain& subdomain() { return part_.subdomain; }              ///< of this rank
    const Wall* wall() const { return wall_ ? &*wall_ : nullptr; }  ///< of the last `inputs`; null where none was read
    /// Places of this rank's points of the case's other part, (rows, 3), double; undefined where none was read.
    const at::Tensor& other_places() const { return other_places_; }
    const std::array<double, 6>& bounds() const { return part_.bounds; }
    const std::vector<std::int64_t>& rows() const { return rows_; }  ///< ids of this rank's cells or points
    /// Returns `take_geometry` of the rows; undefined unless asked for.
    const at::Tensor& geometry() const { return geometry_; }

private:
    const Wall& wall_for(const Predictor& model, const DataConfig& data);
    void report_facing(const std::string& where, const SurfaceFacing& found, const FacingCounts& trained) const;

    CaseSource source_;
    MeshReading reading_;
    std::shared_ptr<const DeviceMesh> device_mesh_;
    bool on_cells_ = true, with_directions_ = false;
    Mesh whole_;
    MeshPart part_;
    std::vector<std::int64_t> rows_;
    at::Tensor geometry_, other_places_;
    std::optional<Wall> wall_;
    std::vector<std::string> wall_patches_;  // whose surface `wall_` is
    bool has_distances_ = false;             // the subdomain has those to `wall_`
};

}  // namespace meshard
