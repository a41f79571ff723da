// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/case_cutting.h"

#include "io/bytes/content_hash.h"
#include "io/bytes/interruption.h"
#include "io/shards/manifest.h"
#include "io/source_files.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <fstream>
#include <future>
#include <limits>
#include <random>
#include <string>
#include <system_error>
#include <thread>

namespace meshard {
namespace {

using namespace std::chrono_literals;
constexpr auto kUnknown = std::numeric_limits<std::int64_t>::min();

// The code of a rank that has not begun; every activity's code is larger, and 0 means that the rank is done.
constexpr std::int64_t kNotBegun = 1;

enum class Doing { Checking, Cutting, Storing, Waiting };
constexpr std::int64_t kNumDoings = 4;

/// What a rank is doing. The ranks find the largest code of all by a reduction.
struct Activity {
    int rank = 0;
    Doing doing = Doing::Checking;
    std::int64_t case_index = 0;

    std::int64_t encoded(std::int64_t num_cases) const
    {
        return ((rank + 1) * kNumDoings + static_cast<std::int64_t>(doing)) * num_cases + case_index;
    }
    static Activity decoded(std::int64_t code, std::int64_t num_cases)
    {
        return {static_cast<int>(code / num_cases / kNumDoings) - 1, static_cast<Doing>(code / num_cases % kNumDoings),
                code % num_cases};
    }
};

/// Prepares the cases that this rank was dealt, one after the other, in a thread of its own, while the rank exchanges
/// messages with the others.
class Cutting {
public:
    Cutting(const std::vector<CaseSource>& cases, const ShardCache& cache, const UseOfShards& use, int rank,
            std::deque<std::int64_t> own)
        : cases_(cases), cache_(cache), use_(use), rank_(rank), hashes_(cases.size(), kUnknown),
          done_(std::async(std::launch::async, [this, own = std::move(own)] { run(own); }))
    {
    }
    ~Cutting() { ends_early_ = true; }  // `done_` then waits for the case in hand
    Cutting(const Cutting&) = delete;
    Cutting& operator=(const Cutting&) = delete;

    /// Returns the code of the case in hand, or 0 once the thread has ended. @throws what the thread threw.
    std::int64_t activity()
    {
        if (done_.valid() && done_.wait_for(0s) == std::future_status::ready) done_.get();
        return done_.valid() ? activity_.load() : 0;
    }
    void wait_for(std::chrono::milliseconds time) const
    {
        if (done_.valid())
            done_.wait_for(time);
        else
            std::this_thread::sleep_for(time);
    }
    void end_early() { ends_early_ = true; }
    /// May be called once `activity` is 0: whether all own cases are prepared; `hashes` has their hashes.
    bool is_complete() const { return is_complete_; }
    const std::vector<std::int64_t>& hashes() const { return hashes_; }

private:
    void run(std::deque<std::int64_t> left)
    {
        std::size_t num_waiting = 0;  // cases in a row that other processes are cutting
        while (!left.empty() && !ends_early_) {
            const auto i = left.front();
            if (num_waiting < left.size()) {
                is_at(Doing::Checking, i);
            } else {
                is_at(Doing::Waiting, i);
                std::this_thread::sleep_for(50ms);
            }
            if (hashes_[i] == kUnknown) hashes_[i] = static_cast<std::int64_t>(hash_of(cases_[i], cache_));
            left.pop_front();
            if (try_prepare(i, static_cast<std::uint64_t>(hashes_[i]))) {
                num_waiting = 0;
            } else {
                left.push_back(i);
                ++num_waiting;
            }
        }
        is_complete_ = left.empty();
    }
    /// Prepares the shards and what `use_` makes of them. Returns false while another process does.
    bool try_prepare(std::int64_t i, std::uint64_t hash)
    {
        if (!try_prepare_shards(cases_[i], hash, cache_, [&] { is_at(Doing::Cutting, i); })) return false;
        return !use_ || use_(cases_[i], shards_path(cases_[i], hash, cache_), [&] { is_at(Doing::Storing, i); });
    }
    void is_at(Doing doing, std::int64_t i) { activity_ = Activity{rank_, doing, i}.encoded(std::ssize(cases_)); }

