// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fixture_cases.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>

#include <torch/torch.h>

#include "io/safetensors.h"
#include "tests/support/test_paths.h"

namespace meshard::test {
namespace {

at::ScalarType scalar_type(ArrayType type)
{
    switch (type) {
    case ArrayType::F64: return at::kDouble;
    case ArrayType::F32: return at::kFloat;
    case ArrayType::I64: return at::kLong;
    case ArrayType::I32: return at::kInt;
    case ArrayType::BOOL: return at::kBool;
    default: throw std::runtime_error("fixture: type " + std::string(to_string(type)) + " is not expected");
    }
}

std::string content(const std::filesystem::path& path)
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

}  // namespace

nlohmann::json FixtureCase::description() const
{
    return nlohmann::json::parse(content(json_path));
}

std::map<std::string, at::Tensor> FixtureCase::tensors() const
{
    auto path = json_path;
    const auto file = read_safetensors(path.replace_extension(".safetensors"));
    std::map<std::string, at::Tensor> tensors;
    for (const auto& array : file.arrays) {
        const auto view = torch::from_blob(const_cast<std::byte*>(array.data), array.shape, scalar_type(array.type));
        tensors[array.name] = view.clone();
    }
    return tensors;
}

std::vector<FixtureCase> fixture_cases()
{
    std::vector<std::filesystem::path> folders{source_path("tests/data/fixtures"), source_path("../shared/fixtures")};
    if (const char* named = std::getenv("MESHARD_FIXTURES")) {
        std::istringstream list(named);
        for (std::string folder; std::getline(list, folder, ':');) {
            if (!folder.empty()) folders.emplace_back(folder);
        }
    }

    std::vector<FixtureCase> cases;
    for (const auto& folder : folders) {
        if (!std::filesystem::is_directory(folder)) continue;
        std::vector<std::filesystem::path> paths;
        for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
            auto arrays = entry.path();
            if (entry.path().extension() == ".json" && std::filesystem::exists(arrays.replace_extension(".safetensors"))) {
                paths.push_back(entry.path());
            }
        }
        std::sort(paths.begin(), paths.end());
        for (const auto& path : paths) {
            auto name = identifier(path.stem().string());
            const auto same_name = std::find_if(cases.begin(), cases.end(), [&](const auto& other) { return other.name == name; });
            if (same_name != cases.end()) {
                auto mine = path;
                auto other = same_name->json_path;
                if (content(mine.replace_extension(".safetensors")) == content(other.replace_extension(".safetensors"))) continue;
                name += "_" + std::to_string(cases.size());
            }
            cases.push_back({name, path});
        }
    }
    return cases;
}

}  // namespace meshard::test
