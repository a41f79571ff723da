// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/cut/boundary_search.h"
#include "partition/lists.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace meshard {

/// Finds, for two parts, the rows whose exchange reduces their weights above their bounds most, without trying all
/// pairs: the rows of a part are the leaves of a tree whose nodes have bounds of their weights, and pairs of nodes that
/// cannot be better than the best pair so far are left out (branch and bound).
class ExchangeSearch {
public:
    struct Found {
        double gain = 0;  // of the sum over both parts and all weights of what exceeds the bound, relative to the bound
        std::int32_t row = -1, other = -1;  // `other` is -1 if only `row` moves
    };

    /// Keeps references to the arguments.
    ExchangeSearch(const BalanceBound& bound, const std::vector<std::int32_t>& owners, std::int32_t num_parts)
        : bound_(bound), owners_(owners), rows_(num_parts), trees_(num_parts)
    {
        for (std::size_t i = 0; i < owners.size(); ++i) rows_[owners[i]].push_back(static_cast<std::int32_t>(i));
        scale_.assign(bound.num_weights, 0);
        for (std::size_t at = 0; at < bound.most_weight.size(); ++at)
            scale_[at % scale_.size()] += static_cast<double>(bound.most_weight[at]);
        for (auto& scale : scale_) scale = 1 / std::max(scale, 1.0);
    }

    /// The rows of a part, and rows that have left it.
    std::span<const std::int32_t> rows(std::int32_t part) const { return rows_[part]; }

    /// Tells that a row has come to a part.
    void add(std::int32_t part, std::int32_t row)
    {
        auto& tree = trees_[part];
        rows_[part].push_back(row);
        if (tree.nodes.empty()) return;
        constexpr std::size_t many = 16;
        if (tree.roots.size() > many) {
            tree = {};
            return;
        }
        const std::array leaf{row};
        tree.roots.push_back(add_node(tree, leaf));
    }

    /// Finds a better exchange of a row of `from` with one of `to`, or its move, than `best`, if there is one.
    bool improve(std::int32_t from, std::span<const std::int64_t> from_weights, std::int32_t to,
                 std::span<const std::int64_t> to_weights, bool may_move, Found& best, std::int64_t& work_left)
    {
        from_ = from;
        to_ = to;
        from_weights_ = from_weights;
        to_weights_ = to_weights;
        const auto &give = tree_of(from), &get = tree_of(to);
        const auto before = least_excess(nullptr, nullptr);
        if (before <= best.gain) return false;
        bool found = false;
        pairs_.clear();
        for (const auto a : give.roots) {
            for (const auto b : get.roots) push(give, a, get, b);
            if (may_move) push(give, a, get, -1);
        }
        while (!pairs_.empty() && --work_left > 0) {
            const auto [least, a, b] = pairs_.back();
            pairs_.pop_back();
            if (before - least <= best.gain) continue;
            const auto& giving = give.nodes[a];
            const auto* getting = b < 0 ? nullptr : &get.nodes[b];
            const bool is_exact = giving.left < 0 && (getting == nullptr || getting->left < 0);
            if (is_exact) {
                const auto row = row_in(give, giving, from), other = getting ? row_in(get, *getting, to) : -1;
                if (row < 0 || (getting && other < 0)) continue;
                best = {before - least, row, other};
                found = true;
                continue;
            }
            const bool splits_giving =
                giving.left >= 0 && (getting == nullptr || getting->left < 0 || giving.size >= getting->size);
            const auto num_pairs = pairs_.size();
            if (splits_giving) {
                push(give, giving.left, get, b);
                push(give, giving.right, get, b);
            } else {
                push(give, a, get, getting->left);
                push(give, a, get, getting->right);
            }
            if (pairs_.size() == num_pairs + 2 && pairs_[num_pairs].least < pairs_[num_pairs + 1].least)
                std::swap(pairs_[num_pairs], pairs_[num_pairs + 1]);
        }
        return found;
    }

private:
    struct Node {
        std::int32_t left = -1, right = -1;  // or -1: all rows have the same weights
        std::int32_t begin, end;             // its rows in the tree's order
        double size = 0;                     // extent of its weights, relative to the bounds
    };

    struct Tree {
        std::vector<std::int32_t> order;
        std::vector<Node> nodes;
        std::vector<std::int32_t> boxes;  // smallest and largest weights, (nodes, 2, num_weights)
        std::vector<std::int32_t> roots;  // the tree of the rows when it was built, and rows that came later
    };

    struct Pair {
        double least;  // lower bound of the excess after the exchange
        std::int32_t a, b;
    };

    const std::int32_t* box(const Tree& tree, std::int32_t node) const
    {
        return tree.boxes.data() + std::size_t{2} * node * bound_.num_weights;
    }

