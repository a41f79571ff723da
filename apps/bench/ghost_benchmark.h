// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/transport/launch.h"

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// Communication of a radius search among the points of a cloud: the largest count and the worst ratio over the ranks.
struct SearchTraffic {
    std::string method;             ///< method that cut the cloud
    std::int64_t within_reach = 0;  ///< points of other ranks that are neighbours of a query
    std::int64_t ghosts = 0;        ///< received points
    double ghosts_over_reach = 0;
    std::int64_t search_bytes = 0;    ///< received: boxes, queries, ids and points
    double ring_over_search = 0;      ///< bytes if whole clouds are sent around a ring, divided by search_bytes
    std::int64_t repeated_bytes = 0;  ///< received in a repetition of the same search
    std::int64_t feature_bytes = 0;   ///< received in `gather_neighbors` with 16 channels
    std::int64_t gathered_rows = 0;   ///< received by `gather_rows` of all neighbours' ids
};

/// Times of one ghost exchange and of a bare one on the slowest rank: the shortest of runs that alternate, to suppress
/// other load of the machine.
struct ExchangeTimes {
    std::int64_t num_rows = 0, num_channels = 0;  ///< sent by each rank to the next one
    std::int64_t stride = 1;                      ///< 1: consecutive rows of a table; 2: every other row
    double bare_seconds = 0;                      ///< time to send and receive the same bytes from contiguous memory
    double exchange_seconds = 0;                  ///< time to gather, send and receive the rows
    double exchange_over_bare = 0;
};

/// Overlap of a ghost exchange with a step of message passing over a graph whose nodes have ten owned neighbours, and
/// some also a ghost.
struct OverlapTimes {
    std::int64_t num_ghosts = 0, num_edges = 0;
    double exchange_seconds = 0;  ///< time of the exchange alone
    double step_seconds = 0;      ///< time of the step with its exchange
    double silent_seconds = 0;    ///< time of the same step without exchange
    double visible_share = 0;     ///< fraction of the exchange that is not hidden: (step - silent) / exchange
};

struct GhostReport {
    int num_ranks = 1;
    int threads_per_rank = 1;
    std::string backend;
    std::int64_t num_points = 0;
    std::vector<SearchTraffic> traffic;
    std::vector<ExchangeTimes> exchanges;
    OverlapTimes overlap;
};

/// Measures searches, ghost exchanges, and their overlap with computation. Collective over all ranks of `world`; every
/// rank gets the same report.
/// @param num_points    points of the cloud that is searched, uniform in a cube, with about 16 neighbours each
/// @param num_rows      rows of 64 channels that each rank sends to the next one
/// @throws InvalidInput for one rank
GhostReport measure_ghosts(std::int64_t num_points, std::int64_t num_rows, int num_repeats, World& world);

}  // namespace meshard
