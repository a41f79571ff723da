// SPDX-License-Identifier: Apache-2.0
#include "sharding/tensor/fixed_order.h"

#include "sharding/tensor/rule_table.h"

#include <ATen/Context.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

namespace meshard {
namespace {

/// Counts the guards: LibTorch has one setting for all threads, which the first guard sets and the last one restores.
class OneSetting {
public:
    void begin()
    {
        const std::lock_guard lock(mutex_);
        if (users_++ > 0) return;
        auto& context = at::globalContext();
        was_on_ = context.deterministicAlgorithms();
        only_warned_ = context.deterministicAlgorithmsWarnOnly();
        filled_ = context.deterministicFillUninitializedMemory();
        context.setDeterministicAlgorithms(true, /*warn_only=*/true);
        context.setDeterministicFillUninitializedMemory(false);
    }
    void end()
    {
        const std::lock_guard lock(mutex_);
        if (--users_ > 0) return;
        at::globalContext().setDeterministicAlgorithms(was_on_, only_warned_);
        at::globalContext().setDeterministicFillUninitializedMemory(filled_);
    }

private:
    std::mutex mutex_;
    int users_ = 0;
    bool was_on_ = false, only_warned_ = false, filled_ = true;
};

std::map<std::string, FixedOrderForm, std::less<>>& forms()
{
    static std::map<std::string, FixedOrderForm, std::less<>> table;
    return table;
}

OneSetting& one_setting()
{
    static OneSetting setting;
    return setting;
}

/// Kernels that add only whole numbers, in any order with the same result.
constexpr std::array kCounting{"_histc_cuda with floating point input"};

}  // namespace

bool is_on_device(const RuleCall& call)
{
    const auto tensors = call.tensors();
    return std::ranges::any_of(tensors, [](const at::Tensor& tensor) { return !tensor.is_cpu(); });
}

FixedOrderRegistration::FixedOrderRegistration(std::initializer_list<const char*> operators, FixedOrderForm form)
{
    for (const auto* op : operators) forms()[op] = form;
}

FixedOrderForm find_fixed_order(std::string_view name)
{
    const auto found = forms().find(name);
    return found == forms().end() ? nullptr : found->second;
}

FixedOrderGuard::FixedOrderGuard(std::function<void(const std::string& kernel)> refuse)
    : listener_(std::move(refuse)), listening_(&listener_)
{
    one_setting().begin();
}

FixedOrderGuard::~FixedOrderGuard()
{
    one_setting().end();
}

void FixedOrderGuard::Listener::process(const c10::Warning& warning)
{
    const auto& text = warning.msg();
    if (const auto end = text.find(" does not have a deterministic implementation"); end != std::string::npos) {
        const auto kernel = text.substr(0, end);
        for (const std::string_view counting : kCounting) {
            if (kernel == counting) return;
        }
        return refuse_(kernel);
    }
    // Products on one stream are deterministic: LibTorch gives cuBLAS a workspace for each stream.
    if (text.find("because it uses CuBLAS") != std::string::npos) return;
    others_->process(warning);
}

}  // namespace meshard
