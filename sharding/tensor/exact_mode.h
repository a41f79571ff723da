// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/rank_group.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace meshard {

class RuleCall;

/// Makes sums and matrix products of sharded tensors independent of how rows are cut: the same bits for any number of ranks. Off at the
/// start. For the whole process, since backward may run in other threads; set it to the same value on all ranks, between steps.
///
/// Sums run in fixed point with an exponent agreed for each result. Products run with each operand split in two halves of equally many
/// bits below an agreed exponent, so that all partial sums are whole numbers that a double holds exactly (Ozaki, Ogita, Oishi, Rump,
/// "Error-free transformations of matrix multiplication", 2012): 12 bits for 2^29 rows, 16 for two million. Operands are thus rounded
/// to 24 bits or more below the largest one of their row or column. A product costs a product in double of four times the size and, like a
/// sum, one message more where it is cut. Other operators that add over a cut dimension gather it first. Results that are not finite
/// become NaN.
void set_exact_mode(bool on);
bool exact_mode();

/// Sum over `dims` (all if empty) and over the ranks of `groups`, whose tensors differ along those dimensions only. `num_terms`: an upper bound of
/// the terms of one result, over all ranks. In the tensor's own type. Collective.
at::Tensor exact_sum(const at::Tensor& local, c10::IntArrayRef dims, bool keepdim, std::int64_t num_terms, const std::vector<const RankGroup*>& groups);

/// (..., m, k) times (..., k, n), where k is cut over the ranks of `groups` and is `num_terms` over all ranks. Rounded to the left operand's
/// type, single precision or narrower. Each result depends on its row of the left and its column of the right operand only. Collective.
at::Tensor exact_product(const at::Tensor& left, const at::Tensor& right, std::int64_t num_terms, const std::vector<const RankGroup*>& groups);

/// Rule that is called before an operator's own rule while exact mode is on; returns false, having changed nothing, to leave the call to the own rule.
using ExactRule = bool (*)(RuleCall&);

struct ExactRuleRegistration {
    ExactRuleRegistration(std::initializer_list<const char*> operators, ExactRule rule);
};

/// Exact rules of whole families (as `RuleEntry` names them), for operators that have no exact rule of their own.
struct ExactFamilyRegistration {
    ExactFamilyRegistration(std::initializer_list<const char*> families, ExactRule rule);
};

/// Null if there is none. `full_name` with overload, `name` without.
ExactRule find_exact_rule(std::string_view full_name, std::string_view name, std::string_view family);

}  // namespace meshard
