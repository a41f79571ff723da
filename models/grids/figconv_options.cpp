// SPDX-License-Identifier: Apache-2.0
#include "models/grids/figconv_options.h"

#include "models/layers/option_table.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace meshard {
namespace {

constexpr const char* kPairs = "resolution_memory_format_pairs";
const std::vector<std::string> kFormats{"b_xc_y_z", "b_yc_x_z", "b_zc_x_y"};
const std::vector<std::string> kReductions{"mean", "sum", "max", "min", "var", "std"};

}  // namespace

const OptionTable<FigConvUNetOptions>& figconv_unet_option_table()
{
    using O = FigConvUNetOptions;
    static const OptionTable<O> table(
        "FIGConvUNet",
        {
            {"in_channels",
             &O::in_channels,
             "channels of each point; without input features hidden_channels[0]",
             {.least = 1}},
            {"out_channels", &O::out_channels, "channels of the result", {.least = 1}},
            {"kernel_size", &O::kernel_size, "pixels that a convolution reads along each direction, odd", {.least = 1}},
            {"hidden_channels",
             &O::hidden_channels,
             "channels of each grid, fine to coarse, num_levels + 1",
             {.least = 1}},
            {"num_levels", &O::num_levels, "number of times that the grids are halved", {.least = 1, .most = 16}},
            {"num_down_blocks", &O::num_down_blocks, "blocks of each level on the way down", {.least = 1}},
            {"num_up_blocks", &O::num_up_blocks, "blocks of each level on the way up", {.least = 1}},
            {"mlp_channels", &O::mlp_channels, "channels of the layers behind the pooled grids", {.least = 1}},
            {"aabb_max", &O::aabb_max, "upper corner of the box of the grids"},
            {"aabb_min", &O::aabb_min, "lower corner of the box of the grids"},
            {"use_rel_pos",
             &O::use_rel_pos,
             "messages know the vector from target to source",
             {},
             {.with = "use_rel_pos_embed=false"}},
            {"use_rel_pos_embed", &O::use_rel_pos_embed, "that vector is encoded by waves"},
            {"pos_encode_dim", &O::pos_encode_dim, "waves of each coordinate, even", {.least = 2}},
            {"communication_types",
             &O::communication_types,
             "how a grid takes what it reads of the others",
             {.words = {"sum", "mul"}}},
            {"to_point_sample_method",
             &O::to_point_sample_method,
             "how points read the grids",
             {.words = {"graphconv"}}},
            {"neighbor_search_type",
             &O::neighbor_search_type,
             "which points and vertices exchange messages",
             {.words = {"radius", "knn"}}},
            {"knn_k", &O::knn_k, "sources that each target hears", {.least = 1}, {.with = "neighbor_search_type=knn"}},
            {"reductions",
             &O::reductions,
             "how a target's messages become one; several are concatenated",
             {.words = kReductions}},
            {"use_scalar_output", &O::use_scalar_output, "gives one number a case, too"},
            {"has_input_features", &O::has_input_features, "points have features besides their places"},
            {"pooling_type",
             &O::pooling_type,
             "how a grid becomes one row for that number",
             {.words = {"max", "mean", "attention"}}},
            {"pooling_layers",
             &O::pooling_layers,
             "levels that it reads; none: the coarsest",
             {.least = 0},
             {.none = "[]", .is_for_programs = true}},
        });
    return table;
}

void FigConvUNetOptions::validate() const
{
    figconv_unet_option_table().check(*this);
    const OptionChecks checks("FIGConvUNet");
    const auto has_entries = [&](const char* name, std::size_t size, std::int64_t wanted, const char* what) {
        if (static_cast<std::int64_t>(size) != wanted)
            checks.refuse("{} must have {} = {} entries, and has {}.", name, what, wanted, size);
    };
    has_entries("hidden_channels", hidden_channels.size(), num_levels + 1, "num_levels + 1");
    has_entries("num_down_blocks", num_down_blocks.size(), num_levels, "num_levels");
    has_entries("num_up_blocks", num_up_blocks.size(), num_levels, "num_levels");
    has_entries("aabb_max", aabb_max.size(), 3, "3");
    has_entries("aabb_min", aabb_min.size(), 3, "3");
    has_entries("communication_types", communication_types.size(), 1, "1");
    if (kernel_size % 2 == 0)
        checks.refuse("kernel_size must be odd, and is {}: even ones would shrink the grids.", kernel_size);
    if (pos_encode_dim % 2 != 0) checks.refuse("pos_encode_dim must be even, and is {}.", pos_encode_dim);
    if (mlp_channels.empty()) checks.refuse("mlp_channels must not be empty.");
    if (reductions.empty()) checks.refuse("reductions must not be empty.");
    for (std::size_t a = 0; a < 3; ++a) {
        if (!(aabb_min[a] < aabb_max[a])) checks.refuse("aabb_min must be below aabb_max along each axis.");
    }
    if (!has_input_features && in_channels != hidden_channels[0]) {
        checks.refuse("without has_input_features in_channels must be hidden_channels[0] = {}, and is {}.",
                      hidden_channels[0], in_channels);
    }
    if (resolutions.empty() || resolutions.size() != memory_formats.size())
        checks.refuse(std::string(kPairs) + " must have a format and a resolution for each plane.");
    for (std::size_t i = 0; i < resolutions.size(); ++i) {
        checks.one_of("a format of resolution_memory_format_pairs", memory_formats[i], kFormats);
        for (const auto vertices : resolutions[i])
            checks.at_least(1, {{"a resolution of resolution_memory_format_pairs", vertices}});
    }
    for (const auto level : pooling_layers) {
        if (level > num_levels)
            checks.refuse("pooling_layers must lie in [0, num_levels = {}], and one is {}.", num_levels, level);
    }
    if (use_scalar_output && pooling_type == "attention")
        checks.multiple("mlp_channels[0]", mlp_channels[0], "the number of pooling heads", kPoolingHeads);
}

