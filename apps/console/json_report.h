// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <iostream>

namespace meshard {

/// JSON whose keys stay in the order in which they were set.
using Json = nlohmann::ordered_json;

/// Prints a value to stdout. Replaces bytes that are not UTF-8 (in names from files).
inline void print_json(const Json& json)
{
    std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

}  // namespace meshard
