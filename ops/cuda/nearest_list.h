// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/executor.h"

#include <cmath>
#include <cstdint>

namespace meshard {

/// A candidate neighbour, ordered by distance, ties by id.
template <class T>
struct Candidate {
    T distance_squared;
    std::int32_t id;

    MESHARD_HOST_DEVICE bool operator<(const Candidate& other) const
    {
        return distance_squared < other.distance_squared ||
               (distance_squared == other.distance_squared && id < other.id);
    }
};

/// The nearest `capacity` candidates so far, in the caller's memory: a heap with the farthest on top.
template <class T>
struct NearestList {
    T* distances;  // squared, until `finish`
    std::int32_t* ids;
    std::int64_t capacity;
    std::int64_t size = 0;

    MESHARD_HOST_DEVICE Candidate<T> at(std::int64_t i) const { return {distances[i], ids[i]}; }
    MESHARD_HOST_DEVICE void set(std::int64_t i, const Candidate<T>& c) const
    {
        distances[i] = c.distance_squared;
        ids[i] = c.id;
    }

    MESHARD_HOST_DEVICE void sift_down(const Candidate<T>& c, std::int64_t end) const
    {
        std::int64_t i = 0;
        while (2 * i + 1 < end) {
            std::int64_t child = 2 * i + 1;
            if (child + 1 < end && at(child) < at(child + 1)) ++child;
            if (!(c < at(child))) break;
            set(i, at(child));
            i = child;
        }
        set(i, c);
    }

    MESHARD_HOST_DEVICE void add(const Candidate<T>& c)
    {
        if (size == capacity) {
            if (capacity > 0 && c < at(0)) sift_down(c, size);
            return;
        }
        std::int64_t i = size++;
        while (i > 0 && at((i - 1) / 2) < c) {
            set(i, at((i - 1) / 2));
            i = (i - 1) / 2;
        }
        set(i, c);
    }

    /// Sorts the candidates, nearest first, and replaces squared distances by distances.
    MESHARD_HOST_DEVICE void finish() const
    {
        for (std::int64_t end = size - 1; end > 0; --end) {
            const auto last = at(end);
            set(end, at(0));
            sift_down(last, end);
        }
        for (std::int64_t i = 0; i < size; ++i) distances[i] = std::sqrt(distances[i]);
    }
};

}  // namespace meshard
