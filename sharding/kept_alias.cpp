// SPDX-License-Identifier: Apache-2.0
#include "sharding/kept_alias.h"

#include <ATen/ATen.h>

#include "sharding/redistribute.h"
#include "sharding/shard_tensor.h"

namespace meshard {

KeptAlias::KeptAlias(const at::Tensor& written)
{
    if (!is_sharded(written)) return;
    written_ = written;
    local_ = local_of(written);
    spec_ = spec_of(written);
    if (copies_a_row(written)) {
        copies_ = wrap(local_, spec_);
        inherit_row_copy(written, {copies_});
    }
}

void KeptAlias::restore() const
{
    if (!written_.defined() || local_of(written_).is_same(local_)) return;
    // Whether memory is shared may differ between ranks, by the strides of their parts; what follows must not.
    if (spec_->device_mesh->all().all_agree(local_.has_storage() && local_.storage().use_count() == 1)) return;
    bool counts = true;   // of a pending sum, the first rank's part is the whole
    for (std::size_t a = 0; a < spec_->axes.size(); ++a) {
        if (spec_->axes[a].placement == Partial() && spec_->device_mesh->coordinate(a) > 0) counts = false;
    }
    reduce_partials({written_});
    const auto value = convert(written_, make_spec(spec_->device_mesh, without_pending(spec_->axes), spec_->index_map));
    if (counts) local_.copy_(local_of(value));
    else local_.zero_();
    replace_value(written_, local_, spec_);
    if (copies_.defined()) inherit_row_copy(copies_, {written_});
}

}  // namespace meshard
