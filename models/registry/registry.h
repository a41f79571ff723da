// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/option_checks.h"
#include "sharding/tensor/shard_spec.h"

#include <nlohmann/json.hpp>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace meshard {

struct EdmSampling;

/// The body of a case: its surface of triangles in the coordinates of the points; equal on every rank.
struct CaseBody {
    at::Tensor vertices;   ///< (V, 3), float32
    at::Tensor triangles;  ///< (F, 3), int64: rows of the vertices, right-handed seen from outside
};

/// All points of a case from which some were drawn.
struct AllPoints {
    at::Tensor embedding, positions;  ///< (B, N, C) and (B, N, 3), as in `PointInputs`
    /// (rows), int64: global ids in the whole case of the drawn points that this rank has.
    at::Tensor drawn_ids;
};

/// The inputs that programs pass to any model; each model uses those of its architecture.
struct PointInputs {
    at::Tensor embedding;  ///< (B, N, C): positions first, then other inputs of each point
    at::Tensor positions;  ///< (B, N, 3)
    /// (B, G): inputs that are the same for all points of a case; undefined if there are none.
    at::Tensor constants = {};
    at::Tensor time = {};                            ///< (B): undefined if there is none
    std::shared_ptr<const CaseBody> body = nullptr;  ///< for models that need one (`BodyModel`)
    /// Extents of the regular grid that the points make up, slowest direction first, in whose order the points are;
    /// their product is N. Empty: no grid.
    std::vector<std::int64_t> grid = {};
    /// Layout over ranks of a tensor (B, C, extents) whose part a rank's points make up, in its order; null if points
    /// are not sharded, or there is no grid.
    SpecPtr grid_layout = nullptr;
    /// For models that need a body, on a surface whose points were drawn: all points of the surface, among which
    /// neighbours are searched. Null: the points are all.
    std::shared_ptr<const AllPoints> drawn_from = nullptr;
    /// For models that need both parts of a case (`BodyModel::needs_both_parts`), if fields are requested for one part
    /// only: the points of the other part, of which the model uses the positions. Null: they are not known.
    std::shared_ptr<const PointInputs> other_part = nullptr;
};

/// Fields of a case's two parts; undefined for a part that was not requested.
struct PartFields {
    at::Tensor surface, volume;  ///< (B, N, channels)
};

/// Numbers of channels of `PointInputs` and of the prediction.
struct PointWidths {
    std::int64_t embedding_dim = 0;
    std::int64_t num_constants = 0;
    std::int64_t out_dim = 0;
    bool has_time = false;
    /// Whether the points are those of a volume; models that need a body distinguish this.
    bool in_volume = false;
    /// Channels of the volume's fields in cases with both parts; the other numbers are then those of the surface.
    std::int64_t volume_out_dim = 0;
};

/// Numbers of channels and extents of data on regular grids, from which a model's arguments follow.
struct GridWidths {
    std::int64_t in_channels = 0;
    std::int64_t out_channels = 0;
    std::vector<std::int64_t> extents;  ///< extents, slowest direction first
};

/// A model in the form that programs use, for any architecture: of points or of grids.
struct Model {
    std::string class_name;    ///< as in checkpoints, e.g. `GeoTransolver`
    nlohmann::json arguments;  ///< all arguments of its constructor
    std::shared_ptr<torch::nn::Module> module;
    std::function<at::Tensor(const PointInputs&)> forward;  ///< for points: returns (B, N, out_dim)
    /// For grids, (B, channels, extents) to (B, channels, extents); for a denoiser at the level 0.
    std::function<at::Tensor(const at::Tensor&)> forward_grid;
    /// For surface and volume, one of which may be null; empty for other models. `forward` is then that of a model with
    /// one part.
    std::function<PartFields(const PointInputs* surface, const PointInputs* volume)> forward_parts = {};
    /// For a denoiser (`take_rows_of_grids`): removes from rows (1, N, out_dim) noise of the standard deviation
    /// `level`, in units of the data's. Empty for other models.
    std::function<at::Tensor(const PointInputs&, const at::Tensor& noisy, double level)> denoise = {};
    /// How `forward` of a denoiser draws a sample from noise, which may be changed before each call. Null for other
    /// models.
    std::shared_ptr<EdmSampling> sampling = nullptr;
};

