// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace meshard {

struct CheckpointConversion {
    std::string input;
    std::string output;
    std::string to;     ///< `mdlus`, `pt` or `safetensors`; empty: by the output's extension
    bool json = false;  ///< one JSON object on stdout instead of the report
};

/// `meshard convert` for a checkpoint (`is_checkpoint_file` of the input): reads it, writes the other, reports.
/// @throws UsageError if `to` or the output's extension names no format; IoError and InvalidInput as `read_checkpoint`,
/// `write_checkpoint`.
void convert_checkpoint(const CheckpointConversion& options);

/// `meshard info` for a checkpoint: prints architecture, arguments, and a table of the parameters.
/// @throws IoError as `read_checkpoint`.
void print_checkpoint_info(const std::string& file, bool json);

}  // namespace meshard
