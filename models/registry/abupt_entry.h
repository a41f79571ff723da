// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/registry/registry.h"

namespace meshard {

/// AB-UPT for programs. A case's points are the queries: the result at a position does not depend on the other points.
/// Anchors, supernodes and the geometry's points are drawn from the case's body and the box `volume_box`, equally in
/// every call and on every rank, so that a part of a case, or other points around the same body, get the values that
/// they would have in the whole.
///
/// The model's coordinates range from 0 to 1000 along the longest edge of `volume_box`. Anchors are cut into equal
/// parts among the ranks that share the points.
ModelEntry abupt_entry();

}  // namespace meshard
