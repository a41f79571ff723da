// SPDX-License-Identifier: Apache-2.0
#include "ops/mesh_operator.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <string>
#include <utility>

#include "ops/ghost_exchange.h"
#include "partition/error.h"
#include "sharding/with_backward.h"

namespace meshard {
namespace {

constexpr std::int64_t kRowsAThread = 512;   // at least

/// out(i, c, k) = sum of w(e, k) x(column of e, c); x (columns, C), out (rows, C, K).
template <class T>
void spread(const Stencil& stencil, const T* x, std::int64_t channels, T* out)
{
    const std::int64_t k_end = stencil.components;
    at::parallel_for(0, stencil.num_rows(), kRowsAThread, [&](std::int64_t begin, std::int64_t end) {
        std::vector<double> sum(channels * k_end);
        for (auto i = begin; i < end; ++i) {
            std::fill(sum.begin(), sum.end(), 0.0);
            for (auto e = stencil.offsets[i]; e < stencil.offsets[i + 1]; ++e) {
                const T* value = x + stencil.columns[e] * channels;
                const double* weight = &stencil.weights[e * k_end];
                for (std::int64_t c = 0; c < channels; ++c) {
                    for (std::int64_t k = 0; k < k_end; ++k) sum[c * k_end + k] += weight[k] * static_cast<double>(value[c]);
                }
            }
            std::transform(sum.begin(), sum.end(), out + i * channels * k_end, [](double s) { return static_cast<T>(s); });
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
            std::fill(sum.begin(), sum.end(), 0.0);
            for (auto e = stencil.offsets[i]; e < stencil.offsets[i + 1]; ++e) {
                const T* value = x + stencil.columns[e] * channels * k_end;
                const double* weight = &stencil.weights[e * k_end];
                for (std::int64_t c = 0; c < channels; ++c) {
                    for (std::int64_t k = 0; k < k_end; ++k) sum[c] += weight[k] * static_cast<double>(value[c * k_end + k]);
                }
            }
            std::transform(sum.begin(), sum.end(), out + i * channels, [](double s) { return static_cast<T>(s); });
        }
    });
}

/// A stencil and its transpose: each is the other's backward.
struct StencilPair {
    Stencil forward, adjoint;
};

/// (columns, C) to (rows, C, K), or with `contracts` (columns, C, K) to (rows, C).
at::Tensor product(const std::shared_ptr<const StencilPair>& pair, bool of_adjoint, bool contracts, const at::Tensor& x)
{
    const auto& stencil = of_adjoint ? pair->adjoint : pair->forward;
    const auto channels = x.size(1);
    const auto values = x.detach().contiguous();
    auto out = contracts ? at::empty({stencil.num_rows(), channels}, values.options()) : at::empty({stencil.num_rows(), channels, stencil.components}, values.options());
    const auto run = [&]<class T>() {
        const auto* from = values.const_data_ptr<T>();
        auto* to = out.mutable_data_ptr<T>();
        contracts ? contract(stencil, from, channels, to) : spread(stencil, from, channels, to);
    };
    values.scalar_type() == at::kDouble ? run.template operator()<double>() : run.template operator()<float>();
    return with_backward(out, x, "MeshOperatorBackward", [pair, of_adjoint, contracts](const at::Tensor& gradient) {
        return product(pair, !of_adjoint, !contracts, gradient);
    });
}

}  // namespace

void Stencil::push_row(std::vector<Entry>& entries, std::span<const std::int64_t> ids)
{
    std::stable_sort(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) { return ids[a.column] < ids[b.column]; });
    for (std::size_t i = 0; i < entries.size(); ++i) {
        if (i == 0 || entries[i].column != entries[i - 1].column) {
            columns.push_back(entries[i].column);
            weights.insert(weights.end(), components, 0.0);
        }
        for (int k = 0; k < components; ++k) weights[weights.size() - components + k] += entries[i].weights[k];
    }
    offsets.push_back(static_cast<std::int64_t>(columns.size()));
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
            const auto place = next[columns[e]]++;
            result.columns[place] = static_cast<std::int32_t>(i);
            std::copy_n(&weights[e * components], components, &result.weights[place * components]);
        }
    }
    return result;
}

struct MeshOperator::Shared {
    FieldLayout from, to;
    Ghosts ghosts;
    std::shared_ptr<const StencilPair> stencils;
};

MeshOperator::MeshOperator(const char* name, const FieldLayout& from, const FieldLayout& to, Form form, Ghosts ghosts, Stencil stencil) : name_(name), form_(form)
{
    auto adjoint = stencil.transposed();
    auto pair = std::make_shared<const StencilPair>(StencilPair{std::move(stencil), std::move(adjoint)});
    shared_ = std::make_shared<const Shared>(Shared{from, to, ghosts, std::move(pair)});
}

at::Tensor MeshOperator::operator()(const at::Tensor& field) const
{
    const auto& [from, to, ghosts, stencils] = *shared_;
    const auto own = from.own_rows(name_, field);
    const bool contracts = form_ == Form::Divergence;
    if (!own.is_floating_point() || (contracts && (own.dim() < 2 || own.size(-1) != 3))) {
        throw InvalidInput(std::string(name_) + ": a field of type " + c10::toString(own.scalar_type()) + " and " + std::to_string(own.dim()) + " dimensions; expected a floating type" +
                           (contracts ? " and a last dimension of 3." : "."));
    }
    const auto local = from.plan && ghosts == Ghosts::OfInput ? with_ghosts(own, from.plan) : own;
    // (local, C) or (local, C, 3), on the CPU, in float or double
    auto shape = local.sizes().vec();
    if (contracts) shape.pop_back();
    std::int64_t channels = 1;
    for (std::size_t d = 1; d < shape.size(); ++d) channels *= shape[d];
    const auto x = local.to(at::kCPU, local.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    auto y = product(stencils, false, contracts, contracts ? x.reshape({x.size(0), channels, 3}) : x.reshape({x.size(0), channels}));
    if (to.plan && ghosts == Ghosts::OfResult) y = add_ghosts_to_owners(y, to.plan);
    shape[0] = y.size(0);
    if (form_ == Form::Gradient) shape.push_back(3);
    return to.field(y.view(shape).to(own.device(), own.scalar_type()));
}

MeshOperator MeshOperator::as_divergence(const char* name) const
{
    if (form_ != Form::Gradient) throw InvalidInput(std::string(name) + ": " + name_ + " is no gradient. Pass least_squares_gradient or green_gauss_gradient.");
    auto result = *this;
    result.name_ = name;
    result.form_ = Form::Divergence;
    return result;
}

}  // namespace meshard
