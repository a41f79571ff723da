// SPDX-License-Identifier: Apache-2.0
#include "apps/training/step_news.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace meshard {

StepNews::StepNews(at::Tensor own, const RankGroup& ranks)
{
    ranks.all_reduce(own);
    host_ = own;
    if (own.is_cpu()) return;
    host_ = at::empty(own.sizes(), at::TensorOptions(at::kDouble).pinned_memory(true));
    host_.copy_(own, /*non_blocking=*/true);
    copied_ = std::make_shared<c10::Event>(own.device().type());
    copied_->record(c10::impl::VirtualGuardImpl(own.device().type()).getStream(own.device()));
}

double StepNews::number(std::int64_t i) const
{
    if (copied_) copied_->synchronize();
    return host_.const_data_ptr<double>()[i];
}

}  // namespace meshard
