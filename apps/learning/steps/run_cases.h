// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/cases/field_scaling.h"
#include "apps/learning/cases/surface_orientation.h"
#include "apps/learning/evaluation/case_figures.h"
#include "apps/learning/settings/training_config.h"
#include "apps/learning/settings/training_log.h"
#include "apps/learning/steps/case_set.h"

#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace meshard {

/// The cases of a run after they were cut, stored and opened.
struct RunCases {
    CaseSet train, val, test;
    std::map<std::string, std::filesystem::path> shards;  ///< shards folders by case id
    std::int64_t num_parts = 1;                           ///< number of parts of each case
    TrainedFacing facing = {};                            ///< how the surfaces and walls of the training cases face
    /// Normalises the inputs of grids and of steps of runs over the training cases.
    std::optional<Normalizer> of_inputs = {};

    /// Returns the figures of all cases, train, val, test, which are kept in the store. Collective.
    std::vector<CaseFigures> figures(const DataConfig& data, const RankGroup& ranks) const;

    /// Bytes of all cases in memory, on the rank with the most.
    std::int64_t num_bytes() const { return train.num_bytes() + val.num_bytes() + test.num_bytes(); }
};

struct CasePreparation {
    /// Number of ranks a case, if `data.parts` does not give the number of parts; 0: those of the mesh.
    std::int64_t num_domain_ranks = 0;
    bool verify_sources = false;  ///< hashes every source whole
};

/// Cuts and stores the cases that are not stored yet; waits for cases that another run cuts or stores. Collective over
/// all ranks of `device_mesh`, which has an axis `domain`.
/// @throws as `cut_cases` and `try_store_case`, and InvalidInput if a field has different numbers of components in two
/// cases
RunCases prepare_cases(const TrainingRunConfig& config, const CaseLists& lists, const CasePreparation& preparation,
                       const std::shared_ptr<const DeviceMesh>& device_mesh, const at::Device& device, TrainingLog& log,
                       const volatile std::sig_atomic_t& stop_requested);

/// Describes the cases of a grid model (`data.grid`), of which each rank reads its blocks, from the store where that
/// has them (`GridStore`). Collective over the ranks of `blocks`. @throws as `GridReading::describe`
RunCases prepare_grids(const TrainingRunConfig& config, const CaseLists& lists,
                       const std::shared_ptr<const DeviceMesh>& blocks, const at::Device& device, TrainingLog& log);

/// Reads all cases now if they fit on the device, or else in the host's memory. If they fit in neither, says so, and
/// each is read when its turn comes. Collective over `all`.
void keep_cases(RunCases& cases, const DataConfig& data, const at::Device& device, const RankGroup& all,
                TrainingLog& log);

/// Returns the statistics of the targets of all training cases, without their units. In exact mode all cases are read,
/// so that rounding does not depend on the cut; then it is collective.
/// @param scalings   by case id
ChannelStatistics target_statistics(const CaseSet& train, bool exact,
                                    const std::map<std::string, FieldScaling>& scalings);

/// Returns the same statistics for each of several data sets by its name, up to rounding; empty if there is one set.
std::map<std::string, ChannelStatistics> statistics_of_sets(const CaseSet& train,
                                                            const std::map<std::string, FieldScaling>& scalings);

}  // namespace meshard
