// SPDX-License-Identifier: Apache-2.0
#include "sharding/tensor/boxed_arguments.h"

namespace meshard {

const c10::DispatchKeySet& recording_layers()
{
    static const c10::DispatchKeySet keys =
        c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
    return keys;
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
