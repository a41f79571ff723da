// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/evaluation/evaluation.h"
#include "apps/report/case_pictures.h"
#include "sharding/transport/launch.h"

#include <nlohmann/json.hpp>

#include <filesystem>
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

/// Evaluates each run on its cases (words as `judged_cases` takes them; of none: val and test), and writes report.html, report.json, cases.csv and the
/// pictures of the best, the median and the worst case to `folder`, which it makes. Collective.
/// @return the evaluations on every rank: one a run, two (surface, volume) of a run with both
/// @throws as `judged_model`, `judged_cases` and `evaluate`; IoError
std::vector<Evaluation> write_report(std::span<const std::filesystem::path> runs, std::span<const std::string> words, const std::filesystem::path& folder,
                                     World& world);

}  // namespace meshard
