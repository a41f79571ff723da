// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshard {

class RuleCall;

/// Returns whether a tensor argument is not on the CPU: on devices exact mode also needs sums in a fixed order.
bool is_on_device(const RuleCall& call);

/// Computes an operator on whole, plain arguments in a fixed order, in exact mode on devices where LibTorch's kernel
/// adds in any order.
using FixedOrderForm = std::vector<at::Tensor> (*)(const RuleCall&);

struct FixedOrderRegistration {
    FixedOrderRegistration(std::initializer_list<const char*> operators, FixedOrderForm form);
};

/// Returns null if there is none.
FixedOrderForm find_fixed_order(std::string_view name);

/// A guard: LibTorch's operators on devices use deterministic kernels where they have them. For a kernel without such a
/// form `refuse` is called with LibTorch's name of the kernel, and must throw. Refusals apply to the calling thread,
/// the deterministic kernels to the process (`torch.use_deterministic_algorithms`).
class FixedOrderGuard {
public:
    explicit FixedOrderGuard(std::function<void(const std::string& kernel)> refuse);
    ~FixedOrderGuard();
    FixedOrderGuard(const FixedOrderGuard&) = delete;
    FixedOrderGuard& operator=(const FixedOrderGuard&) = delete;

private:
    /// Receives LibTorch's warnings about kernels without a deterministic form.
    class Listener : public c10::WarningHandler {
    public:
        explicit Listener(std::function<void(const std::string& kernel)> refuse)
            : refuse_(std::move(refuse)), others_(c10::WarningUtils::get_warning_handler())
        {
        }
        void process(const c10::Warning& warning) override;

    private:
        std::function<void(const std::string& kernel)> refuse_;
        c10::WarningHandler* others_;
    };

    Listener listener_;
    c10::WarningUtils::WarningHandlerGuard listening_;
};

}  // namespace meshard
