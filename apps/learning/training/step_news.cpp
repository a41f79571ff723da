// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/step_news.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace meshard {
namespace {

/// An event that has its time, of what the device's current stream has been given up to now.
std::shared_ptr<c10::Event> recorded_on(const at::Device& device)
{
    auto event = std::make_shared<c10::Event>(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    return event;
}

}  // namespace

StepSummary::StepSummary(at::Tensor own, const RankGroup& ranks)
{
    ranks.all_reduce(own);
    host_ = own;
    if (own.is_cpu()) return;
    host_ = at::empty(own.sizes(), at::TensorOptions(at::kDouble).pinned_memory(true));
    host_.copy_(own, /*non_blocking=*/true);
    copied_ = recorded_on(own.device());
}

std::shared_ptr<const c10::Event> StepSummary::beginning(const at::Device& device)
{
    return device.is_cpu() ? nullptr : recorded_on(device);
}

std::optional<double> StepSummary::seconds_since(const std::shared_ptr<const c10::Event>& beginning) const
{
    if (!copied_ || !beginning) return std::nullopt;
    wait();
    return beginning->elapsedTime(*copied_) * 1e-3;
}

void StepSummary::wait() const
{
    if (copied_ && !std::exchange(is_there_, true)) copied_->synchronize();
}

double StepSummary::number(std::int64_t i) const
{
    wait();
    return host_.const_data_ptr<double>()[i];
}

}  // namespace meshard
