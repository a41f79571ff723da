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

/// Makes sums and matrix products of sharded tensors independent of how rows are sharded: the same bits for any number
/// of ranks. Off at the start. The setting is that of the process, since backward may run in other threads; set it to
/// the same value on all ranks, between steps.
///
/// Sums are computed in fixed point with an exponent that ranks agree on for each result. For products each operand is
/// split into two halves of equally many bits below an agreed exponent, so that all partial sums are whole numbers that
/// a double represents exactly (Ozaki, Ogita, Oishi, Rump, "Error-free transformations of matrix multiplication",
/// 2012): 12 bits for 2^29 rows, 16 for two million. Operands are thus rounded to 24 bits or more below the largest
/// value of their row or column. A product costs a product in double of four times the size and, like a sum, one more
/// message if it is sharded. Other operators that add over a sharded dimension gather it first. Results that are not
/// finite become NaN.
void set_exact_mode(bool on);
bool exact_mode();

/// Sum over `dims` (all if empty) and over the ranks of `groups`, whose tensors differ along those dimensions only.
/// Collective.
/// @param num_terms   upper bound of the number of terms of one result, over all ranks
/// @return in the type of `local`
at::Tensor exact_sum(const at::Tensor& local, c10::IntArrayRef dims, bool keepdim, std::int64_t num_terms,
                     const std::vector<const RankGroup*>& groups);

/// (..., m, k) times (..., k, n), where k is sharded over the ranks of `groups` and is `num_terms` over all ranks.
/// Rounded to the type of `left`, float or narrower. Each result depends only on its row of `left` and its column of
/// `right`. Collective.
at::Tensor exact_product(const at::Tensor& left, const at::Tensor& right, std::int64_t num_terms,
                         const std::vector<const RankGroup*>& groups);

/// A rule that is called before an operator's ordinary rule while exact mode is on; it returns false, having changed
/// nothing, to let the ordinary rule handle the call.
using ExactRule = bool (*)(RuleCall&);

struct ExactRuleRegistration {
    ExactRuleRegistration(std::initializer_list<const char*> operators, ExactRule rule);
};

/// Registers exact rules for whole families (as `RuleEntry` names them), for operators without an exact rule of their
/// own.
struct ExactFamilyRegistration {
    ExactFamilyRegistration(std::initializer_list<const char*> families, ExactRule rule);
};

/// Returns null if there is none. `full_name` has the overload, `name` does not.
ExactRule find_exact_rule(std::string_view full_name, std::string_view name, std::string_view family);

}  // namespace meshard
