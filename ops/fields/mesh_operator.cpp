// SPDX-License-Identifier: Apache-2.0
#include "ops/fields/mesh_operator.h"

#include "ops/rows/ghost_exchange.h"
#include "partition/error.h"
#include "sharding/ranks/parallel_for.h"
#include "sharding/tensor/with_backward.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace meshard {
namespace {

constexpr std::int64_t kRowsAThread = 512;  // minimum

/// out(i, c, k) = sum of w(e, k) x(column of e, c); x (columns, C), out (rows, C, K).
template <class T>
void spread(const Stencil& stencil, const T* x, std::int64_t channels, T* out)
{
    const std::int64_t k_end = stencil.components;
    at::parallel_for(0, stencil.num_rows(), kRowsAThread, [&](std::int64_t begin, std::int64_t end) {
        std::vector<double> sum(channels * k_end);
        for (auto i = begin; i < end; ++i) {
            std::ranges::fill(sum, 0.0);
            for (auto e = stencil.offsets[i]; e < stencil.offsets[i + 1]; ++e) {
                const T* value = x + stencil.columns[e] * channels;
                const double* weight = &stencil.weights[e * k_end];
                for (std::int64_t c = 0; c < channels; ++c) {
                    for (std::int64_t k = 0; k < k_end; ++k)
                        sum[c * k_end + k] += weight[k] * static_cast<double>(value[c]);
                }
            }
            std::transform(sum.begin(), sum.end(), out + i * channels * k_end,
                           [](double s) { return static_cast<T>(s); });
        }
    });
}

/// out(i, c) = sum of w(e, k) x(column of e, c, k) over e and k; x (columns, C, K), out (rows, C).
template <class T>
void contract(const Stencil& stencil, const T* x, std::int64_t channels, T* out)
{
    const std::int64_t k_end = stencil.components;
    at::parallel_for(0, stencil.num_rows(), kRowsAThread, [&](std::int64_t begin, std::int64_t end) {
        std::vector<double> sum(channels);
        for (auto i = begin; i < end; ++i) {
            std::ranges::fill(sum, 0.0);
            for (auto e = stencil.offsets[i]; e < stencil.offsets[i + 1]; ++e) {
                const T* value = x + stencil.columns[e] * channels * k_end;
                const double* weight = &stencil.weights[e * k_end];
                for (std::int64_t c = 0; c < channels; ++c) {
                    for (std::int64_t k = 0; k < k_end; ++k)
                        sum[c] += weight[k] * static_cast<double>(value[c * k_end + k]);
                }
            }
            std::transform(sum.begin(), sum.end(), out + i * channels, [](double s) { return static_cast<T>(s); });
        }
    });
}

/// A stencil and its transpose, which computes its backward, and vice versa.
struct StencilPair {
    Stencil forward, adjoint;
};

/// (columns, C) to (rows, C, K), or with `contracts` (columns, C, K) to (rows, C).
at::Tensor stencil_product(const std::shared_ptr<const StencilPair>& pair, bool of_adjoint, bool contracts,
                           const at::Tensor& x)
{
    const auto& stencil = of_adjoint ? pair->adjoint : pair->forward;
    const auto channels = x.size(1);
    const auto values = x.detach().contiguous();
    auto out = contracts ? at::empty({stencil.num_rows(), channels}, values.options())
                         : at::empty({stencil.num_rows(), channels, stencil.components}, values.options());
    const auto run = [&]<class T>() {
        const auto* from = values.const_data_ptr<T>();
        auto* to = out.mutable_data_ptr<T>();
        contracts ? contract(stencil, from, channels, to) : spread(stencil, from, channels, to);
    };
    values.scalar_type() == at::kDouble ? run.template operator()<double>() : run.template operator()<float>();
    return with_backward(out, x, "MeshOperatorBackward", [pair, of_adjoint, contracts](const at::Tensor& gradient) {
        return stencil_product(pair, !of_adjoint, !contracts, gradient);
    });
}

/// A stencil divided into inner rows, which need no ghosts and are computed while ghosts are received, and border rows,
/// which need them.
struct SplitStencil {
    std::shared_ptr<const StencilPair> inner, border;
    at::Tensor border_inputs;  ///< owned rows that border rows need; the columns of `border` are these, then the ghosts
    at::Tensor order;          ///< position of each row in the concatenation of inner and border rows
};

std::shared_ptr<const StencilPair> with_adjoint(Stencil stencil)
{
    auto adjoint = stencil.transposed();
    return std::make_shared<const StencilPair>(StencilPair{std::move(stencil), std::move(adjoint)});
}

SplitStencil split(const Stencil& stencil, std::int64_t num_owned)
{
    std::vector<std::int32_t> border_column(stencil.num_columns, -1);
    std::vector<std::int64_t> inner_rows, border_rows, inputs;
    for (std::int64_t i = 0; i < stencil.num_rows(); ++i) {
        const auto begin = stencil.columns.begin() + stencil.offsets[i],
                   end = stencil.columns.begin() + stencil.offsets[i + 1];
        const bool is_inner = std::all_of(begin, end, [&](auto column) { return column < num_owned; });
        (is_inner ? inner_rows : border_rows).push_back(i);
        if (is_inner) continue;
        for (auto column = begin; column != end; ++column) {
            if (*column >= num_owned || border_column[*column] >= 0) continue;
            border_column[*column] = static_cast<std::int32_t>(inputs.size());
            inputs.push_back(*column);
        }
    }
    const auto num_inputs = std::ssize(inputs);
    Stencil inner, border;
    inner.components = border.components = stencil.components;
    inner.num_columns = num_owned;
    border.num_columns = num_inputs + stencil.num_columns - num_owned;
    const auto take = [&](std::int64_t row, Stencil& taken, const auto& column_of) {
        for (auto e = stencil.offsets[row]; e < stencil.offsets[row + 1]; ++e)
            taken.columns.push_back(column_of(stencil.columns[e]));
        taken.weights.insert(taken.weights.end(), stencil.weights.begin() + stencil.offsets[row] * stencil.components,
                             stencil.weights.begin() + stencil.offsets[row + 1] * stencil.components);
        taken.offsets.push_back(std::ssize(taken.columns));
    };
    auto order = at::empty({stencil.num_rows()}, at::kLong);
    std::int64_t position = 0;
    for (const auto row : inner_rows) {
        take(row, inner, [](std::int32_t column) { return column; });
        order.mutable_data_ptr<std::int64_t>()[row] = position++;
    }
    for (const auto row : border_rows) {
        take(row, border, [&](std::int32_t column) {
            return column < num_owned ? border_column[column]
                                      : static_cast<std::int32_t>(column - num_owned + num_inputs);
        });
        order.mutable_data_ptr<std::int64_t>()[row] = position++;
    }
    return {with_adjoint(std::move(inner)), with_adjoint(std::move(border)), at::tensor(inputs, at::kLong), order};
}

}  // namespace

