// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <ostream>
#include <set>
#include <string>
#include <vector>

namespace meshard::test {

/// Where the reference's numbers lie: `tests/data/fixtures`, the folder `shared/fixtures` beside the checkout, and
/// those that MESHARD_FIXTURES names (separated by colons). Those that do not exist are left out.
std::vector<std::filesystem::path> fixture_folders();

/// What a description is of: its operation, or its class without the modules: `knn`, `GeoTransolver`.
std::string kind_of(const nlohmann::json& description);

/// A reference case on disk: NAME.json says what was run, NAME.safetensors holds inputs, parameters, results and
/// gradients.
struct FixtureCase {
    std::string name;  ///< stem of the two files, unique in the list
    std::filesystem::path json_path;
    std::string kind;  ///< `kind_of` its description

    nlohmann::json description() const;
    std::filesystem::path arrays_path() const;
};

/// All cases below the fixture folders, looked for once in a process. One that lies in several folders with the same
/// bytes is listed once.
const std::vector<FixtureCase>& fixture_cases();

/// Those of these kinds.
std::vector<FixtureCase> fixture_cases(const std::set<std::string>& kinds);

/// A folder with one model's files in the formats of the reference, their content as `weights.safetensors` and inputs
/// and outputs as `values.safetensors`.
struct CheckpointFixture {
    std::string name;  ///< of the folder, unique in the list
    std::filesystem::path folder;

    nlohmann::json info() const;                             ///< class, arguments, and how the optimizer was set
    std::vector<std::filesystem::path> model_files() const;  ///< .mdlus, and state dicts as .pt
    std::vector<std::filesystem::path>
    optimizer_files() const;  ///< as the reference's `save_checkpoint` writes them; may be none
};

std::vector<CheckpointFixture> checkpoint_fixtures();

/// A training run of the reference: values before the first step, and what it logged of every epoch.
struct TrainingFixture {
    std::string name;  ///< unique in the list
    std::filesystem::path init;
    std::filesystem::path log;
};

std::vector<TrainingFixture> training_fixtures();

/// Print by their names in test reports.
inline void PrintTo(const FixtureCase& fixture, std::ostream* out)
{
    *out << fixture.name;
}
inline void PrintTo(const CheckpointFixture& fixture, std::ostream* out)
{
    *out << fixture.name;
}
inline void PrintTo(const TrainingFixture& fixture, std::ostream* out)
{
    *out << fixture.name;
}

/// For INSTANTIATE_TEST_SUITE_P.
struct NameOfFixture {
    template <class Info>
    std::string operator()(const Info& info) const
    {
        return info.param.name;
    }
};

}  // namespace meshard::test