    const std::vector<CaseSource>& cases_;
    const ShardCache& cache_;
    const UseOfShards& use_;
    int rank_;
    std::vector<std::int64_t> hashes_;
    bool is_complete_ = false;
    std::atomic<std::int64_t> activity_ = kNotBegun;
    std::atomic<bool> ends_early_ = false;
    std::future<void> done_;
};

std::string sentence(const Activity& activity, const std::vector<CaseSource>& cases, int own_rank)
{
    constexpr std::array own{"checking ", "cutting ", "storing ", "waiting for another run, which cuts "};
    constexpr std::array others{"checks ", "cuts ", "stores ", "waits for another run that cuts "};
    const auto file = cases[activity.case_index].file.filename().string();
    const auto doing = static_cast<std::size_t>(activity.doing);
    if (activity.rank == own_rank) return own[doing] + file;
    return fmt::format("waiting for rank {}, which {}{}", activity.rank, others[doing], file);
}

/// Returns the sizes of the cases' files as the first rank sees them.
std::vector<std::int64_t> sizes_of(const std::vector<CaseSource>& cases, const RankGroup& ranks)
{
    auto sizes = at::zeros({std::ssize(cases)}, at::kLong);
    auto* const values = sizes.mutable_data_ptr<std::int64_t>();
    if (ranks.rank() == 0 && ranks.size() > 1) {
        for (std::size_t i = 0; i < cases.size(); ++i) {
            std::error_code ignored;
            for (const auto& file : source_files(cases[i].file))
                values[i] += static_cast<std::int64_t>(std::filesystem::file_size(file, ignored));
        }
    }
    ranks.broadcast(sizes, 0);
    return {values, values + cases.size()};
}

/// Joins the ranks' knowledge of one number a case. @throws InvalidInput on every rank if two ranks know different
/// numbers.
std::vector<std::int64_t> agreed(const std::vector<std::int64_t>& known, const RankGroup& ranks,
                                 const std::vector<CaseSource>& cases, const std::string& what)
{
    const auto n = std::ssize(known);
    auto bounds = at::full({2, n}, kUnknown, at::kLong);
    auto* const values = bounds.mutable_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < n; ++i) {
        if (known[i] == kUnknown) continue;
        values[i] = known[i];
        // The reduction finds the largest of these, which is the complement of the smallest number.
        values[n + i] = ~known[i];
    }
    ranks.all_reduce(bounds, Reduction::Max);
    for (std::int64_t i = 0; i < n; ++i) {
        if (values[i] != ~values[n + i]) throw InvalidInput("case {}: {}", cases[i].id, what);
    }
    return {values, values + n};
}

/// Returns a hash that distinguishes different cuts of the same case.
std::int64_t cut_hash(const std::filesystem::path& shards)
{
    std::string text;
    for (const auto& part : read_manifest(shards).parts) text += part.hash + "\n";
    return static_cast<std::int64_t>(xxh64(std::as_bytes(std::span(text))));
}

}  // namespace

std::vector<int> deal_by_size(std::span<const std::int64_t> sizes, int num_ranks)
{
    auto order = numbers_from<std::size_t>(0, sizes.size());
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
    std::vector<std::int64_t> loads(num_ranks, 0);
    std::vector<int> owners(sizes.size());
    for (const auto i : order) {
        const auto least = std::ranges::min_element(loads);
        owners[i] = static_cast<int>(least - loads.begin());
        *least += std::max<std::int64_t>(sizes[i], 1);  // empty files are dealt evenly, too
    }
    return owners;
}