void Stencil::push_row(std::vector<Entry>& entries, std::span<const std::int64_t> ids)
{
    std::ranges::stable_sort(entries, [&](const Entry& a, const Entry& b) { return ids[a.column] < ids[b.column]; });
    for (std::size_t i = 0; i < entries.size(); ++i) {
        if (i == 0 || entries[i].column != entries[i - 1].column) {
            columns.push_back(entries[i].column);
            weights.insert(weights.end(), components, 0.0);
        }
        for (int k = 0; k < components; ++k) weights[weights.size() - components + k] += entries[i].weights[k];
    }
    offsets.push_back(std::ssize(columns));
}

Stencil Stencil::transposed() const
{
    Stencil result;
    result.num_columns = num_rows();
    result.components = components;
    result.offsets.assign(num_columns + 1, 0);
    for (const auto column : columns) ++result.offsets[column + 1];
    for (std::int64_t i = 0; i < num_columns; ++i) result.offsets[i + 1] += result.offsets[i];
    result.columns.resize(columns.size());
    result.weights.resize(weights.size());
    std::vector<std::int64_t> next(result.offsets.begin(), result.offsets.end() - 1);
    for (std::int64_t i = 0; i < num_rows(); ++i) {
        for (auto e = offsets[i]; e < offsets[i + 1]; ++e) {
            const auto entry = next[columns[e]]++;
            result.columns[entry] = static_cast<std::int32_t>(i);
            std::copy_n(&weights[e * components], components, &result.weights[entry * components]);
        }
    }
    return result;
}

struct MeshOperator::Shared {
    FieldLayout from, to;
    SplitStencil stencils;
    at::Tensor is_empty_row;
};

MeshOperator::MeshOperator(const char* name, const FieldLayout& from, const FieldLayout& to, Form form, Ghosts ghosts,
                           Stencil stencil)
    : name_(name), form_(form)
{
    auto is_empty = at::empty({stencil.num_rows()}, at::kBool);
    for (std::int64_t i = 0; i < stencil.num_rows(); ++i)
        is_empty.mutable_data_ptr<bool>()[i] = stencil.offsets[i] == stencil.offsets[i + 1];
    const bool takes_ghosts = from.plan && ghosts == Ghosts::OfInput;
    auto stencils =
        takes_ghosts ? split(stencil, from.num_owned) : SplitStencil{with_adjoint(std::move(stencil)), nullptr, {}, {}};
    shared_ = std::make_shared<const Shared>(Shared{from, to, std::move(stencils), std::move(is_empty)});
}

at::Tensor MeshOperator::operator()(const at::Tensor& field) const
{
    const auto& [from, to, stencils, is_empty_row] = *shared_;
    const auto own = from.own_rows(name_, field);
    if (!own.is_floating_point())
        throw InvalidInput("{}: a field of type {}; expected a floating type.", name_,
                           c10::toString(own.scalar_type()));
    auto shape = own.sizes().vec();
    std::int64_t channels = 1;
    for (std::size_t d = 1; d < shape.size(); ++d) channels *= shape[d];
    // (rows, C), on the CPU, in float or double
    const auto flat = [&](const at::Tensor& rows) {
        return rows.to(at::kCPU, rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat)
            .reshape({rows.size(0), channels});
    };
    at::Tensor result;
    if (stencils.border) {
        auto pending = begin_ghost_exchange({own}, from.plan);
        const auto own_rows = flat(own), inner = stencil_product(stencils.inner, false, false, own_rows);
        const auto inputs = at::cat({own_rows.index_select(0, stencils.border_inputs), flat(pending.end().front())});
        result =
            at::cat({inner, stencil_product(stencils.border, false, false, inputs)}).index_select(0, stencils.order);
    } else {
        result = stencil_product(stencils.inner, false, false, flat(own));
        if (to.plan) result = scatter_ghosts(result, to.plan);
    }
    shape[0] = result.size(0);
    if (form_ == Form::Gradient) shape.push_back(3);
    return to.field(result.view(shape).to(own.device(), own.scalar_type()));
}

at::Tensor MeshOperator::is_empty_row() const
{
    return shared_->is_empty_row;
}

}  // namespace meshard
