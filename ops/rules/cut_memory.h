// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "ops/rules/rank_parts.h"

namespace meshard {

/// Gradients of selections (slice, select, max along a dimension) know the sizes of what was selected from but not how it was cut. Forward rules
/// leave a note of that here; backward rules make their result lie in the same way, so that nothing has to move where gradients meet. Any layout
/// would be correct: this one is the cheap one. Notes are kept by device mesh and sizes, the latest wins; the same on every rank.
void remember_cut(const RuleCall& call, const at::Tensor& tensor);

/// Layouts of the last tensor of these sizes that was noted, if any.
std::optional<AxisLayouts> recall_cut(const RuleCall& call, c10::IntArrayRef sizes);

}  // namespace meshard
