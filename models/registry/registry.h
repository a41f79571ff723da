// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/option_info.h"

#include <nlohmann/json.hpp>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshard {

/// What programs tell a model of a case; a model takes of it what its architecture wants.
struct PointInputs {
    at::Tensor embedding;  ///< (B, N, C): places first, then what else is known of each point
    at::Tensor positions;  ///< (B, N, 3): the places alone
    at::Tensor constants;  ///< (B, G): numbers that are the same for all points; undefined for none
    at::Tensor time;       ///< (B): undefined for none
};

/// Widths of `PointInputs` and of what is to be predicted.
struct PointWidths {
    std::int64_t embedding_dim = 0;
    std::int64_t num_constants = 0;
    std::int64_t out_dim = 0;
    bool has_time = false;
};

/// A model as programs see it, whatever its architecture.
struct Model {
    std::string class_name;    ///< as in checkpoints, e.g. `GeoTransolver`
    nlohmann::json arguments;  ///< of its constructor, all of them
    std::shared_ptr<torch::nn::Module> module;
    std::function<at::Tensor(const PointInputs&)> forward;  ///< to (B, N, out_dim)
};

/// A module with its values, and its forward. The function holds the module.
using MadeModel = std::pair<std::shared_ptr<torch::nn::Module>, std::function<at::Tensor(const PointInputs&)>>;

/// How a kind of model is made from its name and arguments.
struct ModelEntry {
    std::string name;                      ///< in configurations, e.g. `geotransolver`
    std::string class_name;                ///< in checkpoints
    nlohmann::json defaults;               ///< every argument of the constructor; null where none stands for it
    std::vector<std::string> extras = {};  ///< arguments that other programs do not know: left out of a model's arguments at their default
    std::vector<OptionInfo> options;       ///< arguments that a configuration may set

    /// The arguments that follow from the data.
    std::function<nlohmann::json(const PointWidths&)> widths;

    /// The other way round, for cases of so many constants, which count where the arguments do not tell them from what points are told; without it a model
    /// predicts with its run's folder only. @throws InvalidInput for a model that takes something else
    std::function<PointWidths(const nlohmann::json& arguments, std::int64_t num_constants)> widths_of = {};

    /// @throws InvalidInput naming the argument, its value and what is allowed; may be empty.
    std::function<void(const nlohmann::json& arguments)> check = {};

    /// From all arguments, checked; draws initial values from LibTorch's default generator.
    std::function<MadeModel(const nlohmann::json& arguments)> make;
};

/// Makes a model known, before main, to `make_model` and to `meshard train` and `predict`: a line in the file that holds the model. The file must be one of
/// the program's own (apps/CMakeLists.txt), since linkers drop those of a library that nothing refers to. docs/models.md shows one.
struct ModelRegistration {
    explicit ModelRegistration(ModelEntry entry);
};

/// Whether a model of this kind can be told a time.
bool takes_time(const ModelEntry& entry);

/// Every model there is: the library's, then one's own.
const std::vector<ModelEntry>& registered_models();

/// By `name` or `class_name`; upper and lower case count as the same.
/// @throws InvalidInput that lists the names and the nearest one.
const ModelEntry& find_model(std::string_view name);

/// All arguments: those given, and the defaults of the others. Null counts as not given.
/// @throws InvalidInput for a name that is no argument (with the nearest one), a value of another type than the default's, and as `check`.
nlohmann::json complete_arguments(const ModelEntry& entry, const nlohmann::json& arguments);

/// @throws InvalidInput as `find_model` and `complete_arguments`.
Model make_model(std::string_view name, const nlohmann::json& arguments);

}  // namespace meshard
