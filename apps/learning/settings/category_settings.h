// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/setting_table.h"

#include <string>
#include <vector>

namespace meshard {

/// Arrays of whole numbers that stand for kinds of points, such as types of nodes. For each kind the model is told a
/// number, 1 where a point is of it, and else 0.
struct CategorySettings {
    std::vector<std::string> names;

    /// What each array has in the training cases, ascending. Follows from the cases; empty until they are read.
    std::vector<std::vector<double>> values;

    void add_keys(SettingTable& keys)
    {
        keys.add("data.categories", names, {},
                 "arrays of whole numbers that the model is told as kinds, one number 0 or 1 for each, e.g. node_type");
    }
};

}  // namespace meshard
