// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/ghosts/index_map.h"

#include <ATen/ATen.h>

namespace meshard {

/// Global ids of a map's rows, (rows), int64.
inline at::Tensor ids_of(const IndexMap& map)
{
    return at::tensor(map.global_ids, at::kLong);
}

}  // namespace meshard
