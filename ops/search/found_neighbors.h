// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/search/point_kernels.h"
#include "ops/search/point_search.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace meshard::point_tree {

/// Memory for the neighbours of queries, allocated in chunks in the order in which queries are searched.
template <class T>
class Records {
public:
    /// Allocates `count` distances followed by `count` ids.
    T* take(std::int64_t count)
    {
        const auto size =
            static_cast<std::int64_t>((count * (sizeof(T) + sizeof(std::int32_t)) + sizeof(T) - 1) / sizeof(T));
        if (size > left_) {
            left_ = std::max(size, next_size_);
            next_size_ = std::min(2 * next_size_, kLargest);
            chunks_.emplace_back(new T[left_]);
            next_ = chunks_.back().get();
        }
        next_ += size;
        left_ -= size;
        return next_ - size;
    }

private:
    static constexpr std::int64_t kLargest = 1 << 20;

    std::vector<std::unique_ptr<T[]>> chunks_;
    T* next_ = nullptr;
    std::int64_t left_ = 0, next_size_ = 1 << 12;  // starts small, for small searches
};

/// Collects the neighbours of queries, which are searched in the order of a walk, and makes lists in the order of the
/// queries. If each query will probably have exactly `stride` neighbours, they are written to their final position
/// (query * stride) at once; with `stride` 0, to Records first. The neighbours of a query are stored once for all
/// lists: each list is a prefix of the longest.
template <class T>
class FoundNeighbors {
public:
    FoundNeighbors(std::int64_t num_queries, std::int64_t num_lists, std::int64_t stride)
        : ids_(num_queries * stride), distances_(num_queries * stride), counts_(num_queries * num_lists),
          records_(stride > 0 ? 0 : num_queries), num_queries_(num_queries), num_lists_(num_lists), stride_(stride)
    {
    }

    /// Stores the neighbours of one query. @param counts   how many of them are in each list. Several threads may call
    /// it, each with its own records.
    void put(std::int64_t query, const T* squares, const std::int32_t* ids, std::span<const std::int64_t> counts,
             Records<T>& records)
    {
        std::int64_t most = 0;
        for (std::int64_t l = 0; l < num_lists_; ++l) {
            counts_[query * num_lists_ + l] = static_cast<std::int32_t>(counts[l]);
            most = std::max(most, counts[l]);
        }
        T* distances = stride_ > 0 ? distances_.data() + query * stride_ : records_[query] = records.take(most);
        std::int32_t* const to_ids =
            stride_ > 0 ? ids_.data() + query * stride_ : reinterpret_cast<std::int32_t*>(distances + most);
        kernels_.roots(squares, most, distances);
        std::copy_n(ids, most, to_ids);
    }

    std::vector<NeighborLists<T>> lists() &&
    {
        std::vector<NeighborLists<T>> result(num_lists_);
        for (std::int64_t l = 0; l < num_lists_; ++l) {
            auto& offsets = result[l].offsets;
            offsets.resize(num_queries_ + 1);
            for (std::int64_t i = 0; i < num_queries_; ++i) offsets[i + 1] = offsets[i] + counts_[i * num_lists_ + l];
            if (stride_ > 0 && num_lists_ == 1 && offsets.back() == std::ssize(ids_)) {
                result[l].ids = std::move(ids_);
                result[l].distances = std::move(distances_);
                return result;
            }
            result[l].ids.resize(offsets.back());
            result[l].distances.resize(offsets.back());
        }
        for (std::int64_t i = 0; i < num_queries_; ++i) {
            // Records are in the order of the walk: without prefetching, each access would be a cache miss.
            constexpr std::int64_t ahead = 12;
            if (stride_ == 0 && i + ahead < num_queries_) {
                for (int line = 0; line < 4; ++line)
                    __builtin_prefetch(reinterpret_cast<const char*>(records_[i + ahead]) + 64 * line);
            }
            const auto* counts = counts_.data() + i * num_lists_;
            const auto most = *std::max_element(counts, counts + num_lists_);
            const T* distances = stride_ > 0 ? distances_.data() + i * stride_ : records_[i];
            const auto* ids =
                stride_ > 0 ? ids_.data() + i * stride_ : reinterpret_cast<const std::int32_t*>(distances + most);
            for (std::int64_t l = 0; l < num_lists_; ++l) {
                const auto to = result[l].offsets[i];
                kernels_.copy(ids, distances, counts[l], result[l].ids.data() + to, result[l].distances.data() + to);
            }
        }
        return result;
    }

private:
    const PointKernels<T>& kernels_ = point_kernels<T>();
    std::vector<std::int32_t> ids_;
    std::vector<T> distances_;
    std::vector<std::int32_t> counts_;  // (queries, lists)
    std::vector<T*> records_;
    std::int64_t num_queries_, num_lists_, stride_;
};

}  // namespace meshard::point_tree
