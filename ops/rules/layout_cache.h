// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/rules/rank_parts.h"

#include <optional>

namespace meshard {

/// Stores the layout of the input of a selection (slice, select, max along a dimension), whose backward operator gets
/// the sizes of that input but not its layout. Backward rules give their result the stored layout, so that no
/// redistribution is needed where gradients are added. Any layout would be correct; this one is the cheapest. Keeps the
/// latest entry for each device mesh and sizes; equal on every rank.
void store_layout(const at::Tensor& tensor);

/// The layouts stored last for these sizes, if any.
std::optional<AxisLayouts> find_layout(const RuleCall& call, c10::IntArrayRef sizes);

}  // namespace meshard
