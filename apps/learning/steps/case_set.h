// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/grids/grid_cases.h"
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

/// Whether all points of a case take part in a step. @param num_sampled   `data.sampling_resolution`, 0: all
inline bool draws_all(std::int64_t num_sampled, std::int64_t num_points)
{
    return num_sampled == 0 || num_sampled >= num_points;
}

/// Returns the case restricted to the points with these ascending ids; the rows' ids become positions among the drawn
/// points. No communication.
/// @param knows_all   keeps all points as well, for models that need them (`PointInputs::drawn_from`)
CaseTensors sampled_case(const CaseTensors& example, const std::vector<std::int64_t>& drawn, bool knows_all = false);

/// How a run reads its cases.
struct CaseReading {
    DataConfig data;
    std::int64_t seed = 0;
    RowOrder order = RowOrder::Parts;
    std::shared_ptr<const DeviceMesh> domain;
    Shares shares;                                 ///< what each rank of the domain has of a case
    at::Device device = at::kCPU;                  ///< the device on which the cases are used
    std::shared_ptr<GridReading> grids = nullptr;  ///< reads cases that are grids; null for others

    RankOfCase rank() const;
};

/// One turn of a case.
struct CaseTurn {
    std::int64_t index = 0;  ///< the case's index in its set
    /// Counts the case's turns from 1; its points are drawn by this number, and 0 takes all points.
    std::int64_t time = 0;
    std::int64_t epoch = 0;  ///< all files are checked before the first case of an epoch
};

/// The stored cases of one split. They stay in memory, or each is read when its turn comes.
class CaseSet {
public:
    /// @throws InvalidInput if a field has not as many components in all cases, or in `like`, which may be null
    CaseSet(std::vector<CaseSource> sources, std::vector<StoredCase> stored, CaseReading reading, const CaseSet* like);

    std::int64_t size() const { return std::ssize(sources_); }
    const std::vector<CaseSource>& sources() const { return sources_; }
    const std::string& id(std::int64_t i) const { return sources_[i].id; }
    std::int64_t num_points(std::int64_t i) const { return stored_[i].num_rows; }
    std::int64_t num_points() const;  ///< points of all cases
    const StoredCase& stored(std::int64_t i) const { return stored_[i]; }
    /// Number of channels of each field; there must be a case.
    const std::vector<std::int64_t>& channels() const { return stored_.front().channels; }
    std::int64_t num_bytes() const;  ///< bytes of all cases in memory, on the rank with the most

    std::int64_t num_file_bytes() const;  ///< bytes of all cases in the store
    /// Where the store keeps a case.
    const std::filesystem::path& folder(std::int64_t i) const { return stored_[i].folder; }
    std::vector<std::filesystem::path> files_of(std::int64_t i) const;  ///< the files that this rank reads of a case

    /// Both return statistics of the targets at all points, of all cases or of one.
    ChannelStatistics statistics() const;
    ChannelStatistics statistics(std::int64_t i) const;

    /// Returns statistics of the inputs of all cases, which are steps of runs or grids.
    ChannelStatistics told_statistics() const;

    const StoredMeasures& measures(std::int64_t i) const { return stored_[i].measures; }

    /// Returns the volumes of rows with these ascending ids in a case of solids: (ids), double, in the unit of its
    /// file. Undefined for other cases.
    at::Tensor volumes(std::int64_t i, std::span<const std::int64_t> ids) const;

    /// Returns the least and the greatest value of each input of a case's points: (1, 2, numbers).
    at::Tensor input_bounds(std::int64_t i) const;

    /// Reads all cases now and keeps them on the device, or in page-locked memory of the host.
    void keep(bool on_device);
    /// Deals the rows of all cases anew, and reads those again that stay in memory. No sequence of cases may be under
    /// way.
    void share_out(const Shares& shares);
    /// Returns the shares of the first case that ranks would have which are to have `shares` of all: of grids whole
    /// groups of rows.
    Shares attained(const Shares& shares) const;
    bool is_kept() const { return is_kept_; }

private:
    friend class CaseSequence;

    bool reads_all(const CaseTurn& turn) const;
    RowChoice drawn_in(const CaseTurn& turn) const;
    CaseRows read(const CaseTurn& turn) const;
    bool reads_measures() const { return reading_.data.has_measures; }
    bool looks_at_measures() const
    {
        return reads_measures() || (reading_.data.num_sampled > 0 && reading_.data.sampling == SamplingKind::Areas);
    }
    CaseTensors tensors_of(const CaseTurn& turn, CaseRows rows) const;

    std::vector<CaseSource> sources_;
    std::vector<StoredCase> stored_;
    CaseReading reading_;
    bool is_kept_ = false, is_on_device_ = false;
    std::vector<CaseTensors> kept_;
};

/// The cases of a set in an order that is known beforehand. Cases that do not stay in memory are read ahead, at most
/// two, of grids one, in a thread of their own. Before the first case of each epoch all files of a store are checked.
class CaseSequence {
public:
    /// @param next_turn   returns the turns in their order, then nothing. The reading thread calls it, if there is one.
    CaseSequence(const CaseSet& cases, std::function<std::optional<CaseTurn>()> next_turn);

    /// Returns the next case on the device where it is used. Collective over the domain where points are drawn.
    /// @throws IoError naming the file that is missing or damaged, before the first case of the epoch if its length
    /// shows it
    CaseTensors next();

    /// Seconds that `next` has waited for cases that were not read yet.
    double seconds_waited() const { return ahead_ ? ahead_->seconds_waited() : 0.0; }

private:
    std::optional<CaseRows> read_next();

    const CaseSet& cases_;
    std::function<std::optional<CaseTurn>()> next_turn_;
    std::int64_t checked_epoch_ = -1;
    std::mutex mutex_;
    std::deque<CaseTurn> turns_;        // the thread has read or begun these turns, and `next` has not taken them
    std::unique_ptr<ReadAhead> ahead_;  // last, since its thread uses all other members
};

}  // namespace meshard
