// SPDX-License-Identifier: Apache-2.0
// A rule for an operator of one's own: the second difference along rows, which looks at one neighbour on either side.
#include "ops/grids/grid_cuts.h"
#include "sharding/tensor/rule_table.h"
#include "sharding/transport/launch.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cstdio>

// --- the operator, as one would write it without ranks ---------------------------------------------------------------

/// y[i] = x[i - 1] - 2 x[i] + x[i + 1], with zeros beyond the ends.
at::Tensor second_difference(const at::Tensor& x)
{
    const auto padded = at::constant_pad_nd(x.movedim(0, -1), {1, 1});
    const auto n = x.size(0);
    return (padded.narrow(-1, 0, n) - 2 * padded.narrow(-1, 1, n) + padded.narrow(-1, 2, n)).movedim(-1, 0);
}

at::Tensor call_operator(const at::Tensor& x)
{
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("example::second_difference", "")
                               .typed<at::Tensor(const at::Tensor&)>();
    return op.call(x);
}

/// The operator is symmetric: it is its own backward.
struct SecondDifference : torch::autograd::Function<SecondDifference> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x)
    {
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        return call_operator(x);
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list gradients)
    {
        return {call_operator(gradients[0])};
    }
};

TORCH_LIBRARY(example, library)
{
    library.def("second_difference(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(example, CPU, library)
{
    library.impl("second_difference", second_difference);
}
TORCH_LIBRARY_IMPL(example, Autograd, library)
{
    library.impl("second_difference", [](const at::Tensor& x) { return SecondDifference::apply(x); });
}

// --- its rule ------------------------------------------------------------------------------------------------------

using namespace meshard;

void second_difference_rule(RuleCall& call)
{
    const auto x = call.tensor(0);
    const auto rows = call.layout(x, 0);
    if (call.num_axes() > 1 || !rows.is_shard() || rows.placement.dim != 0 || rows.blocks > 1)
        return gathered_rule(call);

    std::vector<Range> needed;  // the rows of each rank, and one more on either side
    for (const auto& own : ranges_of(*rows.extents))
        needed.push_back(own.size() > 0 ? clip({own.begin - 1, own.end + 1}, x.size(0)).inside : own);
    const RangeExchange exchange(call.device_mesh()->group(0), rows, needed);
    const auto y = second_difference(exchange.borrow(local_of(x)));
    call.finish(
        {wrap(y.narrow(0, exchange.owned().begin - exchange.needed().begin, exchange.owned().size()), spec_of(x))});
}

const RuleRegistration registration("example", {"example::second_difference"}, second_difference_rule);

// --- sharded equals serial -----------------------------------------------------------------------------------------

int main()
{
    const auto info = detect_launch();
    if (info.size == 1) return run_local_ranks(3, {});
    const auto world = World::connect(info);
    const auto mesh = DeviceMesh::create(*world, {info.size}, {"domain"});

    at::manual_seed(1);
    const auto whole = at::randint(-8, 8, {20, 4}).to(at::kDouble).requires_grad_();
    call_operator(whole).square().sum().backward();

    const auto local = whole.detach().tensor_split(info.size, 0)[info.rank].clone().requires_grad_();
    const auto x = from_local(local, mesh, {Shard(0)});
    mesh->counter().reset();
    const auto y = call_operator(x);
    const auto received = mesh->counter().total_bytes();
    y.square().sum().backward();

    const auto error = (full_tensor(y) - call_operator(whole)).abs().max().item<double>();
    const auto expected_gradient = whole.grad().tensor_split(info.size, 0)[info.rank];
    const auto gradient_error = (local.grad() - expected_gradient).abs().max().item<double>();
    if (info.rank == 0) {
        std::printf("bytes that rank 0 received: %ld\n", static_cast<long>(received));  // one row of four numbers
        std::printf("error: %g, of the gradient: %g\n", error, gradient_error);
    }
    world->finish();
    return error == 0 && gradient_error == 0 ? 0 : 1;
}
