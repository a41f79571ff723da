// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

namespace meshard {

/// Draws what a case is made of; the same numbers for the same seed everywhere.
class Draw {
public:
    explicit Draw(std::uint64_t seed) : engine_(seed) {}

    std::int64_t integer(std::int64_t low, std::int64_t high);  ///< both ends included
    bool chance(double probability);
    double real(double low, double high);

    /// Values of a normal distribution.
    at::Tensor values(c10::IntArrayRef shape, at::ScalarType type = at::kDouble);

    template <class T>
    const T& pick(const std::vector<T>& choices)
    {
        return choices[integer(0, static_cast<std::int64_t>(choices.size()) - 1)];
    }

private:
    std::mt19937_64 engine_;
};

using Tensors = std::vector<at::Tensor>;
using OperatorFunction = std::function<Tensors(const Tensors&)>;

/// One of several operators to pick from.
struct NamedOperator {
    const char* name;
    OperatorFunction function;
};

/// An operator with drawn arguments. The function is called on plain and on sharded inputs.
struct RuleCase {
    std::string text;  ///< shown on failure: operator and arguments
    Tensors inputs;    ///< whole; floating ones get gradients
    OperatorFunction function;
    std::vector<std::int64_t> whole_inputs;  ///< indices of the inputs that are left as plain tensors
};

/// An operator that makes every rank gather the whole, of arguments that lie in some way.
struct Gathering {
    const char* op;      ///< as `aten::sum.dim_IntList`, a regular expression for all of it
    const char* inputs;  ///< a regular expression for a part of `RuleEvent::inputs`; empty for any layouts
    const char* reason;
};

/// Reasons that several families share.
inline constexpr const char* kTwoAxes =
    "two axes would cut one dimension, or dimensions that are joined in another order";
inline constexpr const char* kOrderOfTheWhole =
    "entries come in the order of the whole, which such a cut does not keep";
inline constexpr const char* kNoRule = "no rule of its own";

struct RuleProperty {
    int num_cases = 200;
    double tolerance = 1e-11;  ///< of the largest value, in double
    std::uint64_t first_seed = 1;
    bool partial_inputs = true;  ///< some inputs come as pending sums
    std::vector<std::int64_t> rank_counts{1, 2, 3, 4, 5, 7, 8};
    int num_single_cases = 60;         ///< in single precision
    int num_exact_cases = 40;          ///< in single precision and exact mode: the same bits as on one rank
    int num_block_cases = 0;           ///< of grids in blocks: cut along two and three directions at once
    std::vector<Gathering> gathers{};  ///< of the operators that the cases run; no other one may
};

/// Random cases on random numbers of ranks (device meshes of one axis and of two), every input cut along random
/// dimensions into random uneven extents, empty ones included: outputs and the gradient of every floating input equal
/// the plain operator's. Prints the seed of a case that fails; MESHARD_RULE_SEED=n runs that case alone. No operator
/// may gather the whole but those that `gathers` lists. Then the first cases again in single precision, where results
/// may differ from the plain operator's by the roundings of their sums, and in exact mode, where one rank's results
/// must be the plain operator's within the same roundings and every number of ranks must give the same bits as one.
/// Block cases are cut by every axis of the device mesh, inputs and gradients alike, along the dimensions behind the
/// first two. The tensors lie on MESHARD_TEST_DEVICE (cpu if unset); skipped where there is no such device.
void check_rule(const std::function<RuleCase(Draw&)>& draw, const RuleProperty& property = {});

}  // namespace meshard
