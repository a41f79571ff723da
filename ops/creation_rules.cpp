// SPDX-License-Identifier: Apache-2.0
// New tensors in the shape of a sharded one.
#include <ATen/ATen.h>

#include "ops/placement_algebra.h"

namespace meshard {
namespace {

/// zeros_like and alike: cut as the model is; where that is pending, the same on every rank.
void like(RuleCall& call)
{
    call.keep_strides();
    const auto axes = without_pending(layouts_of(call, call.tensor(0)));
    call.make_local();
    call.run({call.spec(axes)});
}

/// new_zeros(self, size) and alike: type and device of self, the whole on every rank.
void new_whole(RuleCall& call)
{
    call.make_local();
    call.run({call.replicated()});
}

const RuleRegistration r_like("creation", {"aten::empty_like", "aten::zeros_like", "aten::ones_like", "aten::full_like"}, like);
const RuleRegistration r_new("creation", {"aten::new_zeros", "aten::new_ones", "aten::new_full", "aten::new_empty", "aten::new_empty_strided"},
                             new_whole);

}  // namespace
}  // namespace meshard
