// SPDX-License-Identifier: Apache-2.0
// LibTorch 2.15 finds few quantiles by selection and reads its input's memory, although the operator is a composition:
// here it gets the whole. In earlier versions the parts of the composition have rules.
#include "sharding/tensor/shard_tensor.h"

#include <torch/version.h>

#if TORCH_VERSION_MINOR >= 15

#include <ATen/ATen.h>
#include <torch/library.h>

#include <vector>

namespace meshard {
namespace {

class QuantileKernel : public c10::OperatorKernel {
public:
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack)
    {
        const auto num_args = op.schema().arguments().size();
        std::shared_ptr<const DeviceMesh> mesh;
        at::Tensor out;
        for (std::size_t i = 0; i < num_args; ++i) {
            auto& argument = torch::jit::peek(*stack, i, num_args);
            if (!argument.isTensor() || !argument.toTensor().defined()) continue;
            const auto tensor = argument.toTensor();
            if (is_sharded(tensor)) mesh = spec_of(tensor)->device_mesh;
            if (op.schema().arguments()[i].is_out()) {
                out = tensor;
                argument = at::empty({0}, tensor.options());
            } else if (is_sharded(tensor)) {
                argument = full_tensor(tensor);
            }
        }
        op.callBoxed(stack);
        const auto found =
            from_local(torch::jit::pop(*stack).toTensor(), mesh, std::vector<Placement>(mesh->num_axes(), Replicate()));
        if (!out.defined()) return torch::jit::push(*stack, found);
        TORCH_CHECK(out.sizes() == found.sizes(), "quantile: `out` has the shape ", out.sizes(), ", the result ",
                    found.sizes());
        torch::jit::push(*stack, out.copy_(found));
    }
};

void install(torch::Library& library)
{
    for (const auto* name : {"quantile", "quantile.scalar", "quantile.out", "quantile.scalar_out", "nanquantile",
                             "nanquantile.scalar", "nanquantile.out", "nanquantile.scalar_out"}) {
        library.impl(name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<QuantileKernel>()));
    }
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse2, library)
{
    install(library);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse2, library)  // for inference mode
{
    install(library);
}

}  // namespace
}  // namespace meshard

#endif
