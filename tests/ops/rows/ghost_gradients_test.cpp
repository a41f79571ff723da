// SPDX-License-Identifier: Apache-2.0
// Gradients of gradients through ghosts: a penalty on the gradient of a loss, against closed forms, serial runs and
// finite differences.
#include "ops/fields/mesh_operators.h"
#include "ops/neighbors/neighbors.h"
#include "ops/rows/ghost_exchange.h"
#include "ops/rows/row_gather.h"
#include "ops/rows/segment_reduce.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/ghosts/ghost_graph.h"
#include "sharding/tensor/redistribute.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/point_partitions.h"
#include "tests/support/run_ranks.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/scattered_points.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace meshard {
namespace {

constexpr int kGradientRankCounts[] = {1, 2, 3, 5, 8};

/// This rank's share of a loss.
using Loss = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// The loss plus half the square of its gradient.
at::Tensor penalized(const Loss& loss, const std::vector<at::Tensor>& inputs)
{
    const auto value = loss(inputs);
    auto total = value;
    for (const auto& gradient : torch::autograd::grad({value}, inputs, {}, true, true))
        total = total + 0.5 * to_local(gradient).square().sum();
    return total;
}

std::vector<at::Tensor> gradients_of(const at::Tensor& value, const std::vector<at::Tensor>& inputs)
{
    return torch::autograd::grad({value}, inputs);
}

/// Whether the gradient of the penalised loss is that of finite differences, in a few places.
void expect_finite_differences(const Loss& loss, const std::vector<at::Tensor>& inputs,
                               const std::vector<at::Tensor>& gradients)
{
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        for (std::int64_t place = 0; place < inputs[i].numel(); place += inputs[i].numel() / 5) {
            const double step = 1e-5;
            const auto moved = [&](double by) {
                std::vector<at::Tensor> others;
                for (const auto& input : inputs) others.push_back(input.detach().clone());
                others[i].view({-1})[place] += by;
                for (auto& other : others) other.requires_grad_();
                return penalized(loss, others).item<double>();
            };
            const auto expected = (moved(step) - moved(-step)) / (2 * step);
            EXPECT_NEAR(gradients[i].view({-1})[place].item<double>(), expected,
                        1e-7 * std::max(1.0, std::abs(expected)))
                << "input " << i << ", place " << place;
        }
    }
}

/// On every partition: the gradients of the penalised loss are those of the serial run.
void expect_serial(const at::Tensor& points, const Loss& loss, const std::vector<at::Tensor>& wholes)
{
    std::vector<at::Tensor> inputs;
    for (const auto& whole : wholes) inputs.push_back(whole.clone().requires_grad_());
    const auto expected = gradients_of(penalized(loss, inputs), inputs);
    expect_finite_differences(loss, inputs, expected);
    for (const int ranks : kGradientRankCounts) {
        for (const auto& [name, owners] : point_partitions(points, ranks)) {
            SCOPED_TRACE(name + " partition, " + std::to_string(ranks) + " ranks");
            run_ranks(ranks, [&, &owners = owners](const auto& mesh) {
                const CutPoints rows(owners, mesh);
                std::vector<at::Tensor> cut;
                for (const auto& whole : wholes) cut.push_back(rows.cut(whole).requires_grad_());
                const auto found = gradients_of(penalized(loss, cut), cut);
                for (std::size_t i = 0; i < cut.size(); ++i)
                    EXPECT_TRUE(tensors_near(local_of(found[i]), rows.of(expected[i]), 1e-10)) << "input " << i;
            });
            if (testing::Test::HasFailure()) return;
        }
    }
}

at::Tensor features_of(std::int64_t n)
{
    return at::arange(2 * n, at::kDouble).mul(0.9).cos().view({n, 2});
}

TEST(GhostGradients, OfDistancesAndNeighboursAreSerial)
{
    const auto points = scattered(40);
    expect_serial(points,
                  [](const std::vector<at::Tensor>& inputs) {
                      const auto found = knn(inputs[0], inputs[0], 5, {.exclude_self = true});
                      return (found.distances.square().unsqueeze(1) * gather_neighbors(inputs[1], found).sin()).sum();
                  },
                  {points, features_of(40)});
}

TEST(GhostGradients, OfReductionsAreSerial)
{
    const auto points = scattered(40);
    expect_serial(points,
                  [&](const std::vector<at::Tensor>& inputs) {
                      const auto at = inputs[0].detach();
                      const auto found = radius_search(at, at, 0.35);
                      const auto x = inputs[1].sin();
                      auto total = at::zeros({}, at::kDouble);
                      const auto sent = gather_neighbors(x, found);
                      for (const auto reduction : {SegmentReduction::Sum, SegmentReduction::Mean, SegmentReduction::Max,
                                                   SegmentReduction::Min}) {
                          total = total + segment_reduce(sent, found.offsets, reduction).values.square().sum();
                      }
                      return 0.1 * (total + (sent * segment_softmax(sent, found.offsets)).square().sum() +
                                    to_local(inputs[0]).square().sum());
                  },
                  {points, features_of(40)});
}

TEST(GhostGradients, OfGathersById)
{
    const auto points = scattered(30);
    const auto wanted = at::tensor({3, 3, 29, 0, 17, 8}, at::kLong);
    expect_serial(points,
                  [&](const std::vector<at::Tensor>& inputs) {
                      const auto cubes = gather_rows(inputs[0], wanted).pow(3);
                      // Every rank has the rows; each counts its share.
                      const auto ranks = is_sharded(inputs[0]) ? spec_of(inputs[0])->device_mesh->num_ranks() : 1;
                      return cubes.sum() / static_cast<double>(ranks);
                  },
                  {points});
}