std::vector<GridPlane> FigConvUNetOptions::planes() const
{
    std::vector<GridPlane> planes;
    for (std::size_t i = 0; i < resolutions.size(); ++i) {
        GridPlane plane{.resolution = resolutions[i]};
        plane.flat_axis = std::ranges::find(kFormats, memory_formats[i]) - kFormats.begin();
        std::copy_n(aabb_min.begin(), 3, plane.box_min.begin());
        std::copy_n(aabb_max.begin(), 3, plane.box_max.begin());
        planes.push_back(plane);
    }
    return planes;
}

nlohmann::json with_blocks_of_each_level(nlohmann::json arguments)
{
    const auto given = arguments.find("num_levels");
    const auto levels = given != arguments.end() && given->is_number_integer() ? given->get<std::int64_t>()
                                                                               : FigConvUNetOptions().num_levels;
    if (levels < 1 || levels > 16) return arguments;  // `validate` reports it
    for (const char* name : {"num_down_blocks", "num_up_blocks"}) {
        auto& value = arguments[name];
        if (value.is_null()) value = 1;
        if (value.is_array() && value.size() == 1) value = nlohmann::json(value[0]);
        if (value.is_number()) value = std::vector<nlohmann::json>(levels, value);
    }
    return arguments;
}

nlohmann::json with_planes_of_resolutions(nlohmann::json arguments)
{
    const FigConvUNetOptions defaults;
    std::array<std::int64_t, 3> grid{}, flat{};
    for (std::size_t axis = 0; axis < 3; ++axis) {
        flat[axis] = defaults.resolutions[axis][axis];
        grid[axis] = defaults.resolutions[(axis + 1) % 3][axis];
    }
    bool is_given = false;
    for (auto [name, place] : {std::pair("grid_resolution", &grid), std::pair("plane_resolution", &flat)}) {
        const auto found = arguments.find(name);
        if (found == arguments.end()) continue;
        if (!found->is_null()) {
            if (!found->is_array() || found->size() != 3 ||
                !std::all_of(found->begin(), found->end(),
                             [](const auto& number) { return number.is_number_integer(); }))
                OptionChecks("FIGConvUNet")
                    .refuse(std::string(name) + " is " + found->dump() +
                            "; expected three whole numbers, along x, y and z.");
            *place = found->get<std::array<std::int64_t, 3>>();
            is_given = true;
        }
        arguments.erase(found);
    }
    if (!is_given) return arguments;
    auto pairs = nlohmann::json::array();
    for (std::size_t axis = 0; axis < 3; ++axis) {
        auto resolution = grid;
        resolution[axis] = flat[axis];
        pairs.push_back({defaults.memory_formats[axis], resolution});
    }
    arguments[kPairs] = std::move(pairs);
    return arguments;
}

FigConvUNetOptions figconv_unet_options(const nlohmann::json& arguments)
{
    auto known = with_blocks_of_each_level(arguments);
    known.erase("voxel_size");
    nlohmann::json pairs;
    if (const auto given = known.find(kPairs); given != known.end()) {
        pairs = *given;
        known.erase(given);
    }
    auto options = figconv_unet_option_table().read(known);
    if (pairs.is_null()) return options;
    options.memory_formats.clear();
    options.resolutions.clear();
    const auto refuse = [&](const nlohmann::json& found) {
        OptionChecks("FIGConvUNet")
            .refuse(std::string(kPairs) +
                    " must be a list of a format and three resolutions each, as [\"b_xc_y_z\", [2, 128, 128]]; found " +
                    found.dump() + ".");
    };
    if (!pairs.is_array()) refuse(pairs);
    for (const auto& pair : pairs) {
        const bool fits = pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_array() &&
                          pair[1].size() == 3 &&
                          std::ranges::all_of(pair[1], [](const auto& number) { return number.is_number_integer(); });
        if (!fits) refuse(pair);
        options.memory_formats.push_back(pair[0].get<std::string>());
        options.resolutions.push_back(pair[1].get<std::array<std::int64_t, 3>>());
    }
    return options;
}

nlohmann::json to_json(const FigConvUNetOptions& options)
{
    auto arguments = figconv_unet_option_table().write(options);
    auto pairs = nlohmann::json::array();
    for (std::size_t i = 0; i < options.resolutions.size(); ++i)
        pairs.push_back({options.memory_formats[i], options.resolutions[i]});
    arguments[kPairs] = std::move(pairs);
    return arguments;
}

}  // namespace meshard
