// SPDX-License-Identifier: Apache-2.0
#include "sharding/tensor/boxed_arguments.h"

#include <c10/core/AutogradState.h>

namespace meshard {

const c10::DispatchKeySet& recording_layers()
{
    static const c10::DispatchKeySet keys =
        c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
    return keys;
}

namespace {

thread_local int num_rules = 0;  // that run inside each other on this thread

bool views_an_ordinary_tensor()
{
    return num_rules == 0 && c10::AutogradState::get_tls_state().get_inference_mode() &&
           c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView);
}

}  // namespace

BelowRecording::BelowRecording() : makes_ordinary_(views_an_ordinary_tensor()), guard_(recording_layers())
{
    ++num_rules;
    if (makes_ordinary_) c10::AutogradState::get_tls_state().set_inference_mode(false);
}

BelowRecording::~BelowRecording()
{
    --num_rules;
    if (makes_ordinary_) c10::AutogradState::get_tls_state().set_inference_mode(true);
}

std::string full_name_of(const c10::OperatorName& name)
{
    return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

bool arrives_below_autograd(const c10::OperatorHandle& op)
{
    // A few operators have a composite kernel, for devices without another one, and also a CPU kernel with derivatives,
    // which autograd calls.
    return op.hasSchema() && (!op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
                              op.hasKernelForDispatchKey(c10::DispatchKey::CPU));
}

}  // namespace meshard
