// SPDX-License-Identifier: Apache-2.0
#include "models/transolver/flare.h"

#include "models/transolver/flare_attention.h"
#include "partition/error.h"

#include <torch/nn/modules/container/any.h>

namespace meshard {
namespace {

const TransolverOptions& without_plus(const TransolverOptions& options)
{
    if (options.plus) throw InvalidInput("FLARE: there is no argument 'plus'; it belongs to Transolver.");
    return options;
}

}  // namespace

// As in the reference, a whole Transolver is made first, which draws random numbers; then its blocks are replaced.
FlareImpl::FlareImpl(const TransolverOptions& options) : TransolverImpl(without_plus(options))
{
    replace_blocks([&] {
        return torch::nn::AnyModule(FlareAttention(FlareAttentionOptions{.dim = options.n_hidden,
                                                                         .num_heads = options.n_head,
                                                                         .head_dim = options.n_hidden / options.n_head,
                                                                         .num_queries = options.slice_num,
                                                                         .dropout = options.dropout,
                                                                         .noise = row_noise()}));
    });
}

}  // namespace meshard
