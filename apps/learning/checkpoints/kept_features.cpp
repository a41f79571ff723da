// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/checkpoints/kept_features.h"

#include "io/bytes/atomic_file.h"
#include "partition/error.h"

#include <fstream>
#include <string>

namespace meshard {
namespace {

std::filesystem::path path_beside(const std::filesystem::path& checkpoint)
{
    return checkpoint.parent_path() / "features.json";
}

}  // namespace

void keep_features(const std::filesystem::path& checkpoint, std::int64_t step, const FeatureDistance& features)
{
    const nlohmann::json json{{"step", step}, {"features", features.to_json()}};
    write_file_atomically(path_beside(checkpoint), json.dump() + "\n");
}

std::optional<FeatureDistance> kept_features(const std::filesystem::path& checkpoint, std::int64_t step)
{
    const auto path = path_beside(checkpoint);
    std::ifstream file(path);
    if (!file) return std::nullopt;
    try {
        const auto json = nlohmann::json::parse(file);
        if (json.at("step") != step) return std::nullopt;
        return FeatureDistance::from_json(json.at("features"));
    } catch (const std::exception& error) {
        throw IoError("{} is damaged ({}). Remove it: predictions then do not tell how far a case lies from "
                      "the training cases as the model sees them.",
                      path.string(), error.what());
    }
}

}  // namespace meshard
