// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/option_info.h"
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
#include <vector>

namespace meshard {

/// The body of a case, by its surface of triangles in the coordinates of the points; the same on every rank.
struct CaseBody {
    at::Tensor vertices;   ///< (V, 3), float32
    at::Tensor triangles;  ///< (F, 3), int64: rows of the vertices, right-handed seen from outside
};

/// All points of a case, of which others were drawn.
struct AllPoints {
    at::Tensor embedding, positions;  ///< (B, N, C) and (B, N, 3), as in `PointInputs`
    at::Tensor drawn_ids;             ///< (rows), int64: global ids, in the whole case, of the points that were drawn and that this rank has
};

/// The inputs that programs pass to any model; each model uses those that its architecture takes.
struct PointInputs {
    at::Tensor embedding;                            ///< (B, N, C): positions first, then other inputs of each point
    at::Tensor positions;                            ///< (B, N, 3)
    at::Tensor constants = {};                       ///< (B, G): inputs that are the same for all points of a case; undefined if there are none
    at::Tensor time = {};                            ///< (B): undefined if there is none
    std::shared_ptr<const CaseBody> body = nullptr;  ///< for models that take one (`ModelEntry::takes_body`)
    /// Numbers of rows of the regular grid that the points make up, slowest direction first: their product is N, and points are in its order. Empty: no grid.
    std::vector<std::int64_t> grid = {};
    /// For models that take a body, of a surface whose points were drawn: their neighbours are among all points. Null: these are all.
    std::shared_ptr<const AllPoints> drawn_from = nullptr;
    /// For models that need both parts of a case (`ModelEntry::needs_both_parts`), where fields are asked for one: the points of the other, whose positions
    /// they are told. Null: these are not known.
    std::shared_ptr<const PointInputs> other_part = nullptr;
};

/// Fields of a case's two parts: undefined for the part that was not asked for.
struct PartFields {
    at::Tensor surface, volume;  ///< (B, N, channels)
};

/// Numbers of channels of `PointInputs` and of the prediction.
struct PointWidths {
    std::int64_t embedding_dim = 0;
    std::int64_t num_constants = 0;
    std::int64_t out_dim = 0;
    bool has_time = false;
    bool in_volume = false;           ///< the points are those of a volume: what models tell apart that take a body
    std::int64_t volume_out_dim = 0;  ///< channels in the volume, of cases with both parts: the others are then those of the surface
};

/// What data on regular grids say of the model that is to learn them.
struct GridWidths {
    std::int64_t in_channels = 0;
    std::int64_t out_channels = 0;
    std::vector<std::int64_t> extents;  ///< numbers of rows, slowest direction first
};

/// A model as programs see it, whatever its architecture: of points or of grids.
struct Model {
    std::string class_name;    ///< as in checkpoints, e.g. `GeoTransolver`
    nlohmann::json arguments;  ///< of its constructor, all of them
    std::shared_ptr<torch::nn::Module> module;
    std::function<at::Tensor(const PointInputs&)> forward;      ///< of points, to (B, N, out_dim)
    std::function<at::Tensor(const at::Tensor&)> forward_grid;  ///< of grids, (B, channels, extents) to (B, channels, extents); of a denoiser at the level 0
    /// Of surface and volume, of which one may be null; empty for other models. `forward` is then of a model with one part only.
    std::function<PartFields(const PointInputs* surface, const PointInputs* volume)> forward_parts = {};
};

/// A module with initial values, and its forward. The function keeps the module alive.
using MadeModel = std::pair<std::shared_ptr<torch::nn::Module>, std::function<at::Tensor(const PointInputs&)>>;
struct MadePartModel {
    std::shared_ptr<torch::nn::Module> module;
    std::function<at::Tensor(const PointInputs&)> forward;
    std::function<PartFields(const PointInputs* surface, const PointInputs* volume)> forward_parts;
};
using MadeGridModel = std::pair<std::shared_ptr<torch::nn::Module>, std::function<at::Tensor(const at::Tensor&)>>;

/// How a kind of model is made from its name and arguments.
struct ModelEntry {
    std::string name;                        ///< in configurations, e.g. `geotransolver`
    std::string class_name;                  ///< in checkpoints
    nlohmann::json defaults;                 ///< every argument of the constructor with its default, null for None
    std::vector<std::string> extras = {};    ///< arguments that other programs do not know: not written to checkpoints if they have their default
    std::vector<std::string> nullable = {};  ///< arguments whose null is a value of its own, not the default
    std::vector<OptionInfo> options;         ///< arguments that a configuration may set
    nlohmann::json short_names = nlohmann::json::object();  ///< defaults of options that are no arguments, but names for values inside of one

