// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/sweep/sweep_plan.h"

#include "apps/console/console.h"
#include "apps/console/text_table.h"
#include "io/bytes/content_hash.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

namespace meshard {
namespace {

std::string trimmed(const std::string& text)
{
    const auto first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
    return first == std::string::npos ? std::string() : text.substr(first, last - first + 1);
}

/// Splits a list at the commas outside of brackets and quotes.
std::vector<std::string> entries_of(const std::string& list)
{
    std::vector<std::string> entries(1);
    int depth = 0;
    char quote = 0;
    for (const char c : list) {
        if (quote) {
            if (c == quote) quote = 0;
        } else if (c == '"' || c == '\'') {
            quote = c;
        } else if (c == '[' || c == '{') {
            ++depth;
        } else if (c == ']' || c == '}') {
            --depth;
        } else if (c == ',' && depth == 0) {
            entries.emplace_back();
            continue;
        }
        entries.back() += c;
    }
    for (auto& entry : entries) entry = trimmed(entry);
    return entries;
}

/// Returns the last word of each key, or the whole key where two end alike.
std::vector<std::string> short_names(const std::vector<GridKey>& grid)
{
    const auto last_word = [](const std::string& key) { return key.substr(key.rfind('.') + 1); };
    std::vector<std::string> names;
    for (const auto& one : grid) {
        const auto alike =
            std::ranges::count_if(grid, [&](const auto& other) { return last_word(other.key) == last_word(one.key); });
        names.push_back(alike > 1 ? one.key : last_word(one.key));
    }
    return names;
}

std::string file_name(const std::string& text)
{
    std::string name;
    for (const char c : text)
        name +=
            std::isalnum(static_cast<unsigned char>(c)) || std::string_view("._=-+").find(c) != std::string_view::npos
                ? c
                : '-';
    return name;
}

}  // namespace

GridKey grid_key(const std::string& word)
{
    const auto equals = word.find('=');
    const auto refuse = [&](const std::string& why) -> UsageError { return UsageError("--grid " + word + ": " + why); };
    if (equals == std::string::npos || equals == 0)
        throw refuse("expected KEY=[VALUE, ...], e.g. training.optimizer.lr=[1e-3, 3e-3].");
    GridKey grid{trimmed(word.substr(0, equals)), {}};
    auto text = trimmed(word.substr(equals + 1));
    const bool is_list = text.size() >= 2 && text.front() == '[' && text.back() == ']';
    grid.values = is_list ? entries_of(text.substr(1, text.size() - 2)) : std::vector{text};
    for (const char* key : {"run_id", "output_dir", "seed", "data.split"}) {
        if (grid.key == key || grid.key.starts_with(std::string(key) + "."))
            throw refuse(std::string(key) + " is what a sweep sets itself.");
    }
    const std::set<std::string> different(grid.values.begin(), grid.values.end());
    if (different.contains("")) throw refuse("a value is empty.");
    if (different.size() != grid.values.size()) throw refuse("a value is named twice.");
    return grid;
}

/// Returns the ids by which a split names the cases, each once.
static std::vector<std::string> split_ids(const std::vector<CaseSource>& cases)
{
    std::vector<std::string> ids;
    for (const auto& source : cases) {
        if (ids.empty() || ids.back() != source.split_id()) ids.push_back(source.split_id());
    }
    return ids;
}

std::vector<SweepRun> sweep_runs(const CaseLists& cases, const std::vector<GridKey>& grid, std::int64_t num_folds,
                                 std::int64_t num_seeds, std::int64_t first_seed)
{
    std::vector<std::string> train = split_ids(cases.train), val = split_ids(cases.val);
    std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> splits;  // ids of train and val
    if (num_folds == 0) {
        if (val.empty())
            throw UsageError(
                "there are no validation cases by which runs are compared. Give data.split some, or --folds.");
        splits.emplace_back(train, val);
    } else {
        auto all = train;
        all.insert(all.end(), val.begin(), val.end());
        std::ranges::sort(all);
        const auto count = std::ssize(all);
        if (num_folds < 2 || num_folds > count) {
            throw UsageError("--folds is {}; expected 2 to {}, the cases of train and val.", num_folds, count);
        }
        const auto order = shuffled_order(count, static_cast<std::uint64_t>(first_seed));
        splits.resize(num_folds);
        for (std::int64_t fold = 0; fold < num_folds; ++fold) {
            auto& [learnt, judged] = splits[fold];
            for (std::int64_t i = 0; i < count; ++i) (i % num_folds == fold ? judged : learnt).push_back(all[order[i]]);
            std::ranges::sort(learnt);
            std::ranges::sort(judged);
        }
    }

    std::vector<SweepRun> points(1);
    const auto names = short_names(grid);
    for (std::size_t k = 0; k < grid.size(); ++k) {
        std::vector<SweepRun> more;
        for (const auto& point : points) {
            for (const auto& value : grid[k].values) {
                auto next = point;
                next.point += (point.point.empty() ? "" : " ") + names[k] + "=" + value;
                next.words.push_back(grid[k].key + "=" + value);
                more.push_back(std::move(next));
            }
        }
        points = std::move(more);
    }

    std::vector<SweepRun> runs;
    std::set<std::string> taken;
    for (std::int64_t seed = first_seed; seed < first_seed + num_seeds; ++seed) {
        for (std::size_t split = 0; split < splits.size(); ++split) {
            for (auto run : points) {
                run.fold = num_folds == 0 ? 0 : static_cast<std::int64_t>(split) + 1;
                run.seed = seed;
                std::tie(run.train, run.val) = splits[split];
                run.name = fmt::format("{}{}{}seed{}", file_name(run.point), run.point.empty() ? "" : "_",
                                       run.fold > 0 ? fmt::format("fold{}_", run.fold) : "", seed);
                if (constexpr std::size_t longest = 200; run.name.size() > longest)  // files have at most 255
                    run.name = run.name.substr(0, longest - 17) + "_" + hash_text(xxh64_of_text(run.name));
                if (!taken.insert(run.name).second)
                    throw UsageError("--grid: two places would have the folder {}.", run.name);
                runs.push_back(std::move(run));
            }
        }
    }
    return runs;
}

double seconds_of(const std::string& duration)
{
    double number = 0;
    const auto [end, error] = std::from_chars(duration.data(), duration.data() + duration.size(), number);
    const std::string unit(end, duration.data() + duration.size());
    const auto factor = unit == "s" ? 1.0 : unit == "m" ? 60.0 : unit == "h" ? 3600.0 : 0.0;
    if (error != std::errc() || factor == 0 || !(number > 0) || !std::isfinite(number)) {
        throw UsageError("--budget {}: expected a time such as 90s, 60m or 1.5h.", duration);
    }
    return number * factor;
}

}  // namespace meshard