std::vector<int> lowest_ranks_with(const std::filesystem::path& folder, const RankGroup& ranks)
{
    if (ranks.size() == 1) return {0};
    const auto place = folder / "locks";
    const auto number = ranks.all_gather_integers(std::random_device()())[0];
    const auto mark = [&](int rank) { return place / fmt::format("seen-{}-{}", number, rank); };
    std::error_code ignored;
    std::filesystem::create_directories(place, ignored);
    std::ofstream(mark(ranks.rank())).close();  // a rank whose write fails counts as alone
    ranks.barrier();
    int lowest = 0;
    while (lowest < ranks.rank() && !std::filesystem::exists(mark(lowest), ignored)) ++lowest;
    std::vector<int> all;
    for (const auto found : ranks.all_gather_integers(lowest)) all.push_back(static_cast<int>(found));
    std::filesystem::remove(mark(ranks.rank()), ignored);
    return all;
}

std::vector<std::filesystem::path> cut_cases(const std::vector<CaseSource>& cases, const ShardCache& cache,
                                             const RankGroup& ranks, TrainingLog& log,
                                             const volatile std::sig_atomic_t& stop_requested, const UseOfShards& use)
{
    const auto num_cases = std::ssize(cases);
    const auto lowest = lowest_ranks_with(cache.folder, ranks);
    const auto sizes = sizes_of(cases, ranks);
    std::vector<int> partners;  // ranks that see this rank's folder
    for (int rank = 0; rank < ranks.size(); ++rank) {
        if (lowest[rank] == lowest[ranks.rank()]) partners.push_back(rank);
    }
    std::deque<std::int64_t> own;
    const auto owners = deal_by_size(sizes, static_cast<int>(partners.size()));
    for (std::int64_t i = 0; i < num_cases; ++i) {
        if (partners[owners[i]] == ranks.rank()) own.push_back(i);
    }
    std::ranges::stable_sort(own, [&](std::int64_t a, std::int64_t b) { return sizes[a] > sizes[b]; });

    // Every message shows that all ranks live, so no rank waits longer than a pause for another.
    std::vector<std::int64_t> hashes;
    {
        Cutting cutting(cases, cache, use, ranks.rank(), std::move(own));
        constexpr auto longest_pause = 500ms, first_word_after = 1000ms;
        const auto begin = std::chrono::steady_clock::now();
        auto pause = 1ms;
        for (;;) {
            cutting.wait_for(pause);
            const auto mine = cutting.activity();
            auto message = at::tensor({mine, static_cast<std::int64_t>(stop_requested != 0)}, at::kLong);
            ranks.all_reduce(message, Reduction::Max);
            const auto of_any = message[0].item<std::int64_t>();
            if (of_any == 0) break;
            if (message[1].item<std::int64_t>() != 0) cutting.end_early();
            const auto shown = mine != 0 ? mine : of_any;
            if (shown != kNotBegun && std::chrono::steady_clock::now() - begin > first_word_after) {
                log.progress(sentence(Activity::decoded(shown, num_cases), cases, ranks.rank()), false);
            }
            pause = std::min(pause + pause / 4 + 1ms, longest_pause);
        }
        if (!ranks.all_agree(cutting.is_complete()))
            throw Interrupted("interrupted before the first step. The cases cut so far are kept.");
        hashes = agreed(cutting.hashes(), ranks, cases,
                        "the ranks of this run see different files under this name. Give all hosts the same files.");
    }

    std::vector<std::filesystem::path> shards;
    for (std::int64_t i = 0; i < num_cases; ++i)
        shards.push_back(shards_path(cases[i], static_cast<std::uint64_t>(hashes[i]), cache));
    if (std::ranges::any_of(lowest, [](int rank) { return rank != 0; })) {
        std::vector<std::int64_t> cuts;
        for (const auto& path : shards) cuts.push_back(cut_hash(path));
        agreed(cuts, ranks, cases,
               "the hosts of this run have cut it differently. Remove its shards from data.shards on all of them, and "
               "use one build.");
    }
    return shards;
}

}  // namespace meshard
