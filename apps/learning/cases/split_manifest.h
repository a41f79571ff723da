// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/training_config.h"

#include <map>
#include <string>
#include <vector>

namespace meshard {

/// What a manifest's lists name, by part: train, val, test. Files of three forms, as public data sets ship them:
/// - JSON with lists by name, e.g. {"full_train": [...], "full_test": [...]}: `data.split.name` full stands for full_train, full_val and full_test;
///   without a name the lists are train, val and test (also validation), or those that data.split.train, val and test name;
/// - JSON with families of such lists, e.g. {"wake": {"train": [...], "test": [...]}}: `data.split.name` wake;
/// - text, a name a line, blank lines and what follows a # left out: a file a part, with a * where train, val or test stands, e.g. *_design_ids.txt.
/// An entry is a text or a number: the id of a case, its file or a folder below data.root.
/// @throws IoError for a file that cannot be read or is of another form; InvalidInput for a list or a family that it has not, with the nearest name.
std::map<std::string, std::vector<std::string>> read_split_manifest(const DataConfig& data);

}  // namespace meshard
