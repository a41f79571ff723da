// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace meshard {

/// What may stand for an option; of a list, for each entry.
struct OptionBounds {
    double least = -std::numeric_limits<double>::infinity();
    double most = std::numeric_limits<double>::infinity();
    bool above = false;                   ///< `least` itself is excluded
    std::vector<std::string> words = {};  ///< all that a text may be; none: any text
};

/// What programs know of an argument of a model besides its type and default.
struct OptionInfo {
    std::string name;
    std::string meaning;  ///< a line for people, without a full stop
    OptionBounds bounds = {};
    std::string only_with = {};  ///< the bounds hold where this other argument is true; empty: always
};

}  // namespace meshard
