// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/evaluation/case_sums.h"
#include "apps/learning/prediction/case_mesh.h"
#include "apps/learning/prediction/predictor.h"
#include "apps/learning/prediction/shape_sensitivity.h"
#include "partition/mesh/data_array.h"
#include "sharding/transport/launch.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

struct SaidCase;

/// The memory mode for so many points of this rank, the same on all ranks: points between layers may take a quarter of
/// the machine's memory, or of what the device has free, shared by the ranks there. Collective over `all`.
MemoryMode memory_for_points(const Predictor& model, std::int64_t num_points, const at::Device& device,
                             const RankGroup& all);

/// How a mesh is predicted on.
struct PredictionOptions {
    /// What the case table has in training, by column, e.g. `length`. If that is missing and the configuration asks for
    /// it, the longest edge of the bounding box is taken, with a warning.
    std::map<std::string, double> values = {};
    /// The surface to which the model's distances are measured; empty: the run's patches of the input itself.
    std::filesystem::path wall = {};
    /// The other part of a case with surface and volume, for a model that needs both (`Predictor::other_part`); may be
    /// empty.
    std::filesystem::path other_part = {};
    /// What the model keeps of each point from layer to layer; nothing: the fastest mode that takes a quarter of the
    /// machine's memory, or of what the ranks' device has free, shared by the ranks.
    std::optional<MemoryMode> memory = {};
    std::int64_t num_draws = 0;  ///< predictions of each model with its dropout, as in training; 0: one without
    bool with_forces = false;    ///< also the coefficients of forces
    /// Coefficients whose derivatives by the surface's points are wanted, of kForceCoefficients; with forces only.
    std::vector<std::string> sensitivities = {};
    bool in_double = false;  ///< sensitivities are computed in double precision, the model's part of them, too
};

/// Coefficients of a case by name (kForceCoefficients), with a value a prediction: moments where a length is known;
/// none, and why, where they are not known.
struct PredictedForces {
    std::map<std::string, std::vector<double>> of_fields = {};
    std::string why = {};
    std::string why_no_moments = {};  ///< what is not said of the length or the point that are asked for
    /// Cd and Cl by heads of the models beside their fields, where they have some.
    std::map<std::string, std::vector<double>> of_head = {};
    /// Cd and Cl by the shape alone, where the models' training cases have them (shape_coefficients.h).
    std::map<std::string, std::vector<double>> of_shape = {};
    /// Half the widths of the intervals around Cd and Cl by the fields that hold the truth of kCoverage of such cases,
    /// by the runs' validation cases together, each counted once; none where these are too few.
    std::map<std::string, double> intervals = {};
    /// How far the case lies from each model's training cases (`ShapeCoefficients::Values`).
    std::vector<double> isolation = {};
    /// The same as each model sees it (`FeatureDistance`), of models whose runs keep what that needs.
    std::vector<double> feature_isolation = {};
    bool is_far = false;  ///< by one of both farther from those of every model than any of them lies from the others
};

/// A mesh to predict on.
struct MeshInput {
    std::string name;                   ///< begins messages
    std::filesystem::path file;         ///< empty for a mesh in memory
    std::function<Mesh()> read = {};    ///< gives the mesh, on the first rank, in place of the file
    std::optional<MeshKind> kind = {};  ///< in place of that of the file
    std::filesystem::path output = {};  ///< beside which ranks hand over parts; not used by one rank
};

/// What models predict on a mesh.
struct MeshPrediction {
    Mesh whole;           ///< on the first rank: as it was read, with `Cd_head` and `Cl_head` as `predict_file`
    Subdomain subdomain;  ///< of this rank, with the same arrays
    std::vector<std::int64_t> rows;  ///< ids of this rank's cells or points
    at::Tensor fields, spread;       ///< (rows, channels), on the CPU; no spread of one prediction
    PredictedForces forces;          ///< on every rank, where the options ask for them
    /// On every rank, of all points of the mesh; of several models the means.
    std::vector<ShapeSensitivity> sensitivities = {};
};

/// Reads the mesh of a case for models with the same fields. Collective over all ranks.
/// @throws UnusableInput as `CaseMesh`, and if it has no rows
CaseMesh read_case(std::span<const Predictor> models, const CaseSource& source, const MeshInput& input,
                   const PredictionOptions& options, const std::shared_ptr<const DeviceMesh>& device_mesh);

