// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace meshard::point_tree {

inline constexpr int kWidth = 8;  ///< points of a leaf, children of a node

/// A vector of eight numbers in registers of 16 bytes, which every x86-64 and Arm processor has.
template <class T>
struct Wide {
    typedef T Part __attribute__((vector_size(16)));
    static constexpr int kLanes = 16 / sizeof(T), kParts = kWidth / kLanes;

    Part parts[kParts];

    T operator[](int lane) const { return parts[lane / kLanes][lane % kLanes]; }
    void set(int lane, T value) { parts[lane / kLanes][lane % kLanes] = value; }

    /// One bit for each lane that is at most `bound`; none for NaN.
    unsigned lanes_up_to(T bound) const
    {
        unsigned bits = 0;
        for (int p = 0; p < kParts; ++p) {
#if defined(__SSE2__)
            if constexpr (sizeof(T) == 4)
                bits |= static_cast<unsigned>(_mm_movemask_ps((__m128)(parts[p] <= bound))) << (p * kLanes);
            else
                bits |= static_cast<unsigned>(_mm_movemask_pd((__m128d)(parts[p] <= bound))) << (p * kLanes);
#else
            for (int lane = 0; lane < kLanes; ++lane)
                bits |= static_cast<unsigned>(parts[p][lane] <= bound) << (p * kLanes + lane);
#endif
        }
        return bits;
    }
};

template <class T>
inline typename Wide<T>::Part larger(typename Wide<T>::Part a, typename Wide<T>::Part b)
{
#if defined(__SSE2__)
    if constexpr (sizeof(T) == 4)
        return (typename Wide<T>::Part)_mm_max_ps((__m128)a, (__m128)b);
    else
        return (typename Wide<T>::Part)_mm_max_pd((__m128d)a, (__m128d)b);
#else
    return a > b ? a : b;
#endif
}

template <class T>
inline typename Wide<T>::Part smaller(typename Wide<T>::Part a, typename Wide<T>::Part b)
{
    return -larger<T>(-a, -b);
}

__extension__ using UInt128 = unsigned __int128;

/// (squared distance, id) as one integer with the same order: the bits of non-negative numbers have the order of the
/// numbers.
template <class T>
using Key = std::conditional_t<sizeof(T) == 4, std::uint64_t, UInt128>;

template <class T>
using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

template <class T>
inline Key<T> make_key(T distance_squared, std::int32_t id)
{
    return static_cast<Key<T>>(std::bit_cast<Bits<T>>(distance_squared)) << 32 | static_cast<std::uint32_t>(id);
}

template <class T>
inline T distance_squared_of(Key<T> key)
{
    return std::bit_cast<T>(static_cast<Bits<T>>(key >> 32));
}

template <class T>
inline std::int32_t id_of(Key<T> key)
{
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(key));
}

template <class T, int D>
struct Item {
    std::array<T, D> x;
    std::int32_t id;
};

template <class T, int D>
struct Box {
    std::array<T, D> low, high;

    static Box empty()
    {
        Box box;
        box.low.fill(std::numeric_limits<T>::infinity());
        box.high.fill(-std::numeric_limits<T>::infinity());
        return box;
    }
    void add(const std::array<T, D>& x)
    {
        for (int d = 0; d < D; ++d) {
            low[d] = x[d] < low[d] ? x[d] : low[d];
            high[d] = x[d] > high[d] ? x[d] : high[d];
        }
    }
    void add(const Box& other)
    {
        add(other.low);
        add(other.high);
    }
};

template <class T, int D>
Box<T, D> box_of(std::span<const Item<T, D>> items)
{
    auto box = Box<T, D>::empty();
    for (const auto& item : items) box.add(item.x);
    return box;
}

/// Moves the `left` first items along an axis, ties by id, to the front: like std::nth_element, without branches that
/// depend on the items.
template <class T, int D>
void select_items(std::span<Item<T, D>> items, std::size_t left, int axis)
{
    const auto less = [axis](const Item<T, D>& a, const Item<T, D>& b) {
        return static_cast<bool>((a.x[axis] < b.x[axis]) | ((a.x[axis] == b.x[axis]) & (a.id < b.id)));
    };
    std::array<Item<T, D>, 63> sample;
    // The pivot is chosen slightly beside the wanted position, towards the larger side: the position is then in the
    // smaller part, and after two partitions few items are left.
    for (int cut = 0; cut < 64 && items.size() > 24; ++cut) {
        const std::size_t num_samples = items.size() > 1000 ? 63 : items.size() > 100 ? 15 : 5;
        for (std::size_t i = 0; i < num_samples; ++i) sample[i] = items[(2 * i + 1) * items.size() / (2 * num_samples)];
        const auto middle = left * num_samples / items.size(), miss = num_samples / 12;
        const auto position =
            2 * left > items.size() ? middle - std::min(middle, miss) : std::min(middle + miss, num_samples - 1);
        std::nth_element(sample.begin(), sample.begin() + position, sample.begin() + num_samples, less);
        const auto pivot = sample[position];
        std::size_t count = 0;
        for (std::size_t i = 0; i < items.size(); ++i) {
            const auto item = items[i];
            items[i] = items[count];
            items[count] = item;
            count += less(item, pivot);
        }
        if (count == 0 || count == left) {
            if (count == left) return;
            break;
        }
        if (left < count) {
            items = items.first(count);
        } else {
            items = items.subspan(count);
            left -= count;
        }
    }
    std::nth_element(items.begin(), items.begin() + left, items.end(), less);
}

