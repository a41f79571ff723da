// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/settings.h"

#include <string_view>
#include <vector>

namespace meshard {

/// Returns the keys of the group `model` of a training configuration, each with the models that have it: the keys of
/// one registered model with its defaults, or those of all.
std::vector<SettingRule> model_rules(std::string_view model);

}  // namespace meshard
