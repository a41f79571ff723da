// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/surface_facing.h"

#include <CLI/CLI.hpp>

#include <optional>
#include <string>

namespace meshard {

/// Adds `--orient`. `orient` stays empty if the option is not given; the help shows `fallback` as the default.
inline void add_orient_option(CLI::App& app, std::optional<Orient>& orient, const std::string& fallback)
{
    app.add_option_function<std::string>(
           "--orient", [&orient](const std::string& word) { orient = parse_orient(word); },
           "turn polygons outward whose normals point into the body, or take all as-is, with a warning where some do")
        ->type_name("outward|as-is")
        ->check(CLI::IsMember({"outward", "as-is"}))
        ->default_str(fallback);
}

}  // namespace meshard