    /// The arguments that follow from the numbers of channels of the data.
    std::function<nlohmann::json(const PointWidths&)> widths = {};

    /// The inverse. `num_constants` is used where the arguments do not tell how many of a point's channels are constants. May be empty: then a model predicts
    /// only from the folder of its run. @throws InvalidInput for a model with other inputs
    std::function<PointWidths(const nlohmann::json& arguments, std::int64_t num_constants)> widths_of = {};

    /// @throws InvalidInput naming the argument, its value and what is allowed; may be empty.
    std::function<void(const nlohmann::json& arguments)> check = {};

    /// Makes the module from all arguments, which are checked already; draws initial values from LibTorch's default generator.
    std::function<MadeModel(const nlohmann::json& arguments)> make = {};

    /// The same of a model of grids; `widths`, `widths_of` and `make` are then empty. A model of points has none.
    std::function<MadeGridModel(const nlohmann::json& arguments)> make_of_grids = {};

    /// The same of a model that takes a body, and points of the surface, of the volume, or of both; `make` is then empty.
    std::function<MadePartModel(const nlohmann::json& arguments)> make_of_parts = {};

    std::vector<std::string> told_on_surface = {};  ///< of a model that takes a body: the inputs of points of the surface, those of the volume are their places
    bool hears_surface = false;     ///< such a model tells a point of the surface of those near it: of drawn points `PointInputs::drawn_from` has all
    bool needs_both_parts = false;  ///< such a model takes only cases with surface and volume

    /// Shares among ranks those parameters that layers can use as they lie, each rank its own part, and says by name how each must be cut. May be empty.
    std::function<std::map<std::string, AxisLayout>(torch::nn::Module& module, std::int64_t num_ranks)> share_parameters = {};

    /// Of a model of grids: the arguments that follow from the data.
    std::function<nlohmann::json(const GridWidths&)> grid_widths = {};
    std::vector<std::int64_t> directions = {};    ///< how many a grid may have, e.g. 2 and 3
    std::vector<std::string> per_direction = {};  ///< arguments with a number for each direction, for which one number may stand

    /// Rows of a grid that a cut at their multiples leaves together, so that ranks need not exchange parts of them; empty: a cut may be anywhere.
    std::function<std::int64_t(const nlohmann::json& arguments)> rows_together = {};

    /// Writes arguments that may be given in several ways in the one of `defaults`; may be empty.
    std::function<nlohmann::json(nlohmann::json arguments)> spelled_out = {};

    bool is_denoiser = false;  ///< of grids with noise, whose level it is told: `meshard train` does not take it

    bool is_of_grids() const { return make_of_grids != nullptr; }
    bool takes_body() const { return make_of_parts != nullptr; }

    /// Of an argument, or of an option that names a value inside of one.
    const nlohmann::json& default_of(const std::string& option) const { return short_names.contains(option) ? short_names.at(option) : defaults.at(option); }
};

/// Registers a model, before main, for `make_model` and for `meshard train` and `predict`: a line in the source file of the model. This file must be linked
/// to the program directly (apps/CMakeLists.txt), since linkers drop unused files of a library. docs/models.md shows an example.
struct ModelRegistration {
    explicit ModelRegistration(ModelEntry entry);
};

/// Whether a model of this kind can take a time as input.
bool takes_time(const ModelEntry& entry);

/// All models: the library's, then those registered by ModelRegistration.
const std::vector<ModelEntry>& registered_models();

/// Finds a model by `name` or `class_name`, ignoring case.
/// @throws InvalidInput that lists the names and the nearest one.
const ModelEntry& find_model(std::string_view name);

/// Finds a model of points. @throws InvalidInput as `find_model`, and for a model of grids
const ModelEntry& find_point_model(std::string_view name);

/// All arguments: those given, and the defaults of those that are absent, or null and not `nullable`.
/// @throws InvalidInput for a name that is no argument (the message has the nearest one), a value of another type than the default's, and as `check`.
nlohmann::json complete_arguments(const ModelEntry& entry, const nlohmann::json& arguments);

/// Gives a model's module one part more, whose parameters are then called `name.*`.
/// @param whose   ends the message where the model has a part of that name: `the head's. Leave ... out.`
/// @throws InvalidInput there
void add_part(Model& model, const std::string& name, std::shared_ptr<torch::nn::Module> part, const std::string& whose);

/// `ModelEntry::share_parameters` of a made model; none where its kind has no such parameters.
std::map<std::string, AxisLayout> share_parameters(const Model& model, std::int64_t num_ranks);

/// @throws InvalidInput as `find_model` and `complete_arguments`.
Model make_model(std::string_view name, const nlohmann::json& arguments);

}  // namespace meshard
