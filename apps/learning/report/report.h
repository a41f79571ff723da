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

/// What a report tells of one run; of one with surface and volume two of them, the second without a log.
struct ReportedRun {
    std::string name;
    std::filesystem::path folder;
    Evaluation evaluation;
    nlohmann::ordered_json log;  ///< lines of metrics.jsonl
};

/// One page without anything from elsewhere: styles, a few lines of script, drawings and pictures are in it.
std::string report_html(std::span<const ReportedRun> runs, std::span<const CasePictures> pictures);

/// All numbers of the page: {format, version, runs: [{name, evaluation, data: what training found of its data, curves: {loss: [[step, value], ...],
/// ...}}]}.
nlohmann::ordered_json report_json(std::span<const ReportedRun> runs);

/// What a report is of.
struct ReportOptions {
    std::vector<std::filesystem::path> runs;
    std::vector<std::string> places = {};  ///< settings of all runs that say where their data lie now
    std::vector<std::string> cases = {};   ///< words as `judged_cases` takes them; of none: val and test
    std::vector<PlaneAcross> planes = {};  ///< through which volumes are looked at (`draw_case`)
    std::optional<Orient> orient = {};     ///< what is done with surfaces that are inside out; without it what each run did in training
};

/// Evaluates each run on its cases, and writes report.html, report.json, cases.csv and the
/// pictures of the best, the median and the worst case to `folder`, which it makes. Collective.
/// @return of each run the evaluations, on every rank: one, or two (surface, volume) of a run with both
/// @throws as `judged_model`, `judged_cases` and `evaluate`; IoError
std::vector<std::vector<Evaluation>> write_report(const ReportOptions& options, const std::filesystem::path& folder, World& world);

}  // namespace meshard
