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

/// Whether a tensor argument does not lie on the CPU. On devices exact mode wants sums in one order, too.
bool lies_on_device(const RuleCall& call);

/// What an operator gives for whole, plain arguments, on a device where LibTorch's kernel would add in any order. Called in exact mode, in place of the
/// operator.
using FixedOrderForm = std::vector<at::Tensor> (*)(const RuleCall&);

struct FixedOrderRegistration {
    FixedOrderRegistration(std::initializer_list<const char*> operators, FixedOrderForm form);
};

/// Null if there is none.
FixedOrderForm find_fixed_order(std::string_view name);

/// While it lives, LibTorch's operators on a device add in one order, where they have such a form. `refuse` is called for one that has none, with LibTorch's
/// name of its kernel, and must throw. Refusals are of the calling thread; the forms are of the process (`torch.use_deterministic_algorithms`).
class FixedOrderGuard {
public:
    explicit FixedOrderGuard(std::function<void(const std::string& kernel)> refuse);
    ~FixedOrderGuard();
    FixedOrderGuard(const FixedOrderGuard&) = delete;
    FixedOrderGuard& operator=(const FixedOrderGuard&) = delete;

private:
    /// Gets what LibTorch has to say about kernels without such a form.
    class Listener : public c10::WarningHandler {
    public:
        explicit Listener(std::function<void(const std::string& kernel)> refuse) : refuse_(std::move(refuse)), others_(c10::WarningUtils::get_warning_handler())
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
