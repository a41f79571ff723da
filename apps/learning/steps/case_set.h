// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/steps/point_sampling.h"
#include "apps/learning/store/case_rows.h"
#include "apps/learning/store/case_store.h"
#include "apps/learning/store/read_ahead.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// How the cases of a run are read.
struct CaseReading {
    DataConfig data;
    std::int64_t seed = 0;
    RowOrder order = RowOrder::Parts;
    std::shared_ptr<const DeviceMesh> domain;
    at::Device device = at::kCPU;  ///< on which they are used

    RankOfCase rank() const;
};

/// A case whose turn it is.
struct CaseTurn {
    std::int64_t index = 0;  ///< in its set
    std::int64_t time = 0;   ///< from 1: with those of its points that are drawn for this time that it trains; 0: with all
    std::int64_t epoch = 0;  ///< before whose first case files are looked at
};

/// Cases of one split, stored: they stay in memory, or are read when it is their turn.
class CaseSet {
public:
    /// @throws InvalidInput if a field has not as many components in all cases, or in `like`, which may be null
    CaseSet(std::vector<CaseSource> sources, std::vector<StoredCase> stored, CaseReading reading, const CaseSet* like);

    /// Cases that are in memory already. `stored` says what is known of each; it has no files.
    CaseSet(std::vector<CaseSource> sources, std::vector<StoredCase> stored, std::vector<CaseTensors> kept, CaseReading reading, const CaseSet* like);

    std::int64_t size() const { return static_cast<std::int64_t>(sources_.size()); }
    const std::vector<CaseSource>& sources() const { return sources_; }
    const std::string& id(std::int64_t i) const { return sources_[i].id; }
    std::int64_t num_points(std::int64_t i) const { return stored_[i].num_rows; }
    std::int64_t num_points() const;                                                        ///< of all cases
    const std::vector<std::int64_t>& channels() const { return stored_.front().channels; }  ///< of each field; there is a case
    std::int64_t num_bytes() const;                                                         ///< of all cases, on the rank that has most

    std::int64_t num_file_bytes() const;                                                     ///< of all cases in the store
    const std::filesystem::path& folder(std::int64_t i) const { return stored_[i].folder; }  ///< of a case in the store
    std::vector<std::filesystem::path> files_of(std::int64_t i) const;                       ///< that this rank reads of a case

    /// Of the targets, all points of all cases, or of one.
    ChannelStatistics statistics() const;
    ChannelStatistics statistics(std::int64_t i) const;

    const StoredMeasures& measures(std::int64_t i) const { return stored_[i].measures; }

    /// Of the rows with these ids, ascending, of a case of solids: (ids), double, in the unit of its file. Undefined for any other case.
    at::Tensor volumes(std::int64_t i, std::span<const std::int64_t> ids) const;

    /// Least and greatest of each number that the points of a case are told: (1, 2, numbers).
    at::Tensor input_bounds(std::int64_t i) const;

    /// Reads all of them now, to stay where they are used, or in page-locked memory of the host.
    void keep(bool on_device);
    bool is_kept() const { return is_kept_; }

private:
    friend class CaseSequence;

    bool reads_all(const CaseTurn& turn) const;
    RowChoice drawn_in(const CaseTurn& turn) const;
    CaseRows read(const CaseTurn& turn) const;
    bool reads_measures() const { return reading_.data.has_measures; }
    bool looks_at_measures() const { return reads_measures() || (reading_.data.num_sampled > 0 && reading_.data.sampling == SamplingKind::Areas); }
    CaseTensors tensors_of(const CaseTurn& turn, CaseRows rows) const;

    std::vector<CaseSource> sources_;
    std::vector<StoredCase> stored_;
    CaseReading reading_;
    bool is_kept_ = false;
    std::vector<CaseTensors> kept_;
};

/// Cases of a set one after the other, in an order that is known beforehand: those that do not stay in memory are read ahead in a thread of its own, at most
/// two. Before the first case of each epoch all files of the set are looked at.
class CaseSequence {
public:
    /// @param next_turn   the turns in their order; nothing at the end. Called by that thread, if there is one, and must be safe there.
    CaseSequence(const CaseSet& cases, std::function<std::optional<CaseTurn>()> next_turn);

    /// The case whose turn it is, where it is used. Collective over the domain where points are drawn.
    /// @throws IoError naming the file that is missing or damaged, before the first case of the epoch if its length shows it
    CaseTensors next();

    /// By `next`, for cases that were not read yet.
    double seconds_waited() const { return ahead_ ? ahead_->seconds_waited() : 0.0; }

private:
    std::optional<CaseRows> read_next();

    const CaseSet& cases_;
    std::function<std::optional<CaseTurn>()> next_turn_;
    std::int64_t checked_epoch_ = -1;
    std::mutex mutex_;
    std::deque<CaseTurn> turns_;        // that the thread has begun with, and nobody has taken
    std::unique_ptr<ReadAhead> ahead_;  // last: its thread uses all others
};

}  // namespace meshard
