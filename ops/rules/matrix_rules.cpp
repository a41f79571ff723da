// SPDX-License-Identifier: Apache-2.0
// Determinants, inverses, decompositions and solutions of many small matrices, such as a tensor at every point. Each
// matrix is processed by itself, so that matrices may be cut among ranks; a cut within the matrices is gathered.
#include "ops/rules/rank_parts.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// Returns whether a result was not requested: it is then empty, without one matrix for each point.
bool is_left_out(const RuleCall& call, std::size_t result)
{
    if (call.name() == "aten::_linalg_svd") return !call.arg(2).toBool() && result != 1;
    if (call.name() == "aten::lu_unpack") return !call.arg(result == 0 ? 3 : 2).toBool();
    return call.name() == "aten::_linalg_eigh" && !call.arg(2).toBool() && result == 1;
}

/// The local part with the strides of the caller's tensor: for a determinant LibTorch computes the factors of the
/// transpose if that is contiguous, and so does its gradient, which gets the caller's tensor.
at::Tensor as_shown(const at::Tensor& shown, const at::Tensor& local)
{
    if (shown.is_contiguous()) return local.contiguous();
    return local.is_contiguous() ? local.mT().contiguous().mT() : local;
}

/// Returns whether operand `i` has one matrix, vector or row of pivots for each of the first one's matrices. LibTorch
/// takes a right side for vectors only if it has exactly their shape, and broadcasts every other one from its last
/// dimensions.
bool is_one_for_each(const RuleCall& call, std::int64_t i, const at::Tensor& first)
{
    const auto tensor = call.tensor(i);
    const auto num_outer = first.dim() - 2;
    const auto& name = call.name();
    const bool are_vectors =
        name == "aten::_linalg_solve_ex" && tensor.sizes() == first.sizes().slice(0, num_outer + 1);
    const bool are_pivots = (name == "aten::linalg_lu_solve" || name == "aten::lu_unpack") && i == 1;
    return num_outer > 0 && tensor.dim() == num_outer + (are_vectors || are_pivots ? 1 : 2) &&
           tensor.sizes().slice(0, num_outer) == first.sizes().slice(0, num_outer);
}

/// op(matrices, ...); other tensors have equally many matrices, vectors or pivots.
void matrix_by_matrix(RuleCall& call)
{
    const auto first = call.tensor(0);
    const auto num_outer = first.dim() - 2;
    for (std::int64_t i = 0; i < call.num_args(); ++i) {
        // An error must be thrown on every rank: then all compute the whole.
        if (call.schema().arguments()[i].name() == "check_errors" && call.arg(i).toBool()) return gathered_rule(call);
        if (call.tensor(i).defined() && !is_one_for_each(call, i, first)) return gathered_rule(call);
    }
    AxisLayouts axes(call.num_axes());
    bool is_cut = false;
    for (const auto axis : call.axes()) {
        for (const auto& tensor : call.tensors()) {
            const auto& layout = call.layout(tensor, axis);
            if (layout.is_shard() && layout.placement.dim < num_outer && !axes[axis].is_shard()) axes[axis] = layout;
        }
        is_cut |= axes[axis].is_shard();
    }
    if (!is_cut || cut_one_dim_twice(axes)) return gathered_rule(call);
    call.reduce(call.tensors());
    std::vector<SpecPtr> specs;
    for (std::size_t k = 0; k < call.schema().returns().size(); ++k)
        specs.push_back(is_left_out(call, k) ? call.replicated() : call.spec(axes));
    for (std::int64_t i = 0; i < call.num_args(); ++i) {
        const auto tensor = call.tensor(i);
        if (!tensor.defined()) continue;
        const auto local = local_of(with_layouts(call, tensor, axes));
        call.set_local(i, i == 0 ? as_shown(first, local) : local);
    }
    auto results = call.run_local();
    for (std::size_t k = 0; k < results.size(); ++k) results[k] = wrap(results[k].toTensor().contiguous(), specs[k]);
    call.push(std::move(results));
}

/// diag_embed(self, offset, dim1, dim2): lines become diagonals of matrices.
void diagonals(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto n = tensor.dim();
    const bool is_last = from_front(call.arg(2).toInt(), n + 1) == n - 1 && from_front(call.arg(3).toInt(), n + 1) == n;
    if (!is_last || cuts_any(call, tensor, {n - 1})) return gathered_rule(call);
    call.reduce({tensor});
    const auto spec = spec_of(tensor);
    call.make_local();
    call.run({spec});
}

/// _linalg_check_errors(info, api_name, is_matrix): throws on every rank if the operator has failed for a matrix of any
/// rank.
void check_errors(RuleCall& call)
{
    const auto info = call.tensor(0);
    if (info.numel() > 0 && info.ne(0).any().item<bool>()) return gathered_rule(call);
    call.finish({});
}

const RuleRegistration matrix_rules[] = {
    {"matrices",
     {"aten::_linalg_det", "aten::_linalg_slogdet", "aten::linalg_inv_ex", "aten::linalg_cholesky_ex",
      "aten::linalg_lu_factor_ex", "aten::linalg_lu", "aten::linalg_qr", "aten::_linalg_svd", "aten::_linalg_eigh",
      "aten::linalg_eig", "aten::linalg_matrix_exp", "aten::_linalg_solve_ex", "aten::linalg_solve_triangular",
      "aten::linalg_lu_solve", "aten::lu_unpack"},
     matrix_by_matrix},
    {"matrices", {"aten::diag_embed"}, diagonals},
    {"matrices", {"aten::_linalg_check_errors"}, check_errors},
};

}  // namespace
}  // namespace meshard
