// SPDX-License-Identifier: Apache-2.0
#include "sharding/kept_alias.h"

#include <ATen/ATen.h>

#include "sharding/redistribute.h"
#include "sharding/shard_tensor.h"

namespace meshard {

KeptAlias::KeptAlias(const at::Tensor& written)
{
    if (!is_sharded(written) || !shares_memory(written)) return;
    written_ = written;
    local_ = local_of(written);
    spec_ = spec_of(written);
    if (is_copy(written)) {
        copies_ = wrap(local_, spec_);
        inherit_copy(written, {copies_});
    }
}

void KeptAlias::restore() const
{
    if (!written_.defined() || local_of(written_).is_same(local_)) return;
    reduce_partials({written_});
    const auto value = convert(written_, make_spec(spec_->device_mesh, without_pending(spec_->axes), spec_->index_map));
    fill_pending(local_, *spec_, local_of(value));
    replace_value(written_, local_, spec_);
    if (copies_.defined()) inherit_copy(copies_, {written_});
}

}  // namespace meshard
