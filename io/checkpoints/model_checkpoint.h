// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/checkpoints/safetensors.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// Weights of a model under PhysicsNeMo's names, and the file's data about the model.
struct ModelCheckpoint {
    std::string architecture;  ///< `Transolver`, `GeoTransolver`, ...; empty if the file does not contain it
    /// Arguments of the constructor, as the text of a JSON object; empty if the file does not contain them. A nested
    /// model is an argument {"__name__": class, "__args__": arguments}.
    std::string arguments;
    std::string others;              ///< other numbers and texts in the file (epoch, ...), as the text of a JSON object
    NamedArrays weights;             ///< in the file's order; the metadata are those of a safetensors file
    std::vector<std::string> notes;  ///< one sentence for each renamed or omitted weight
};

enum class CheckpointFormat { Mdlus, Pt, Safetensors };

std::string_view to_string(CheckpointFormat format);  ///< `mdlus`, `pt`, `safetensors`

/// The format by the extension of a name: .mdlus, .pt or .pth, .safetensors.
/// @throws InvalidInput for another extension.
CheckpointFormat checkpoint_format(const std::filesystem::path& path);

/// The format by the content: a .mdlus is a zip or tar archive with the model's description, a .pt such an archive
/// without one or a pickle. None for any other file, and if there is no file.
std::optional<CheckpointFormat> format_of_content(const std::filesystem::path& path);
/// Decided by the content, or else, as for a damaged file, by the extension.
bool is_checkpoint_file(const std::filesystem::path& path);

/// Reads a PhysicsNeMo checkpoint (.mdlus, zip or tar), a file of torch.save or a safetensors file; the content decides
/// which of them it is.
///
/// In a file of torch.save it takes the state dict, at the top or under a key such as `model_state_dict`; if there is
/// none, every tensor, under its keys joined by dots. Prefixes that wrappers add (`module.`, `_orig_mod.`) are removed,
/// older names are changed to today's (`linear_pre` to `layers.0`, `linear_post` to `layers.2`), `device_buffer`
/// entries are omitted. If the file does not contain its architecture, it is read from a .json of the same name beside
/// it, if there is one: {"model_class": ..., "model": {arguments}}.
///
/// The arrays are views into the file if it stores them plainly. Nothing in the file is ever executed.
/// @throws IoError if the file is missing, truncated, damaged, or holds anything but tensors, dicts, lists, numbers and
///         texts.
ModelCheckpoint read_checkpoint(const std::filesystem::path& path);

/// Writes atomically. A .safetensors or .pt file gets a .json of the same name beside it: architecture, arguments and
/// the rest; a .pt only if it has an architecture, else one that is there is removed.
/// @throws InvalidInput if the .json beside is something else, for a .mdlus if the architecture is unknown or has an
/// argument that PhysicsNeMo's has not, and as `write_safetensors`; IoError if it cannot be written.
void write_checkpoint(const std::filesystem::path& path, const ModelCheckpoint& checkpoint, CheckpointFormat format);

/// The name in meshard's model of a weight that DoMINO's class names twice; any other name is returned unchanged.
std::string first_name(const std::string& name);

}  // namespace meshard