/// A module with initial values, and its forward. The function keeps the module alive.
using MadeModel = std::pair<std::shared_ptr<torch::nn::Module>, std::function<at::Tensor(const PointInputs&)>>;
struct MadePartModel {
    std::shared_ptr<torch::nn::Module> module;
    std::function<at::Tensor(const PointInputs&)> forward;
    std::function<PartFields(const PointInputs* surface, const PointInputs* volume)> forward_parts;
};
using MadeGridModel = std::pair<std::shared_ptr<torch::nn::Module>, std::function<at::Tensor(const at::Tensor&)>>;

/// What is known of a model of points.
struct PointModel {
    /// Returns the arguments that follow from the numbers of channels of the data.
    std::function<nlohmann::json(const PointWidths&)> widths;

    /// The inverse of `widths`. `num_constants` is used if the arguments do not determine how many of a point's
    /// channels are constants. May be empty: then a model predicts only from the folder of its run. @throws
    /// InvalidInput for a model with other inputs
    std::function<PointWidths(const nlohmann::json& arguments, std::int64_t num_constants)> widths_of = {};

    /// Makes the module from all arguments, which have been checked; draws initial values from LibTorch's default
    /// generator.
    std::function<MadeModel(const nlohmann::json& arguments)> make;

    bool has_edges = false;  ///< whether points receive messages along edges from the points nearest to them

    /// Names the linear layer, with bias, whose outputs are the model's, e.g. `head.2`; may be empty: there is none.
    std::function<std::string(const nlohmann::json& arguments)> last_layer = {};
};

/// What is known of a model that needs a body, and points of the surface, of the volume, or of both.
struct BodyModel {
    std::function<nlohmann::json(const PointWidths&)> widths;            ///< as in `PointModel`
    std::function<MadePartModel(const nlohmann::json& arguments)> make;  ///< as in `PointModel`
    /// Inputs of surface points; those of volume points are their positions.
    std::vector<std::string> inputs_on_surface;
    /// Whether inputs of a surface point include points near it, which are searched in `PointInputs::drawn_from` if
    /// points were drawn.
    bool needs_surface_neighbors = false;
    bool needs_both_parts = false;  ///< whether the model accepts only cases with surface and volume
};

/// What is known of a model of regular grids.
struct GridModel {
    std::function<nlohmann::json(const GridWidths&)> widths;  ///< returns the arguments that follow from the data
    std::function<MadeGridModel(const nlohmann::json& arguments)> make;  ///< as in `PointModel`
    std::vector<std::int64_t> directions;         ///< supported numbers of grid dimensions, e.g. 2 and 3
    std::vector<std::string> per_direction = {};  ///< arguments with one number for each direction, or one for all

    /// Returns a number of grid rows: a cut at multiples of it needs fewer messages. If empty, a cut may be anywhere.
    std::function<std::int64_t(const nlohmann::json& arguments)> rows_together = {};

    /// Whether layers read grid neighbours, so that ranks exchange the rows beside cuts.
    bool reads_neighbors = false;

    /// Whether its input has noise of a given level; configurations name the network in it (`denoiser`).
    bool is_denoiser = false;
    /// For the network of a denoiser, which is told the noisy fields before its other inputs: returns class and
    /// arguments of the denoiser, which is trained in its place. Empty for other models.
    std::function<std::pair<std::string, nlohmann::json>(const nlohmann::json& arguments)> denoiser = {};
};

