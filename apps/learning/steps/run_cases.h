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

/// The cases of a run: cut, stored, and opened.
struct RunCases {
    CaseSet train, val, test;
    std::map<std::string, std::filesystem::path> shards;  ///< folders by id
    std::int64_t num_parts = 1;                           ///< that each case is cut into
    TrainedFacing facing = {};                            ///< of surfaces and walls of the training cases
    std::optional<Normalizer> of_inputs = {};             ///< of grids: of what the model is told, over the training cases

    /// Of all cases, train, val, test: their figures, kept in the store. Collective.
    std::vector<CaseFigures> figures(const DataConfig& data, const RankGroup& ranks) const;

    std::int64_t num_bytes() const { return train.num_bytes() + val.num_bytes() + test.num_bytes(); }  ///< of all, on the rank that has most
};

struct CasePreparation {
    std::int64_t num_domain_ranks = 0;  ///< that each case will be spread over, where `data.parts` does not say how many parts that is; 0: those there are
    bool verify_sources = false;        ///< reads every source whole
};

/// Cuts and stores the cases that are not yet; those of which another run takes care are waited for. Collective over all ranks of `device_mesh`, which has an
/// axis `domain`. @throws as `cut_cases` and `try_store_case`, and InvalidInput if a field has not as many components in all cases
RunCases prepare_cases(const TrainingRunConfig& config, const CaseLists& lists, const CasePreparation& preparation,
                       const std::shared_ptr<const DeviceMesh>& device_mesh, const at::Device& device, TrainingLog& log,
                       const volatile std::sig_atomic_t& stop_requested);

/// Reads the cases of a model of grids (`data.grid`), which stay in memory. @throws as `load_grids`
RunCases prepare_grids(const TrainingRunConfig& config, const CaseLists& lists, const std::shared_ptr<const DeviceMesh>& device_mesh, const at::Device& device);

/// Reads all cases now where there is room for them: on the device, else in the host's memory. Says so where there is none: each is then read when it is its
/// turn. Collective over `all`.
void keep_cases(RunCases& cases, const DataConfig& data, const at::Device& device, const RankGroup& all, TrainingLog& log);

/// Of the targets of all cases that train, without their units. In exact mode their rounding does not depend on the cut, which takes reading all of them.
/// Collective in exact mode. @param scalings   by case id
ChannelStatistics target_statistics(const CaseSet& train, bool exact, const std::map<std::string, FieldScaling>& scalings);

/// Of the cases of each of several data sets, by its name; to rounding of the same values. Nothing where there is one set.
std::map<std::string, ChannelStatistics> statistics_of_sets(const CaseSet& train, const std::map<std::string, FieldScaling>& scalings);

}  // namespace meshard