/// loss = sum of w (copy of x)^3 over all copies: its gradient in row i is 3 W x^2 with W the sum of the copies' w.
TEST(GhostGradients, OfAnExchangeHaveTheirClosedForm)
{
    for (const int ranks : kGradientRankCounts) {
        run_ranks(ranks, [&](const auto& mesh) {
            const auto rank = mesh->coordinate(0);
            const auto& group = mesh->group(0);
            // A ring: rank r owns 4 rows, of which 0 and 2 go to the next.
            std::vector<std::int64_t> send(ranks, 0), receive(ranks, 0);
            send[(rank + 1) % ranks] = receive[(rank + ranks - 1) % ranks] = 2;
            const auto plan =
                std::make_shared<const ExchangePlan>(group, 4, std::vector<std::int64_t>{0, 2}, send, receive);
            auto x = at::arange(8, at::kDouble).add(rank).mul(0.3).cos().view({4, 2}).requires_grad_();
            const auto weights =
                at::tensor({1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, at::kDouble).unsqueeze(1);  // owned, then ghosts

            for (const bool in_two_fields : {false, true}) {
                at::Tensor copies;
                if (in_two_fields) {
                    auto pending = begin_ghost_exchange({x.select(1, 0), x.select(1, 1)}, plan);
                    copies = at::cat({x, at::stack(pending.end(), 1)});
                } else {
                    copies = with_ghosts(x, plan);
                }
                const auto first = torch::autograd::grad({(weights * copies.pow(3)).sum()}, {x}, {}, true, true)[0];
                const auto second = torch::autograd::grad({first.pow(2).sum()}, {x}, {}, true, true)[0];
                const auto third = torch::autograd::grad({second.sum()}, {x})[0];

                const auto sums = at::tensor({1.0 + 5, 2.0, 3.0 + 6, 4.0}, at::kDouble)
                                      .unsqueeze(1);  // the next rank's ghosts of rows 0 and 2
                const auto at = x.detach();
                EXPECT_TRUE(tensors_near(first.detach(), 3 * sums * at.square(), 1e-14));
                EXPECT_TRUE(tensors_near(second.detach(), 36 * sums.square() * at.pow(3), 1e-14));
                EXPECT_TRUE(tensors_near(third, 108 * sums.square() * at.square(), 1e-14));
            }
            for (const auto reduction : {GhostReduction::Sum, GhostReduction::Mean, GhostReduction::Max}) {
                auto y = at::arange(12, at::kDouble).add(7 * rank).mul(0.7).sin().view({6, 2}).requires_grad_();
                const auto reduced = scatter_ghosts(y, plan, reduction);
                const auto gradient = torch::autograd::grad({reduced.pow(3).sum()}, {y}, {}, true, true)[0];
                const auto second = torch::autograd::grad({gradient.square().sum() / 2}, {y})[0];
                // Each copy has a share s of the owner's value v: gradient s 3 v^2, of its square's half the sum of s
                // (s 3 v^2) 6 v.
                const auto shares = torch::autograd::grad({scatter_ghosts(y, plan, reduction).sum()}, {y})[0];
                const auto values = with_ghosts(reduced.detach(), plan);
                const auto squares = with_ghosts(scatter_ghosts(shares.square(), plan), plan);
                EXPECT_TRUE(tensors_near(second, shares * squares * 18 * values.pow(3), 1e-13));
            }
        });
    }
}

TEST(GhostGradients, OfMeshOperatorsAreSerial)
{
    const Mesh mesh = cube(3);
    const auto field = at::arange(mesh.num_cells(), at::kDouble).mul(0.7).sin();
    const auto loss_of = [](const MeshGeometry& geometry, const at::Tensor& values) {
        return to_local(least_squares_gradient(geometry)(values)).pow(3).sum() +
               to_local(laplacian(geometry)(values)).square().sum();
    };
    const auto penalty = [&](const MeshGeometry& geometry, const at::Tensor& values) {
        return to_local(torch::autograd::grad({loss_of(geometry, values)}, {values}, {}, true, true)[0]).square().sum();
    };
    auto whole = field.clone().requires_grad_();
    const auto expected = gradients_of(penalty(MeshGeometry(mesh), whole), {whole})[0];
    const auto graph = ghost_graph(mesh, {});
    for (const int ranks : {2, 3, 5}) {
        const auto partition = partition_with_metis(graph, {.num_parts = ranks});
        run_ranks(ranks, [&](const auto& device_mesh) {
            const MeshGeometry part(
                extract_subdomain(mesh, graph, partition, static_cast<std::int32_t>(device_mesh->coordinate(0)), 1),
                device_mesh);
            const auto own = at::tensor(
                std::vector<std::int64_t>(part.cell_ids().owned().begin(), part.cell_ids().owned().end()), at::kLong);
            auto cut = part.cells().field(field.index_select(0, own)).requires_grad_();
            const auto found = gradients_of(penalty(part, cut), {cut})[0];
            EXPECT_TRUE(tensors_near(local_of(found), expected.index_select(0, own), 1e-11));
        });
    }
}

}  // namespace
}  // namespace meshard
