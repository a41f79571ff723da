// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/transport/launch.h"

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// What a radius search of a cloud among itself sends, counted; the largest of all ranks, and of the ratios the worst.
struct SearchTraffic {
    std::string method;             ///< that cut the cloud
    std::int64_t within_reach = 0;  ///< points of other ranks that are a neighbour of some query
    std::int64_t ghosts = 0;        ///< points that came
    double ghosts_over_reach = 0;
    std::int64_t search_bytes = 0;    ///< received: boxes, questions, ids and points
    double ring_over_search = 0;      ///< bytes of a ring of whole clouds over those
    std::int64_t repeated_bytes = 0;  ///< of the same search again
    std::int64_t feature_bytes = 0;   ///< of `gather_neighbors` with 16 channels
    std::int64_t gathered_rows = 0;   ///< that `gather_rows` of all neighbours' ids receives
};

/// Times of one exchange, the shortest of runs that alternate, so that what else the machine does counts least; of each run the slowest rank.
struct ExchangeTimes {
    std::int64_t num_rows = 0, num_channels = 0;  ///< that each rank sends to the next one
    std::int64_t stride = 1;                      ///< of a table the rows one after another, or every other one
    double bare_seconds = 0;                      ///< a send and receive of the same bytes, ready in memory
    double exchange_seconds = 0;                  ///< rows picked out, sent, received
    double exchange_over_bare = 0;
};

/// A step of message passing over a graph whose nodes hear of ten owned ones, and some of a ghost: what of an exchange can be seen in it.
struct OverlapTimes {
    std::int64_t num_ghosts = 0, num_edges = 0;
    double exchange_seconds = 0;  ///< alone
    double step_seconds = 0;      ///< with messages
    double silent_seconds = 0;    ///< the same work on ghosts that are there already
    double visible_share = 0;     ///< (step - silent) / exchange, of the shortest of each
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

/// Collective over all ranks of `world`, two or more; every rank gets the same figures.
/// @param num_points    of the cloud that is searched, uniform in a cube, about 16 neighbours a point
/// @param num_rows      of 64 channels, that each rank sends to the next one
GhostReport measure_ghosts(std::int64_t num_points, std::int64_t num_rows, int num_repeats, World& world);

}  // namespace meshard
