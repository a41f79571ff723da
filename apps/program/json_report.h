// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <iostream>

namespace meshard {

/// Keeps its keys in the order in which they were set.
using Json = nlohmann::ordered_json;

/// One value on stdout. Bytes that are not UTF-8 (in names from files) are replaced.
inline void print_json(const Json& json)
{
    std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

}  // namespace meshard