    // Adds a node with these rows, which are put at the end of the tree's order unless they are there already.
    std::int32_t add_node(Tree& tree, std::span<const std::int32_t> rows)
    {
        const auto begin = static_cast<std::int32_t>(tree.order.size());
        tree.order.insert(tree.order.end(), rows.begin(), rows.end());
        return add_node(tree, begin, begin + static_cast<std::int32_t>(rows.size()));
    }

    std::int32_t add_node(Tree& tree, std::int32_t begin, std::int32_t end)
    {
        const auto number = static_cast<std::int32_t>(tree.nodes.size());
        Node node{.begin = begin, .end = end};
        for (const bool is_largest : {false, true})
            for (std::int32_t w = 0; w < bound_.num_weights; ++w) {
                auto value = bound_.row_weight(tree.order[begin], w);
                for (auto i = begin; i < end; ++i) {
                    const auto weight = bound_.row_weight(tree.order[i], w);
                    value = is_largest ? std::max(value, weight) : std::min(value, weight);
                }
                tree.boxes.push_back(value);
            }
        std::int32_t widest = 0;
        double widest_size = 0;
        const auto* low = box(tree, number);
        const auto* high = low + bound_.num_weights;
        for (std::int32_t w = 0; w < bound_.num_weights; ++w) {
            const auto size = (static_cast<double>(high[w]) - low[w]) * scale_[w];
            node.size += size;
            if (size > widest_size) {
                widest_size = size;
                widest = w;
            }
        }
        tree.nodes.push_back(node);
        if (widest_size == 0) return number;
        // Each side has a row: the smallest weight is at most the middle, the largest above it.
        const auto middle = low[widest] + (high[widest] - low[widest]) / 2;
        const auto rows = std::span(tree.order).subspan(begin, end - begin);
        auto split = begin + static_cast<std::int32_t>(
                                 std::partition(rows.begin(), rows.end(),
                                                [&](auto row) { return bound_.row_weight(row, widest) <= middle; }) -
                                 rows.begin());
        const auto left = add_node(tree, begin, split), right = add_node(tree, split, end);
        tree.nodes[number].left = left;
        tree.nodes[number].right = right;
        return number;
    }

    const Tree& tree_of(std::int32_t part)
    {
        auto& tree = trees_[part];
        if (!tree.nodes.empty()) return tree;
        auto& rows = rows_[part];
        std::erase_if(rows, [&](std::int32_t row) { return owners_[row] != part; });
        sort_unique(rows);  // some have left and come back
        if (!rows.empty()) tree.roots = {add_node(tree, rows)};
        return tree;
    }

    // Returns a row of the node that is still in the part, or -1.
    std::int32_t row_in(const Tree& tree, const Node& node, std::int32_t part) const
    {
        for (auto i = node.begin; i < node.end; ++i)
            if (owners_[tree.order[i]] == part) return tree.order[i];
        return -1;
    }

    void push(const Tree& give, std::int32_t a, const Tree& get, std::int32_t b)
    {
        pairs_.push_back({least_excess(box(give, a), b < 0 ? nullptr : box(get, b)), a, b});
    }

    // Lower bound of the excess of both parts after they exchange rows with weights in these boxes; null: no row. Exact
    // if the boxes are single weights.
    double least_excess(const std::int32_t* give, const std::int32_t* get) const
    {
        double sum = 0;
        for (std::int32_t w = 0; w < bound_.num_weights; ++w) {
            std::int64_t low = 0, high = 0;  // range of the weight that goes from `from_` to `to_`
            if (give != nullptr) low = give[w], high = give[bound_.num_weights + w];
            if (get != nullptr) low -= get[bound_.num_weights + w], high -= get[w];
            const auto most_from = most(from_, w), most_to = most(to_, w);
            const auto needed = from_weights_[w] - most_from, room = most_to - to_weights_[w];
            // The excess is least between both, or if they contradict each other, at the part with the smaller bound.
            const auto best = needed <= room ? std::clamp(std::clamp(low, needed, room), low, high)
                                             : std::clamp(most_from < most_to ? needed : room, low, high);
            sum += std::max(0.0, static_cast<double>(from_weights_[w] - best) / static_cast<double>(most_from) - 1) +
                   std::max(0.0, static_cast<double>(to_weights_[w] + best) / static_cast<double>(most_to) - 1);
        }
        return sum;
    }

    std::int64_t most(std::int32_t part, std::int32_t w) const
    {
        return std::max<std::int64_t>(bound_.most_weight[static_cast<std::size_t>(part) * bound_.num_weights + w], 1);
    }

    const BalanceBound& bound_;
    const std::vector<std::int32_t>& owners_;
    std::vector<std::vector<std::int32_t>> rows_;
    std::vector<Tree> trees_;
    std::vector<double> scale_;  // of each weight, inverse of the sum of all bounds
    std::int32_t from_ = 0, to_ = 0;
    std::span<const std::int64_t> from_weights_, to_weights_;
    std::vector<Pair> pairs_;
};

}  // namespace meshard
