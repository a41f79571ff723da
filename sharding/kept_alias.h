// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "sharding/shard_spec.h"

namespace meshard {

/// What is written to while other tensors share its memory (views, their bases) must keep that memory: made before a rule runs, this
/// brings the result of one that put another layout in its place back.
class KeptAlias {
public:
    explicit KeptAlias(const at::Tensor& written);

    /// Collective where the rule replaced the tensor's value.
    void restore() const;

private:
    at::Tensor written_, local_, copies_;
    SpecPtr spec_;
};

}  // namespace meshard
