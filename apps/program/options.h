// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/surface_facing.h"

#include <CLI/CLI.hpp>

#include <optional>
#include <string>

namespace meshard {

/// Adds an option whose values the help calls `type`.
template <class Value>
CLI::Option* add_named(CLI::App& app, const std::string& name, Value& value, const std::string& type,
                       const std::string& meaning)
{
    return app.add_option(name, value, meaning)->type_name(type);
}

/// As `add_named`; the help shows the value that it has now as the default.
template <class Value>
CLI::Option* add_shown(CLI::App& app, const std::string& name, Value& value, const std::string& type,
                       const std::string& meaning)
{
    return add_named(app, name, value, type, meaning)->capture_default_str();
}

/// Adds an option for a number from 1, which shows its default.
template <class Count>
void add_count_option(CLI::App& app, const std::string& name, Count& count, const std::string& meaning)
{
    add_shown(app, name, count, "N", meaning)->check(CLI::PositiveNumber);
}

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
