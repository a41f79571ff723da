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
    std::string architecture;        ///< `Transolver`, `GeoTransolver`, ...; empty if the file does not contain it
    std::string arguments;           ///< of the constructor, as the text of a JSON object; empty if the file does not contain them. A model within the model is
                                     ///< an argument {"__name__": class, "__args__": arguments}
    std::string others;              ///< other numbers and texts in the file (epoch, ...), as the text of a JSON object
    NamedArrays weights;             ///< in the file's order; the metadata are those of a safetensors file
    std::vector<std::string> notes;  ///< what was renamed or left out, a sentence each
};

enum class CheckpointFormat { Mdlus, Pt, Safetensors };

std::string_view to_string(CheckpointFormat format);  ///< `mdlus`, `pt`, `safetensors`

/// By the name's extension: .mdlus, .pt or .pth, .safetensors.
/// @throws InvalidInput for another extension.
CheckpointFormat checkpoint_format(const std::filesystem::path& path);

/// By the content: a .mdlus is a zip or tar archive with the model's description, a .pt such an archive without or a pickle. Nothing for any other file, and
/// where there is none.
std::optional<CheckpointFormat> format_of_content(const std::filesystem::path& path);
bool is_checkpoint_file(const std::filesystem::path& path);  ///< by the content, or else, as for a damaged file, by the extension

/// Reads a PhysicsNeMo checkpoint (.mdlus, zip or tar), a file of torch.save or a safetensors file; which of them is decided by the content.
///
/// Of a file of torch.save the state dict is taken, from the top or from a key such as `model_state_dict`; if there is none, every tensor,
/// under its keys joined by dots. Prefixes that wrappers add (`module.`, `_orig_mod.`) are removed, older names are changed to today's
/// (`linear_pre` to `layers.0`, `linear_post` to `layers.2`), `device_buffer` entries are left out. If the file does not contain its architecture, it is read
/// from a .json of the same name beside it, if there is one: {"model_class": ..., "model": {arguments}}.
///
/// The arrays are views into the file where it stores them plainly. Nothing in the file is ever executed.
/// @throws IoError if the file is missing, truncated, damaged, or holds anything but tensors, dicts, lists, numbers and texts.
ModelCheckpoint read_checkpoint(const std::filesystem::path& path);

/// Writes atomically. A .safetensors or .pt file gets a .json of the same name beside it: architecture, arguments and the rest; a .pt only if it has an
/// architecture.
/// @throws InvalidInput for a .mdlus if the architecture is unknown or has an argument that PhysicsNeMo's has not, and as `write_safetensors`; IoError if it
/// cannot be written.
void write_checkpoint(const std::filesystem::path& path, const ModelCheckpoint& checkpoint, CheckpointFormat format);

/// The name that meshard's model has for a weight which DoMINO's class names twice; any other name as it is.
std::string first_name(const std::string& name);

}  // namespace meshard
