// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/content_hash.h"
#include "partition/error.h"

#include <nlohmann/json.hpp>

#include <string>

namespace meshard {

/// Thrown for a file whose format has a version that this program does not support.
class UnknownVersion : public IoError {
public:
    /// @param what   the file with its kind, e.g. `x/manifest.json, a manifest of shards,`
    UnknownVersion(const std::string& what, const std::string& found, const std::string& known)
        : IoError(what + " has version " + found + ", this program knows version " + known +
                  ". Use the release of meshard that wrote it, or write it anew.")
    {
    }
};

/// Hash of the content of a JSON object, in the form of manifests, independent of spaces, line ends and the order of
/// entries.
inline std::string hash_of_json(const nlohmann::json& object)
{
    return hash_text(xxh64_of_text(object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
}

/// Adds the entry `hash`, by which a reader detects whether anything else in the object has changed.
template <class Json>
Json with_hash(Json object)
{
    object["hash"] = hash_of_json(object);
    return object;
}

/// Checks an object of `with_hash`; one without `hash`, from an earlier version, passes.
/// @param where    begins the message, e.g. the file's name
/// @param remedy   ends it: what to do
/// @throws IoError if the object is not the one that was written
template <class Json>
void require_hash(Json object, const std::string& where, const std::string& remedy)
{
    const auto found = object.find("hash");
    if (found == object.end()) return;
    const Json stated = *found;
    object.erase("hash");
    if (const auto hash = hash_of_json(object); stated != hash)
        throw IoError("{} is damaged or was changed: its content has the hash {}, and when it was written had {}. {}",
                      where, hash, stated.dump(), remedy);
}

/// Checks the version of a file's format.
/// @param what   the file with its kind, e.g. `x/manifest.json, a manifest of shards,`
/// @throws UnknownVersion
template <class Json>
void require_version(const Json& object, int known, const std::string& what)
{
    const auto found = object.find("version");
    const auto stated = found == object.end() ? "none" : found->dump();
    if (stated != std::to_string(known)) throw UnknownVersion(what, stated, std::to_string(known));
}

}  // namespace meshard
