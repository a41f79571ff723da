// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/evaluation/evaluation.h"
#include "apps/learning/report/case_pictures.h"
#include "partition/mesh/surface_facing.h"
#include "sharding/transport/launch.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Contents of a report on one run; one with surface and volume has two of them, the second without a log.
struct ReportedRun {
    std::string name;
    std::filesystem::path folder;
    Evaluation evaluation;
    nlohmann::ordered_json log;  ///< lines of metrics.jsonl
};

/// Returns one HTML page that needs no other file: styles, a few lines of script, drawings and pictures are in it.
std::string report_html(std::span<const ReportedRun> runs, std::span<const CasePictures> pictures,
                        std::span<const Animation> animations);

/// Returns all numbers of the page: {format, version, runs: [{name, folder, evaluation, data: findings of training
/// about its data, curves: {loss: [[epoch, value], ...], ...}, convergence}]}.
nlohmann::ordered_json report_json(std::span<const ReportedRun> runs);

/// Runs and cases of a report, and how they are evaluated and drawn.
struct ReportOptions {
    std::vector<std::filesystem::path> runs;
    std::vector<std::string> places = {};  ///< settings of all runs that say where their data lie now
    std::vector<std::string> cases = {};   ///< words as `judged_cases` takes them; without any val and test
    std::vector<PlaneAcross> planes = {};  ///< planes that show volumes (`draw_states`)
    std::optional<Orient> orient = {};     ///< treatment of surfaces that are inside out; by default that in training
};

/// Evaluates each run on its cases, and writes report.html, report.json, cases.csv and pictures of the best, the median
/// and the worst case to `folder`, which it makes. Of simulations in time these are the first, the middle and the last
/// state of the best and the worst run, and an animation of the worst. Collective.
/// @return on every rank the evaluations of each run: one, or two (surface, volume) of a run with both
/// @throws as `judged_model`, `judged_cases` and `evaluate`; IoError
std::vector<std::vector<Evaluation>> write_report(const ReportOptions& options, const std::filesystem::path& folder,
                                                  World& world);

}  // namespace meshard
