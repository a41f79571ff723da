// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

namespace meshard::test {

/// A reference case on disk: NAME.json says what was run, NAME.safetensors holds inputs, parameters, results and gradients.
struct FixtureCase {
    std::string name;                       ///< stem of the two files, unique in the list
    std::filesystem::path json_path;

    nlohmann::json description() const;
    std::map<std::string, at::Tensor> tensors() const;
};

/// Prints a case by its name in test reports.
inline void PrintTo(const FixtureCase& fixture, std::ostream* out)
{
    *out << fixture.name;
}

/// All cases below `tests/data/fixtures`, the folder `shared/fixtures` beside the checkout, and those that MESHARD_FIXTURES names
/// (separated by colons). A case that lies in several folders with the same bytes is listed once.
std::vector<FixtureCase> fixture_cases();

}  // namespace meshard::test
