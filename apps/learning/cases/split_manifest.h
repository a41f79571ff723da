// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/training_config.h"

#include <map>
#include <string>
#include <vector>

namespace meshard {

/// Reads the lists of a manifest's entries by part: train, val, test. The file has one of three forms that public data
/// sets use:
/// - JSON with lists by name, e.g. {"full_train": [...], "full_test": [...]}: with `data.split.name` full these are
///   full_train, full_val and full_test; without a name train, val and test (also validation), or the lists that
///   data.split.train, val and test name;
/// - JSON with families of such lists, e.g. {"wake": {"train": [...], "test": [...]}}, chosen by
///   `data.split.name` wake;
/// - text files, one for each part, with a * where their names have train, val or test, e.g. *_design_ids.txt: one
///   name a line; blank lines and text after a # are ignored.
/// An entry is a text or a number: the id of a case, its file or a folder below data.root.
/// @throws IoError for a file that cannot be read or has another form; InvalidInput for a list or a family that it
/// lacks, with the nearest name.
std::map<std::string, std::vector<std::string>> read_split_manifest(const DataConfig& data);

}  // namespace meshard