/// Describes how a kind of model is made from its name and arguments.
struct ModelEntry {
    std::string name;         ///< name in configurations, e.g. `geotransolver`
    std::string class_name;   ///< name in checkpoints
    nlohmann::json defaults;  ///< every argument of the constructor with its default; null means None
    /// Arguments that other programs do not know: not written to checkpoints if they have their default.
    std::vector<std::string> extras = {};
    std::vector<std::string> nullable = {};  ///< arguments for which null is a value, not the default
    std::vector<OptionInfo> options;         ///< arguments that a configuration may set
    /// Defaults of options that are not arguments, but names for values nested in one.
    nlohmann::json short_names = nlohmann::json::object();

    /// Checks the arguments; may be empty. @throws InvalidInput naming the argument, its value and what is allowed
    std::function<void(const nlohmann::json& arguments)> check = {};

    /// Shares among ranks the parameters of which layers can use each rank's own part, and returns the layouts in which
    /// they must be sharded, by name. May be empty.
    std::function<std::map<std::string, AxisLayout>(torch::nn::Module& module, std::int64_t num_ranks)>
        share_parameters = {};

    /// Converts arguments that may be given in several forms to the form of `defaults`; may be empty.
    std::function<nlohmann::json(nlohmann::json arguments)> spelled_out = {};

    std::variant<PointModel, BodyModel, GridModel> kind;

    const PointModel* of_points() const { return std::get_if<PointModel>(&kind); }  ///< null for other kinds
    const BodyModel* of_bodies() const { return std::get_if<BodyModel>(&kind); }    ///< null for other kinds
    const GridModel* of_grids() const { return std::get_if<GridModel>(&kind); }     ///< null for other kinds

    /// `PointModel::widths` or `BodyModel::widths`. @throws InvalidInput for a model of grids
    nlohmann::json arguments_for(const PointWidths& widths) const;

    /// The default of an argument, or of an option that names a nested value.
    const nlohmann::json& default_of(const std::string& option) const
    {
        return short_names.contains(option) ? short_names.at(option) : defaults.at(option);
    }
};

/// Registers a model, before main, for `make_model` and for `meshard train` and `predict`: a line in the source file of
/// the model. This file must be linked to the program directly (apps/CMakeLists.txt), since linkers drop unused files
/// of a library. docs/models.md has an example.
struct ModelRegistration {
    explicit ModelRegistration(ModelEntry entry);
};

/// Returns whether a model of this kind can have a time as input.
bool takes_time(const ModelEntry& entry);

/// All models: the library's, then those registered by ModelRegistration.
const std::vector<ModelEntry>& registered_models();

/// Finds a model by `name` or `class_name`, ignoring case.
/// @throws InvalidInput that lists the names and the nearest one.
const ModelEntry& find_model(std::string_view name);

/// Finds a model of points. @throws InvalidInput as `find_model`, and for a model of grids
const ModelEntry& find_point_model(std::string_view name);

/// Completes the arguments: absent ones, and null ones that are not `nullable`, get their defaults.
/// @throws InvalidInput for a name that is no argument (the message has the nearest one), a value of another type than
/// the default's, and as `check`.
nlohmann::json complete_arguments(const ModelEntry& entry, const nlohmann::json& arguments);

/// Adds a submodule to a model's module; its parameters are then called `name.*`.
/// @param whose   ends the message if the model has a part of that name: `the head's. Leave ... out.`
/// @throws InvalidInput if the model has a part of that name
void add_part(Model& model, const std::string& name, std::shared_ptr<torch::nn::Module> part, const std::string& whose);

/// `ModelEntry::share_parameters` of a model; empty if its kind has no such parameters.
std::map<std::string, AxisLayout> share_parameters(const Model& model, std::int64_t num_ranks);

/// @throws InvalidInput as `find_model` and `complete_arguments`.
Model make_model(std::string_view name, const nlohmann::json& arguments);

}  // namespace meshard
