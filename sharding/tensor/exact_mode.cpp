// SPDX-License-Identifier: Apache-2.0
#include "sharding/tensor/exact_mode.h"

#include "partition/error.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <map>
#include <string>

namespace meshard {
namespace {

std::atomic<bool> exact = false;

using ExactRules = std::map<std::string, ExactRule, std::less<>>;

ExactRules& rules()
{
    static ExactRules table;
    return table;
}

ExactRules& rules_of_families()
{
    static ExactRules table;
    return table;
}

/// The largest magnitude along `dims`, over all ranks; 0 if there are no terms, infinity if a value is not finite.
at::Tensor largest(const at::Tensor& values, c10::IntArrayRef dims, const std::vector<const RankGroup*>& groups)
{
    auto shape = values.sizes().vec();
    for (const auto dim : dims) shape[dim] = 1;
    auto result = at::zeros(shape, values.options());
    if (values.numel() > 0) result = dims.empty() ? values.abs() : at::linalg_vector_norm(values, INFINITY, dims, true);
    result = at::nan_to_num(result, INFINITY, INFINITY).contiguous();
    for (const auto* group : groups) group->all_reduce(result, Reduction::Max);
    return result;
}

/// 2^-e for the smallest e such that the values are below 2^e; 1 for zero. e is clamped so that 2^e and 2^-e are normal
/// numbers.
at::Tensor inverse_power(const at::Tensor& largest)
{
    const auto exponent = std::get<1>(at::frexp(largest)).to(at::kDouble).clamp_(-960, 1022);
    return at::exp2(exponent.neg_());
}

}  // namespace

void set_exact_mode(bool on)
{
    exact = on;
}
bool exact_mode()
{
    return exact;
}

ExactRuleRegistration::ExactRuleRegistration(std::initializer_list<const char*> operators, ExactRule rule)
{
    for (const auto* op : operators) rules()[op] = rule;
}

ExactFamilyRegistration::ExactFamilyRegistration(std::initializer_list<const char*> families, ExactRule rule)
{
    for (const auto* family : families) rules_of_families()[family] = rule;
}

ExactRule find_exact_rule(std::string_view full_name, std::string_view name, std::string_view family)
{
    for (const auto key : {full_name, name}) {
        if (const auto found = rules().find(key); found != rules().end()) return found->second;
    }
    const auto found = rules_of_families().find(family);
    return found == rules_of_families().end() ? nullptr : found->second;
}

at::Tensor exact_sum(const at::Tensor& local, c10::IntArrayRef dims, bool keepdim, std::int64_t num_terms,
                     const std::vector<const RankGroup*>& groups)
{
    std::vector<std::int64_t> all;
    for (std::int64_t dim = 0; dim < local.dim(); ++dim) all.push_back(dim);
    const auto summed = dims.empty() ? c10::IntArrayRef(all) : dims;
    // Float or double can represent infinity.
    const auto values = local.scalar_type() == at::kDouble ? local : local.to(at::kFloat);
    const auto most = largest(values, summed, groups);
    const auto not_finite = most.isinf();
    const bool all_finite = !not_finite.any().item<bool>();
    // Values are scaled below 2^bits, so that the sum of `num_terms` of them stays below 2^62.
    const auto bits = 62 - static_cast<int>(std::bit_width(static_cast<std::uint64_t>(num_terms)));
    const auto scale = inverse_power(most).mul_(std::ldexp(1.0, bits));
    auto scaled = at::empty(values.sizes(), values.options().dtype(at::kDouble));
    at::mul_out(scaled, values, scale);
    if (!all_finite) scaled = at::nan_to_num(scaled, 0, 0, 0);
    const auto high = scaled.round();
    // The rounding error is summed as a second integer, `bits` lower; only for double it can be other than zero.
    const bool two_limbs = local.scalar_type() == at::kDouble;
    const auto whole_sum = [&](const at::Tensor& whole) {
        return summed.empty() ? whole.to(at::kLong) : whole.to(at::kLong).sum(summed, /*keepdim=*/true);
    };
    auto sums =
        at::stack(two_limbs ? std::vector<at::Tensor>{whole_sum(high),
                                                      whole_sum((scaled - high).mul_(std::ldexp(1.0, bits)).round_())}
                            : std::vector<at::Tensor>{whole_sum(high)});
    for (const auto* group : groups) group->all_reduce(sums);
    auto result = sums[0].to(at::kDouble);
    if (two_limbs) result.add_(sums[1].to(at::kDouble), std::ldexp(1.0, -bits));
    result.div_(scale);
    if (!all_finite) result.masked_fill_(not_finite, NAN);
    result = result.to(local.scalar_type());
    if (keepdim) return result;
    std::vector<std::int64_t> shape;
    for (std::int64_t dim = 0; dim < local.dim(); ++dim) {
        if (std::ranges::find(summed, dim) == summed.end()) shape.push_back(local.size(dim));
    }
    return result.view(shape);
}

at::Tensor exact_product(const at::Tensor& left, const at::Tensor& right, std::int64_t num_terms,
                         const std::vector<const RankGroup*>& groups)
{
    if (left.scalar_type() == at::kDouble || !left.is_floating_point()) {
        throw InvalidInput("exact_product: of single precision or narrower numbers only.");
    }
    const auto m = left.size(-2), n = right.size(-1);
    // The bits of a half are chosen such that a sum of `num_terms` products of two halves stays below 2^53.
    const auto bits =
        (53 - static_cast<int>(std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(num_terms, 1) - 1)))) /
        2;
    const auto step = std::ldexp(1.0, bits);
    // Both halves are whole numbers: the upper bits, then the lower bits.
    const auto halves = [&](const at::Tensor& operand, std::int64_t sum_dim, std::int64_t stack_dim,
                            at::Tensor& scale) {
        const auto values = operand.to(at::kFloat);
        scale = inverse_power(largest(values, {values.dim() + sum_dim}, groups));
        auto shape = values.sizes().vec();
        const auto count = values.size(stack_dim);
        shape[values.dim() + stack_dim] *= 2;
        const auto both = at::empty(shape, values.options().dtype(at::kDouble));
        auto high = both.narrow(stack_dim, 0, count), low = both.narrow(stack_dim, count, count);
        at::mul_out(low, values, scale * step);
        at::round_out(high, low);
        low.sub_(high).mul_(step).round_();
        return both;
    };
    at::Tensor left_scale, right_scale;
    const auto l = halves(left, -1, -2, left_scale), r = halves(right, -2, -1, right_scale);
    auto sums = at::matmul(l, r).contiguous();  // (..., 2m, 2n), exact in any order of addition
    for (const auto* group : groups) group->all_reduce(sums);
    const auto high = sums.narrow(-2, 0, m), low = sums.narrow(-2, m, m);
    auto result = low.narrow(-1, n, n) + (high.narrow(-1, n, n) + low.narrow(-1, 0, n)).mul_(step);
    result.add_(high.narrow(-1, 0, n), step * step);
    return result.mul_(std::ldexp(1.0, -4 * bits)).div_(left_scale).div_(right_scale).to(left.scalar_type());
}

}  // namespace meshard
