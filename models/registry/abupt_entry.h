// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/registry/registry.h"

namespace meshard {

/// AB-UPT for programs. A case's points are the queries: each place is a question of its own, whatever the other points are. Anchors, supernodes and the
/// geometry's points are drawn from the case's body and the box `volume_box`, the same in every call and on every rank, so that a part of a case, or
/// other points around the same body, get the values that they would have in the whole.
///
/// Positions go into the model from 0 to 1000 along the longest edge of `volume_box`. Anchors are cut into equal parts among the ranks that share the points.
ModelEntry abupt_entry();

}  // namespace meshard
