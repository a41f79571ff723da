// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/case_features.h"

#include "apps/learning/checkpoints/kept_features.h"
#include "models/registry/last_features.h"

#include <torch/types.h>

#include <filesystem>

namespace meshard {

bool has_case_features(const Run& run)
{
    return run.data.training_cases().size() >= FeatureDistance::kFewestCases && run.data.parts().size() == 1 &&
           !run.config.data.is_grid && !run.data.states() && !run.data.needs_body() && !run.model.is_sharded();
}

void keep_case_features(Run& run, const std::filesystem::path& checkpoint, std::int64_t num_steps)
{
    if (!has_case_features(run)) return;
    const auto& cases = run.data.training_cases();
    const torch::NoGradGuard no_grad;
    const AveragedWeights averaged(run.model.update());
    run.model.module().eval();
    at::Tensor features;  // (cases, features), of this group's cases
    ExampleSequence examples(run.data, &RunCases::train, run.data.order().turns_of_split(cases.size(), false));
    for (auto i = run.ranks.group; i < cases.size(); i += run.ranks.num_groups) {
        const auto example = examples.next();
        const auto of_case =
            mean_last_features(run.model.model(), thinned_inputs(example.front().inputs, kPointsOfFeatures),
                               example.front().target.size(-1));
        if (!of_case.defined()) break;  // for every case alike
        if (!features.defined()) features = torch::zeros({cases.size(), of_case.size(0)}, torch::kDouble);
        features[i] = of_case;
    }
    if (!run.ranks.all().all_agree(features.defined())) return;
    run.ranks.across_groups().all_reduce(features);
    if (run.ranks.is_first()) keep_features(checkpoint, num_steps, FeatureDistance(features));
}

}  // namespace meshard
