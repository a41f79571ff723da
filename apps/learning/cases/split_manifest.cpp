// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/split_manifest.h"

#include "partition/error.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>

namespace meshard {
namespace {

using Lists = std::map<std::string, std::vector<std::string>>;

constexpr const char* kParts[] = {"train", "val", "test"};

std::ifstream opened(const std::filesystem::path& path)
{
    std::ifstream stream(path);
    if (!stream || std::filesystem::is_directory(path))
        throw IoError("data.split.manifest: {} cannot be read. data.split.manifest is relative to data.root.",
                      path.string());
    return stream;
}

std::vector<std::string> read_text_list(const std::filesystem::path& path)
{
    auto stream = opened(path);
    std::vector<std::string> names;
    for (std::string line; std::getline(stream, line);) {
        line.erase(std::min(line.find('#'), line.size()));
        const auto first = line.find_first_not_of(" \t\r"), last = line.find_last_not_of(" \t\r");
        if (first != std::string::npos) names.push_back(line.substr(first, last - first + 1));
    }
    return names;
}

/// Reads one file a part.
Lists read_text_lists(const std::filesystem::path& pattern)
{
    Lists lists;
    for (const char* part : kParts) {
        auto path = pattern.string();
        path.replace(path.rfind('*'), 1, part);
        if (std::filesystem::exists(path)) lists[part] = read_text_list(path);
    }
    if (lists.empty())
        throw IoError("data.split.manifest: there is no file {} with train, val or test in place of the *. It is "
                      "relative to data.root.",
                      pattern.string());
    return lists;
}

std::vector<std::string> list_of(const nlohmann::json& entries, const std::string& name,
                                 const std::filesystem::path& path)
{
    const auto refuse = [&](const std::string& what) {
        return IoError(fmt::format("data.split.manifest: {} of {} {}; expected a list of texts or whole numbers.", name,
                                   path.string(), what));
    };
    if (!entries.is_array()) throw refuse("is no list");
    std::vector<std::string> names;
    for (const auto& entry : entries) {
        if (!entry.is_string() && !entry.is_number_integer()) throw refuse("holds " + entry.dump());
        names.push_back(entry.is_string() ? entry.get<std::string>() : entry.dump());
    }
    return names;
}

/// Names the lists and the families of lists of a manifest.
std::vector<std::string> names_in(const nlohmann::json& content)
{
    std::vector<std::string> names;
    for (const auto& [name, entry] : content.items()) {
        if (entry.is_array() || entry.is_object()) names.push_back(name);
    }
    return names;
}

[[noreturn]] void refuse_name(const std::string& what, const std::string& name, const nlohmann::json& content,
                              const std::filesystem::path& path)
{
    const auto names = names_in(content);
    throw InvalidInput("{} is '{}', which {} has not. It has {}.{}", what, name, path.string(), fmt::join(names, ", "),
                       suggestion(name, names));
}

}  // namespace

Lists read_split_manifest(const DataConfig& data)
{
    const auto path = data.root / data.split.manifest;
    if (data.split.manifest.find('*') != std::string::npos) return read_text_lists(path);

    auto stream = opened(path);
    const auto content = nlohmann::json::parse(stream, nullptr, false);
    if (!content.is_object()) {
        throw IoError("data.split.manifest: {} is no JSON object of lists. Of text files, one a part, write a * where "
                      "their names have train, "
                      "val or test.",
                      path.string());
    }
    Lists lists;
    for (const auto& [part, names] : data.split.lists) {
        for (const auto& name : names) {
            if (!content.contains(name)) refuse_name("data.split." + part, name, content, path);
            const auto more = list_of(content[name], name, path);
            lists[part].insert(lists[part].end(), more.begin(), more.end());
        }
    }
    if (!data.split.lists.empty()) return lists;

    const auto& name = data.split.name;
    const bool is_family = !name.empty() && content.contains(name) && content[name].is_object();
    const auto& family = is_family ? content[name] : content;
    const auto prefix = is_family || name.empty() ? std::string() : name + "_";
    for (const char* part : kParts) {
        for (const auto& key : {prefix + part, prefix + (std::string_view(part) == "val" ? "validation" : part)}) {
            if (lists.contains(part) || !family.contains(key)) continue;
            lists[part] = list_of(family[key], key, path);
        }
    }
    if (lists.empty() && name.empty()) {
        throw InvalidInput(
            "data.split.manifest: {} has no lists train, val and test. It has {}. "
            "Say which split with data.split.name, or name the lists, e.g. data.split.train=[scarce_train].",
            path.string(), fmt::join(names_in(content), ", "));
    }
    if (lists.empty()) refuse_name("data.split.name", name, content, path);
    return lists;
}

}  // namespace meshard
