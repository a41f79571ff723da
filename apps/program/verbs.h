// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

namespace meshard {

// Each verb has one function, in the source of the same name, which parses the arguments, calls the library, reports,
// and returns the exit code.
int info_command(std::span<const std::string> arguments);
int partition_command(std::span<const std::string> arguments);
int check_command(std::span<const std::string> arguments);
int convert_command(std::span<const std::string> arguments);
int merge_command(std::span<const std::string> arguments);
int forces_command(std::span<const std::string> arguments);
int export_command(std::span<const std::string> arguments);
int render_command(std::span<const std::string> arguments);
int bench_command(std::span<const std::string> arguments);
int repartition_command(std::span<const std::string> arguments);
int devices_command(std::span<const std::string> arguments);  // this and the following are in meshard-models
int model_bench_command(std::span<const std::string> arguments);
int probe_command(std::span<const std::string> arguments);
int prepare_command(std::span<const std::string> arguments);
int train_command(std::span<const std::string> arguments);
int predict_command(std::span<const std::string> arguments);
int generate_command(std::span<const std::string> arguments);
int evaluate_command(std::span<const std::string> arguments);
int report_command(std::span<const std::string> arguments);
int sweep_command(std::span<const std::string> arguments);
int interpolate_command(std::span<const std::string> arguments);
int derive_command(std::span<const std::string> arguments);

}  // namespace meshard