/// Predicts on a mesh: means and standard deviations (of n - 1) over models and draws of dropout. What the models are
/// told is compared with their training cases: what lies beyond is warned of. Collective over all ranks.
/// @param models   with the same fields (`require_same_fields`)
/// @throws UnusableInput (usable_input.h) if the mesh or the wall cannot be read, or has not what a model is told about
/// points; of sensitivities as `shape_inputs`, and where there are no forces. @throws UsageError naming a value that a
/// model is told and the options lack.
MeshPrediction predict_mesh(std::span<Predictor> models, const MeshInput& input, const PredictionOptions& options,
                            const std::shared_ptr<const DeviceMesh>& device_mesh, const at::Device& device);

/// Predicts on the mesh `input` by `predict_mesh` and writes it with the fields as further arrays to `output`: .vtp,
/// .vtu, or .pvtp, .pvtu with a piece a rank in a folder beside it. Collective over all ranks.
///
/// What heads of the models predict of the whole case is written as arrays `Cd_head` and `Cl_head` of the mesh (field
/// data). A field is called as in the configuration, and `<name>_predicted` where the mesh has an array of that name
/// already. Of several models, or of several draws of dropout, `<name>_spread` is their deviation, component by
/// component. A sensitivity is two point arrays, `d<coefficient>_dx`, three components, and `d<coefficient>_dn`
/// (`ShapeSensitivity`).
/// @param read   gives the mesh on the first rank, in place of reading `input`; empty: it is read
/// @return coefficients of each prediction, on every rank, where the options ask for them
/// @throws UnusableInput as `predict_mesh`; nothing is written then
PredictedForces predict_file(std::span<Predictor> models, const std::filesystem::path& input,
                             const std::filesystem::path& output, const PredictionOptions& options, World& world,
                             const std::function<Mesh()>& read = {});

/// The same of image data for models of grids: writes a .vti with the fields at its points or cells, whichever the
/// models predict. Forces there are none.
/// @throws UnusableInput if an array is missing or not finite, or a model takes no such grid
void predict_grid(std::span<Predictor> models, const std::filesystem::path& input, const std::filesystem::path& output,
                  const PredictionOptions& options, World& world);

/// Computes the coefficients of each prediction on a mesh from its sums. Signs are those of the mean prediction.
PredictedForces predicted_forces(const std::vector<ForceSums>& sums, const Predictor& model, const JudgedFields& layout,
                                 const SaidCase& said);

/// Warns of what a model is told in a case of this name that lies beyond its training cases. Collective.
/// @param is_of_several   models, of which the warning then says which
void warn_of_ranges(const Predictor& model, const PointInputs& inputs, const std::string& name, bool is_of_several,
                    const RankGroup& ranks);

/// Adds the channels of `values`, (rows, channels), to arrays, and those of `spread`, if it is there.
/// @return the names of arrays that were there, of an earlier prediction, and are replaced
/// @throws Error for what is not finite
std::vector<std::string> add_fields(std::vector<DataArray>& arrays, const at::Tensor& values, const at::Tensor& spread,
                                    const Predictor& predictor);

/// Adds the point arrays of sensitivities that `predict_file` names.
/// @param ids   of the mesh's points in the whole; empty: it is the whole
/// @return as `add_fields`
std::vector<std::string> add_sensitivities(Mesh& mesh, const std::vector<ShapeSensitivity>& all,
                                           std::span<const std::int64_t> ids = {});

/// Warns of arrays of a mesh of this name that are replaced, if there are any.
void warn_of_replaced(const std::string& name, const std::vector<std::string>& arrays);

/// @throws InvalidInput, naming two models, unless all have the same fields of the same kinds, on cells or on points,
/// are told and learnt the same if they are of simulations, and have dropout if it is to be drawn.
void require_same_fields(std::span<const Predictor> models, bool with_dropout);

/// Sentences about members of an ensemble: one that is another once more, so that it counts twice, and one whose
/// validation is kFarWorse times that of the best.
std::vector<std::string> ensemble_warnings(std::span<const Predictor> models);
inline constexpr double kFarWorse = 2;

}  // namespace meshard
