// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/registry/registry.h"

#include <ATen/core/Tensor.h>

namespace meshard {

/// The triangles of a body, in double precision.
struct BodyTriangles {
    at::Tensor corners;  ///< (F, 3, 3)
    at::Tensor areas;    ///< (F)
};

BodyTriangles triangles_of(const CaseBody& body);

/// @param model   begins the message
/// @throws InvalidInput if there is no body, or for a batch of several cases, each of which has its own body
void require_one_body(const char* model, const PointInputs& points);

}  // namespace meshard
