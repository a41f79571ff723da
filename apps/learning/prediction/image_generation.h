// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/diffusion/edm_sampling.h"
#include "sharding/transport/launch.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace meshard {

/// What `meshard generate` makes of which files.
struct ImageGeneration {
    /// An EDMPreconditioner around a DiT: .mdlus, or .safetensors or .pt with a .json that describes it.
    std::filesystem::path checkpoint;
    /// .vti with arrays of the points or of the cells of a grid of one layer, in the model's units.
    std::filesystem::path conditions;
    std::filesystem::path output;  ///< .vti
    EdmSampling sampling;
    std::vector<double> condition;  ///< numbers of the whole image that the model is told
    /// Arrays of `conditions` in the order of the model's channels; none: all, in the file's order.
    std::vector<std::string> arrays;
    std::vector<std::string> fields;  ///< names of the generated channels; none: generated_1, ...
    std::int64_t num_samples = 1;
    bool on_cells = false;
};

/// Reads both files and makes the model, without computing anything.
/// @throws IoError, InvalidInput if they do not fit each other
void check_generation(const ImageGeneration& generation);

/// Generates the images on all ranks, each with some rows of patches, and writes them beside the arrays of the
/// conditions. Collective.
/// @throws IoError, InvalidInput as `check_generation`
void generate_file(const ImageGeneration& generation, World& world);

}  // namespace meshard
