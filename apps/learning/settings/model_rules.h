// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/settings.h"

#include <string_view>
#include <vector>

namespace meshard {

/// Keys of the group `model` of a training configuration, each with the models that it belongs to: of one registered model, with its defaults, or of all.
std::vector<SettingRule> model_rules(std::string_view model);

}  // namespace meshard
