// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace meshard {

/// Numbers of ranks that properties of whole and cut rows are tested on.
constexpr int kRankCounts[] = {1, 2, 3, 4, 5, 7, 8};

}  // namespace meshard
