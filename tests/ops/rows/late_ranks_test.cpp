// SPDX-License-Identifier: Apache-2.0
// Acceptance A32: what is under way is waited for before it is used, whichever rank is late, forward and backward. Over
// shared memory, where messages really are under way: ranks are threads, each with a backend of its own.
#include "ops/fields/mesh_operators.h"
#include "ops/neighbors/message_graph.h"
#include "ops/neighbors/neighbors.h"
#include "ops/rows/row_gather.h"
#include "ops/rows/segment_reduce.h"
#include "partition/ghosts/ghost_graph.h"
#include "sharding/tensor/with_backward.h"
#include "sharding/transport/shared_memory_backend.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/point_partitions.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/scattered_points.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <chrono>
#include <map>
#include <thread>

namespace meshard {
namespace {

class SharedMemoryRank : public GroupFactory {
public:
    SharedMemoryRank(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
        : store_(std::move(store)), rank_(rank), size_(size)
    {
    }
    int rank() const override { return rank_; }
    int size() const override { return size_; }
    RankGroup make_group(const std::vector<int>& ranks, const std::string& axis,
                         std::shared_ptr<CommCounter> counter) override
    {
        const auto here = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
        const auto store = c10::make_intrusive<c10d::PrefixStore>(std::to_string(num_made_++), store_);
        return {connect_shared_memory(store, here, static_cast<int>(ranks.size()), std::chrono::seconds(30),
                                      [](int) { return false; }),
                axis, std::move(counter)};
    }

private:
    c10::intrusive_ptr<c10d::Store> store_;
    int rank_, size_;
    int num_made_ = 0;
};

/// Runs `body(mesh, pause)` on every rank, for every choice of the one for which `pause` takes its time.
template <class Body>
void with_one_late(int size, const Body& body)
{
    for (int late = 0; late < size; ++late) {
        const auto store = c10::make_intrusive<c10d::HashStore>();
        std::vector<std::thread> threads;
        for (int rank = 0; rank < size; ++rank) {
            threads.emplace_back([&, rank] {
                at::set_num_threads(1);
                const auto pause = [&] {
                    if (rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(15));
                };
                try {
                    SharedMemoryRank factory(store, rank, size);
                    body(DeviceMesh::create(factory, {size}, {"domain"}), pause);
                } catch (const std::exception& error) {
                    ADD_FAILURE() << "rank " << rank << " of " << size << ", rank " << late
                                  << " late: " << error.what();
                }
            });
        }
        for (auto& thread : threads) thread.join();
        if (testing::Test::HasFailure()) return;
    }
}

/// The tensor; its gradient takes its time.
template <class Pause>
at::Tensor with_late_gradient(const at::Tensor& tensor, const Pause& pause)
{
    return with_backward(tensor.detach().alias(), tensor, "LateBackward", [pause](const at::Tensor& gradient) {
        pause();
        return gradient;
    });
}

TEST(AcceptanceA32, GhostsAndTheirGradientsAreWaitedFor)
{
    constexpr std::int64_t n = 600;
    const auto points = scattered(n), features = at::arange(n * 64, at::kDouble).mul(0.37).sin().view({n, 64});
    const auto no_pause = [] {};
    /// One number of all that brings ghosts.
    const auto loss_of = [](const at::Tensor& p, const at::Tensor& f, const auto& local, const auto& pause) {
        const auto found = knn(p, p, 6, {.exclude_self = true});
        pause();
        auto loss = (local(gather_neighbors(f, found)) * found.distances.unsqueeze(1)).sum();
        pause();
        for (const auto reduction : {SegmentReduction::Sum, SegmentReduction::Max}) {
            loss = loss + with_late_gradient(
                              segment_reduce(gather_neighbors(f, found), found.offsets, reduction).values, pause)
                              .square()
                              .sum();
        }
        const MessageGraph graph(found);
        pause();
        const auto edges =
            graph.updated_edges(f, f, {}, [&](const at::Tensor&, const at::Tensor& sources, const at::Tensor& targets) {
                pause();
                return (sources - targets).tanh();
            });
        return loss + with_late_gradient(local(graph.to_targets(edges, SegmentReduction::Mean)), pause).square().sum();
    };
    auto p0 = points.clone().requires_grad_(), f0 = features.clone().requires_grad_();
    loss_of(p0, f0, [](const at::Tensor& x) { return x; }, no_pause).backward();
    for (const int size : {2, 4}) {
        for (const auto& [name, owners] : point_partitions(points, size)) {
            if (name == "curve") continue;
            with_one_late(size, [&, &owners = owners](const auto& mesh, const auto& pause) {
                const CutPoints rows(owners, mesh);
                auto p = rows.cut(points).requires_grad_(), f = rows.cut(features).requires_grad_();

                loss_of(p, f, [](const at::Tensor& x) { return to_local(x); }, pause).backward();

                EXPECT_TRUE(tensors_near(local_of(p.grad()), rows.of(p0.grad()), 1e-12));
                EXPECT_TRUE(tensors_near(local_of(f.grad()), rows.of(f0.grad()), 1e-12));
            });
        }
    }
}

TEST(AcceptanceA32, MeshOperatorsAndRowsByIdAreWaitedFor)
{
    const Mesh mesh = cube(6);
    const auto graph = ghost_graph(mesh, {});
    const auto values = at::arange(mesh.num_cells() * 32, at::kDouble).mul(0.7).cos().view({-1, 32}),
               ids = at::arange(300, at::kLong).mul(7).remainder(mesh.num_cells());
    const auto loss_of = [](const MeshGeometry& geometry, const at::Tensor& field, const auto& local,
                            const auto& pause) {
        const auto gradient = least_squares_gradient(geometry);
        pause();
        auto loss = with_late_gradient(local(gradient(field)), pause).square().sum();
        pause();
        return loss +
               with_late_gradient(local(cells_to_points(geometry)(laplacian(geometry)(field))), pause).square().sum();
    };
    auto f0 = values.clone().requires_grad_();
    loss_of(MeshGeometry(mesh), f0, [](const at::Tensor& x) { return x; }, [] {}).backward();
    const auto size = 4;
    const auto sums = values.index_add(0, ids.repeat({size}), values.index_select(0, ids).repeat({size, 1}));
    const auto partition = partition_with_metis(graph, {.num_parts = size});
    with_one_late(size, [&](const auto& device_mesh, const auto& pause) {
        const MeshGeometry part(
            extract_subdomain(mesh, graph, partition, static_cast<std::int32_t>(device_mesh->coordinate(0)), 1),
            device_mesh);
        const auto own = at::tensor(
            std::vector<std::int64_t>(part.cell_ids().owned().begin(), part.cell_ids().owned().end()), at::kLong);
        auto f = part.cells().field(values.index_select(0, own)).requires_grad_();

        loss_of(part, f, [](const at::Tensor& x) { return to_local(x); }, pause).backward();
        pause();
        const auto found = gather_rows(f.detach(), ids);
        pause();
        const auto added = scatter_add(f.detach(), ids, found);

        EXPECT_TRUE(tensors_near(local_of(f.grad()), f0.grad().index_select(0, own), 1e-12));
        EXPECT_TRUE(at::equal(found, values.index_select(0, ids)));
        EXPECT_TRUE(tensors_near(local_of(added), sums.index_select(0, own), 1e-13));
    });
}

}  // namespace
}  // namespace meshard