/// Orders items so that every eight make a leaf, every eight leaves a node, and so on: halves by the median along the
/// longest side, rounded to whole nodes. Equal coordinates are ordered by id, and so are coincident points.
template <class T, int D>
void order_items(std::span<Item<T, D>> items)
{
    const auto leaves = (std::ssize(items) + kWidth - 1) / kWidth;
    if (leaves <= 1) return;
    std::int64_t unit = 1;
    while (unit * kWidth < leaves) unit *= kWidth;
    const auto parts = (leaves + unit - 1) / unit;
    const auto left = parts / 2 * unit * kWidth;

    const auto box = box_of<T, D>(items);
    int axis = 0;
    for (int d = 1; d < D; ++d) {
        if (box.high[d] - box.low[d] > box.high[axis] - box.low[axis]) axis = d;
    }
    select_items<T, D>(items, static_cast<std::size_t>(left), axis);
    order_items(items.first(left));
    order_items(items.subspan(left));
}

/// Period of each axis; infinite for an open one.
template <class T, int D>
struct Period {
    std::array<T, D> length;
    bool any = false;  ///< whether some axis is periodic
};

/// Squared distances between a box and eight others. Rounding is monotonic, so that they stay lower bounds of the
/// distances between points in the boxes.
template <class T, int D>
inline Wide<T> box_distances(const Box<T, D>& box, const std::array<Wide<T>, D>& low,
                             const std::array<Wide<T>, D>& high, const Period<T, D>& period)
{
    using Part = typename Wide<T>::Part;
    Wide<T> result;
    for (int p = 0; p < Wide<T>::kParts; ++p) {
        Part sum{};
        for (int d = 0; d < D; ++d) {
            Part gap = larger<T>(larger<T>(low[d].parts[p] - box.high[d], box.low[d] - high[d].parts[p]), Part{});
            if (period.any) {
                const Part farthest = larger<T>(high[d].parts[p] - box.low[d], box.high[d] - low[d].parts[p]);
                gap = smaller<T>(gap, larger<T>(period.length[d] - farthest, Part{}));
            }
            sum = d == 0 ? gap * gap : sum + gap * gap;
        }
        result.parts[p] = sum;
    }
    return result;
}

/// Squared distances between a point and eight others; NaN for lanes with NaN coordinates.
template <class T, int D>
inline Wide<T> point_distances(const std::array<T, D>& x, const std::array<Wide<T>, D>& points,
                               const Period<T, D>& period)
{
    using Part = typename Wide<T>::Part;
    Wide<T> result;
    for (int p = 0; p < Wide<T>::kParts; ++p) {
        Part sum{};
        for (int d = 0; d < D; ++d) {
            Part gap = points[d].parts[p] - x[d];
            if (period.any) {
                gap = larger<T>(-gap, gap);
                gap = smaller<T>(period.length[d] - gap, gap);
            }
            sum = d == 0 ? gap * gap : sum + gap * gap;
        }
        result.parts[p] = sum;
    }
    return result;
}

/// A k-d tree with eight children for each node, stored level by level: node n of a level has the boxes of nodes 8 n,
/// ..., 8 n + 7 of the level below, or of leaves. Lanes without a point or child are infinitely far away.
template <class T, int D>
struct Tree {
    struct Leaf {
        std::array<Wide<T>, D> x;
        std::array<std::int32_t, kWidth> ids;
    };
    struct Node {
        std::array<Wide<T>, D> low, high;
        std::array<std::int32_t, kWidth> least_id;
    };

    std::vector<Leaf> leaves;
    std::vector<std::vector<Node>> levels;  ///< the last one has one node, or none if there are no points

    void build(std::span<const Item<T, D>> ordered)
    {
        const auto n = std::ssize(ordered);
        const auto num_leaves = (n + kWidth - 1) / kWidth;
        leaves.resize(num_leaves);
        std::vector<Box<T, D>> boxes(num_leaves);
        std::vector<std::int32_t> least(num_leaves);
        for (std::int64_t l = 0; l < num_leaves; ++l) {
            boxes[l] = Box<T, D>::empty();
            least[l] = std::numeric_limits<std::int32_t>::max();
            for (int lane = 0; lane < kWidth; ++lane) {
                const auto i = l * kWidth + lane;
                for (int d = 0; d < D; ++d)
                    leaves[l].x[d].set(lane, i < n ? ordered[i].x[d] : std::numeric_limits<T>::quiet_NaN());
                leaves[l].ids[lane] = i < n ? ordered[i].id : -1;
                if (i >= n) continue;
                boxes[l].add(ordered[i].x);
                least[l] = std::min(least[l], ordered[i].id);
            }
        }
        while (!boxes.empty()) {
            const auto num_boxes = std::ssize(boxes);
            const auto num_nodes = (num_boxes + kWidth - 1) / kWidth;
            std::vector<Node> nodes(num_nodes);
            std::vector<Box<T, D>> above(num_nodes, Box<T, D>::empty());
            std::vector<std::int32_t> least_above(num_nodes, std::numeric_limits<std::int32_t>::max());
            for (std::int64_t i = 0; i < num_nodes; ++i) {
                for (int lane = 0; lane < kWidth; ++lane) {
                    const auto child = i * kWidth + lane;
                    const auto box = child < num_boxes ? boxes[child] : Box<T, D>::empty();
                    for (int d = 0; d < D; ++d) {
                        nodes[i].low[d].set(lane, box.low[d]);
                        nodes[i].high[d].set(lane, box.high[d]);
                    }
                    nodes[i].least_id[lane] =
                        child < num_boxes ? least[child] : std::numeric_limits<std::int32_t>::max();
                    if (child >= num_boxes) continue;
                    above[i].add(box);
                    least_above[i] = std::min(least_above[i], least[child]);
                }
            }
            levels.push_back(std::move(nodes));
            if (num_nodes == 1) break;
            boxes = std::move(above);
            least = std::move(least_above);
        }
    }
};

}  // namespace meshard::point_tree
