// SPDX-License-Identifier: Apache-2.0
// Random tensors. Every rank draws the whole with a generator in the same state and keeps its own part: the numbers are
// those of the plain operator for any sharding.
#include "ops/rules/rank_parts.h"
#include "sharding/tensor/redistribute.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// A copy of this rank's part of the whole, so that the rest can be freed.
at::Tensor part_alone(const at::Tensor& whole, const ShardSpec& spec)
{
    const auto part = own_part(whole, spec);
    return part.is_same(whole) ? whole : part.clone(at::MemoryFormat::Contiguous);
}

/// An empty tensor of the whole with its strides: numbers are drawn in memory order.
at::Tensor empty_whole(const at::Tensor& tensor, const at::TensorOptions& options)
{
    if (tensor.is_non_overlapping_and_dense()) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
    return at::empty(tensor.sizes(), options);
}

std::int64_t generator_arg(const RuleCall& call)
{
    for (std::int64_t i = 0; i < call.num_args(); ++i) {
        if (call.schema().arguments()[i].name() == "generator") return i;
    }
    return -1;
}

/// The caller's generator, or this rank's.
at::Generator generator_for(const RuleCall& call, const at::Device& device)
{
    const auto arg = generator_arg(call);
    return arg >= 0 && !call.arg(arg).isNone() ? call.arg(arg).toGenerator() : call.device_mesh()->generator(device);
}

/// An empty tensor with the strides of `tensor`, also where these leave gaps: the plain operators draw other numbers
/// into such a view than into dense memory.
at::Tensor empty_view(const at::Tensor& tensor, const at::TensorOptions& options)
{
    if (tensor.is_non_overlapping_and_dense() || tensor.numel() == 0) return empty_whole(tensor, options);
    std::int64_t last = 0;
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
    return at::empty({last + 1}, options).as_strided(tensor.sizes(), tensor.strides());
}

/// op_(self, parameters, generator?): normal_, uniform_, bernoulli_ and others; the old values of self are not used.
void fill(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto arg = generator_arg(call);
    if (!is_sharded(tensor) || arg < 0) return gathered_rule(call);
    call.reduce({tensor});
    call.arg(arg) = generator_for(call, tensor.device());
    call.draws_alike();
    for (std::int64_t i = 1; i < call.num_args(); ++i) {
        if (call.is_tensor(i)) return gathered_rule(call);
    }
    const auto whole = empty_view(tensor, local_of(tensor).options());
    call.arg(0) = whole;
    call.run_local();
    local_of(tensor).copy_(own_part(whole, *spec_of(tensor)));
    call.push({tensor});
}

/// rand_like, randn_like, randint_like (self, [low,] [high,] [generator,] dtype?, ...): an empty tensor is filled, as
/// in the plain operators.
void random_like(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    std::vector<std::int64_t> bounds;
    at::ScalarType type = tensor.scalar_type();
    for (std::int64_t i = 1; i < call.num_args(); ++i) {
        const auto& name = call.schema().arguments()[i].name();
        if (name == "low" || name == "high") {
            if (!call.arg(i).isInt()) return gathered_rule(call);
            bounds.push_back(call.arg(i).toInt());
        }
        if (name == "dtype" && !call.arg(i).isNone()) type = call.arg(i).toScalarType();
    }
    const auto generator = generator_for(call, tensor.device());
    auto whole = empty_whole(tensor, local_of(tensor).options().dtype(type));
    if (call.name() == "aten::rand_like")
        whole.uniform_(0, 1, generator);
    else if (call.name() == "aten::randn_like")
        whole.normal_(0, 1, generator);
    else if (bounds.size() == 1)
        whole.random_(0, bounds[0], generator);
    else
        whole.random_(bounds[0], bounds[1], generator);
    const auto spec = call.spec(without_pending(layouts_of(call, tensor)));
    call.finish({wrap(part_alone(whole, *spec), spec)});
}

/// native_dropout(input, p, train?) -> output, mask
void dropout(RuleCall& call)
{
    const auto input = call.tensor(0);
    const auto p = call.arg(1).toDouble();
    const bool training = call.arg(2).isNone() || call.arg(2).toBool();
    call.reduce({input});
    const auto spec = spec_of(input);
    if (input.numel() == 0) {
        call.make_local();
        call.draws_alike();
        return call.run({spec});
    }
    if (!training) {  // for a part without rows the operator returns a mask of another type
        const auto& local = local_of(input);
        return call.finish({wrap(local.clone(), spec), wrap(at::ones_like(local, at::kBool), spec)});
    }
    const auto generator = call.device_mesh()->generator(input.device());
    at::Tensor whole;
    if (input.device().is_cpu()) {
        whole = empty_whole(input, local_of(input).options().dtype(at::kBool)).bernoulli_(1 - p, generator);
    } else {
        // The device's own random pattern.
        whole = std::get<1>(at::native_dropout(empty_whole(input, local_of(input).options()).fill_(1), p, true));
    }
    const auto mask = part_alone(whole, *spec);
    const auto scale = p == 1 ? 0.0 : 1 / (1 - p);
    call.finish({wrap(local_of(input).mul(mask).mul_(scale), spec), wrap(mask, spec)});
}

/// Operators whose random numbers depend on the input's values: the whole is gathered first.
void drawn_from_whole(RuleCall& call)
{
    const auto arg = generator_arg(call);
    if (arg < 0) return gathered_rule(call);
    call.arg(arg) = generator_for(call, call.tensors()[0].device());
    call.draws_alike();
    gathered_rule(call);
}

const RuleRegistration random_rules[] = {
    {"random",
     {"aten::bernoulli_.float", "aten::normal_", "aten::uniform_", "aten::exponential_", "aten::random_",
      "aten::cauchy_", "aten::log_normal_", "aten::geometric_"},
     fill},
    {"random", {"aten::rand_like", "aten::randn_like", "aten::randint_like"}, random_like},
    {"random", {"aten::native_dropout"}, dropout},
    {"random",
     {"aten::bernoulli", "aten::bernoulli_.Tensor", "aten::multinomial", "aten::poisson", "aten::normal",
      "aten::binomial", "aten::_standard_gamma", "aten::_sample_dirichlet", "aten::rrelu_with_noise",
      "aten::rrelu_with_noise_"},
     drawn_from_whole},
};

}  // namespace
}  // namespace meshard
