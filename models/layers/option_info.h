// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace meshard {

/// The allowed values of an option, or of each entry of a list.
struct OptionBounds {
    double least = -std::numeric_limits<double>::infinity();
    double most = std::numeric_limits<double>::infinity();
    bool above = false;                   ///< whether `least` itself is excluded
    std::vector<std::string> words = {};  ///< allowed texts; empty: any text
};

/// Documentation and bounds of a model's argument, for programs.
struct OptionInfo {
    std::string name;
    std::string meaning;  ///< one line for help texts, without a full stop
    OptionBounds bounds = {};
    /// It counts only if this other argument is true, beside which alone its bounds are checked, or if
    /// `argument=word` or one of `argument=word|other` has this value; empty: always.
    std::string only_with = {};
};

}  // namespace meshard
