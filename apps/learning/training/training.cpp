// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/training.h"

#include "apps/console/console.h"
#include "apps/learning/checkpoints/kept_features.h"
#include "apps/learning/checkpoints/run_checkpoint.h"
#include "apps/learning/grids/grid_cases.h"
#include "apps/learning/training/run_messages.h"
#include "apps/learning/training/run_state.h"
#include "apps/learning/training/split_errors.h"
#include "apps/learning/training/training_steps.h"
#include "models/registry/last_features.h"
#include "sharding/memory/device_graph.h"
#include "sharding/tensor/exact_mode.h"

#include <ATen/ATen.h>
#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>

namespace meshard {
namespace {

/// Whether the features of the run's training cases are kept: of models of points that stand still, and at least
/// FeatureDistance::kFewestCases cases.
bool has_case_features(const Run& run)
{
    return run.data.training_cases().size() >= FeatureDistance::kFewestCases && run.data.parts().size() == 1 &&
           !run.config.data.is_grid && !run.data.states() && !run.data.needs_body() && !run.model.is_sharded();
}

/// Keeps what the last layer of the run's model is given of each training case (`keep_features`), if it
/// `has_case_features`. Collective.
/// @param checkpoint   which has the model's weights, beside which they are kept  @param num_steps   that it has made
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

/// Switches exact mode on as long as this lives, where it is asked for. It computes in one thread: where threads share
/// out an operator, LibTorch's vector code ends and its scalar code, which rounds differently, begins.
class ExactMode {
public:
    explicit ExactMode(bool on) : on_(on), num_threads_(at::get_num_threads())
    {
        if (!on_) return;
        set_exact_mode(true);
        at::set_num_threads(1);
    }
    ~ExactMode()
    {
        if (!on_) return;
        at::set_num_threads(num_threads_);
        set_exact_mode(false);
    }
    ExactMode(const ExactMode&) = delete;
    ExactMode& operator=(const ExactMode&) = delete;

private:
    bool on_;
    int num_threads_;
};

/// Refuses to balance ranks where their shares cannot follow their speeds.
void require_balance(const TrainingRunConfig& config, const World& world)
{
    constexpr std::int64_t fewest_parts = 4;  // a rank, of a case
    if (!config.balances_ranks) return;
    if (!world.device().is_cpu())
        throw UsageError(
            "parallel.balance: auto measures ranks on CPUs; these compute on devices, whose waits for each "
            "other the host does not see. Set off.");
    const auto num_ranks = mesh_shape(config, world.size())[1], num_parts = config.data.num_parts;
    if (num_parts > 0 && num_parts < fewest_parts * num_ranks)
        throw UsageError("parallel.balance: auto moves whole parts of a case from rank to rank, and "
                         "data.parts makes {} for {} ranks. Leave data.parts out, or set it to {} or more.",
                         num_parts, num_ranks, fewest_parts * num_ranks);
}

/// Judges the test cases, and keeps the training cases' features, by the weights with which the run predicts: it loads
/// its best checkpoint. Where not all ranks see one, the weights are those of the last.
void judge_best(Run& run)
{
    if (run.data.stored().test.size() == 0 && !has_case_features(run)) return;
    const auto folder = run.config.run_dir() / "checkpoints";
    auto path = folder / "best.safetensors";
    auto num_steps = run.progress.num_steps;
    if (run.ranks.all().all_agree(std::filesystem::exists(path))) {
        const Checkpoint checkpoint(path);
        run.model.load(checkpoint, /*to_train=*/false);
        num_steps = checkpoint.description().progress.num_steps;
    } else {
        path = folder / "last.safetensors";
    }
    judge_test_cases(run, path.stem().string(), run.epoch_of(num_steps));
    keep_case_features(run, path, num_steps);
}

}  // namespace

bool train(const TrainingRunConfig& config, const CaseLists& cases, const TrainingStart& start, World& world,
           const volatile std::sig_atomic_t& stop_requested)
{
    require_balance(config, world);
    const ExactMode exact(config.training.exact);
    std::optional<OwnStream> stream;
    if (config.training.graph_capture && can_record(world.device().type())) stream.emplace(world.device());
    auto used = config;
    if (start.resume) used.training.init.clear();  // the checkpoint's weights count; that file may be gone
    if (used.data.is_grid) used.domain = domain_of_grids(used, cases.train.front(), mesh_shape(used, world.size())[1]);
    Run run(used, cases, start, world, stop_requested);
    if (start.resume && !start.is_trial()) resume(run, start.accepts_data);
    say_start(run);
    if (start.print_plan) print_plan(run);
    if (start.is_trial()) return true;
    if (start.before_first_step) start.before_first_step();
    TrainingSteps steps(run);
    const auto end = steps.train(stop_requested, start.profile_steps);
    if (end != LoopEnd::Done) return end == LoopEnd::OutOfTime;
    record_memory(run);
    judge_best(run);
    if (start.after_last_step) start.after_last_step();
    say_end(run, steps.first_step());
    return true;
}

}  // namespace meshard
