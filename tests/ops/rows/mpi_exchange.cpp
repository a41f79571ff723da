// SPDX-License-Identifier: Apache-2.0
// Started by mpirun, with any number of ranks from two on: ghost exchanges over MPI against what indexing gives. Exit
// code 1 with a sentence if they differ.
#include "sharding/transport/launch.h"
#include "tests/support/exchanged_rows.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>

namespace meshard {
namespace {

void expect_equal(const at::Tensor& found, const at::Tensor& expected, const std::string& what)
{
    if (found.sizes() == expected.sizes() && at::equal(found, expected)) return;
    std::fprintf(stderr, "mpi_exchange: %s differs from what was sent\n", what.c_str());
    std::exit(1);  // mpirun ends the other ranks
}

void exchange_by(const RankGroup& group)
{
    const auto exchanges = test::exchanged_rows(group);
    for (std::size_t i = 0; i < exchanges.size(); ++i) {
        expect_equal(exchanges[i].first, exchanges[i].second,
                     "exchange " + std::to_string(i) + " of " + std::to_string(group.size()) + " ranks");
    }
}

int run()
{
    at::set_num_threads(1);
    const auto world = World::connect(detect_launch(), 120);
    if (world->backend_name() != "mpi") {
        std::fprintf(stderr, "mpi_exchange: the ranks talk over %s, not MPI\n", world->backend_name().c_str());
        return 1;
    }
    const auto counter = std::make_shared<CommCounter>();
    std::vector<int> all(world->size()), some;
    std::iota(all.begin(), all.end(), 0);
    for (int r = world->size() - 1; r >= 0; r -= 2) some.push_back(r);  // another order than MPI's
    exchange_by(world->make_group(all, "all", counter));
    if (some.size() > 1 && std::find(some.begin(), some.end(), world->rank()) != some.end())
        exchange_by(world->make_group(some, "some", counter));
    world->finish();
    return 0;
}

}  // namespace
}  // namespace meshard

int main()
{
    return meshard::run();
}
