// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fixture_cases.h"

#include "tests/support/test_paths.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace meshard::test {
namespace {

namespace fs = std::filesystem;

std::string content(const fs::path& path)
{
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

std::string identifier(std::string name)
{
    for (auto& c : name) {
        if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
    }
    return name;
}

/// Those below a folder that `is_wanted` says yes to, sorted.
template <class Predicate>
std::vector<fs::path> paths_below(const fs::path& folder, const Predicate& is_wanted)
{
    std::vector<fs::path> paths;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        if (is_wanted(entry.path())) paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    return paths;
}

/// Lists a fixture under its name, or a name with a number if another has it; not at all if `content_path` of that
/// other holds the same bytes.
template <class Fixture, class ContentPath>
void add(std::vector<Fixture>& list, Fixture fixture, const ContentPath& content_path)
{
    fixture.name = identifier(fixture.name);
    const auto has_its_name = [&](const Fixture& other) { return other.name == fixture.name; };
    const auto same_name = std::find_if(list.begin(), list.end(), has_its_name);
    if (same_name != list.end()) {
        if (content(content_path(fixture)) == content(content_path(*same_name))) return;
        fixture.name += "_" + std::to_string(list.size());
    }
    list.push_back(std::move(fixture));
}

nlohmann::json json_of(const fs::path& path)
{
    return nlohmann::json::parse(content(path));
}

std::vector<FixtureCase> find_fixture_cases()
{
    const auto is_case = [](const fs::path& path) {
        return path.extension() == ".json" && fs::exists(fs::path(path).replace_extension(".safetensors"));
    };
    std::vector<FixtureCase> cases;
    for (const auto& folder : fixture_folders()) {
        for (const auto& path : paths_below(folder, is_case)) {
            add(cases, FixtureCase{path.stem().string(), path, kind_of(json_of(path))},
                [](const auto& fixture) { return fixture.arrays_path(); });
        }
    }
    return cases;
}

}  // namespace

std::string kind_of(const nlohmann::json& description)
{
    if (description.contains("operation")) {
        const auto operation = description["operation"].get<std::string>();
        return operation.substr(0, operation.find(" on ["));  // its tensors' shapes
    }
    const auto name = description.value("class", std::string("a case without a class"));
    return name.substr(name.rfind('.') + 1);
}

std::vector<fs::path> fixture_folders()
{
    std::vector<fs::path> folders{source_path("tests/data/fixtures"), source_path("../shared/fixtures")};
    if (const char* named = std::getenv("MESHARD_FIXTURES")) {
        std::istringstream list(named);
        for (std::string folder; std::getline(list, folder, ':');) {
            if (!folder.empty()) folders.emplace_back(folder);
        }
    }
    std::erase_if(folders, [](const auto& folder) { return !fs::is_directory(folder); });
    return folders;
}

nlohmann::json FixtureCase::description() const
{
    return json_of(json_path);
}

fs::path FixtureCase::arrays_path() const
{
    return fs::path(json_path).replace_extension(".safetensors");
}

const std::vector<FixtureCase>& fixture_cases()
{
    static const auto cases = find_fixture_cases();
    return cases;
}

std::vector<FixtureCase> fixture_cases(const std::set<std::string>& kinds)
{
    auto cases = fixture_cases();
    std::erase_if(cases, [&](const auto& fixture) { return !kinds.contains(fixture.kind); });
    return cases;
}

nlohmann::json CheckpointFixture::info() const
{
    const auto long_form = folder / "info.json";
    return json_of(fs::exists(long_form) ? long_form : folder / "about.json");
}

std::vector<fs::path> CheckpointFixture::model_files() const
{
    return paths_below(folder, [](const fs::path& path) {
        const auto name = path.filename().string();
        return name.ends_with(".mdlus") || (name.starts_with("state_dict") && name.ends_with(".pt"));
    });
}

std::vector<fs::path> CheckpointFixture::optimizer_files() const
{
    return paths_below(folder, [](const fs::path& path) {
        return path.filename().string().starts_with("checkpoint.") && path.extension() == ".pt";
    });
}

std::vector<CheckpointFixture> checkpoint_fixtures()
{
    const auto is_checkpoint = [](const fs::path& path) {
        return path.filename() == "weights.safetensors" && fs::exists(path.parent_path() / "values.safetensors") &&
               (fs::exists(path.parent_path() / "info.json") || fs::exists(path.parent_path() / "about.json"));
    };
    std::vector<CheckpointFixture> fixtures;
    for (const auto& folder : fixture_folders()) {
        for (const auto& path : paths_below(folder, is_checkpoint)) {
            const auto parent = path.parent_path();
            add(fixtures, CheckpointFixture{parent.filename().string(), parent},
                [](const auto& fixture) { return fixture.folder / "weights.safetensors"; });
        }
    }
    return fixtures;
}

std::vector<TrainingFixture> training_fixtures()
{
    const auto init_of = [](const fs::path& log) {
        const auto stem = log.stem().string();
        return log.parent_path() / ("init" + stem.substr(3) + ".safetensors");
    };
    const auto is_log = [&](const fs::path& path) {
        return path.extension() == ".jsonl" && path.filename().string().starts_with("log_") &&
               fs::exists(init_of(path));
    };
    std::vector<TrainingFixture> fixtures;
    for (const auto& folder : fixture_folders()) {
        for (const auto& path : paths_below(folder, is_log)) {
            add(fixtures, TrainingFixture{path.stem().string().substr(4), init_of(path), path},
                [](const auto& fixture) { return fixture.log; });
        }
    }
    return fixtures;
}

}  // namespace meshard::test
