// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/training.h"

#include "apps/devices/device_load.h"
#include "apps/devices/rank_device.h"
#include "apps/learning/cases/case_body.h"
#include "apps/learning/cases/field_scaling.h"
#include "apps/learning/cases/input_ranges.h"
#include "apps/learning/checkpoints/kept_checkpoints.h"
#include "apps/learning/checkpoints/run_checkpoint.h"
#include "apps/learning/evaluation/data_check.h"
#include "apps/learning/grids/grid_cases.h"
#include "apps/learning/settings/grid_settings.h"
#include "apps/learning/settings/training_log.h"
#include "apps/learning/steps/augmentation.h"
#include "apps/learning/steps/run_cases.h"
#include "apps/learning/steps/step_order.h"
#include "apps/learning/training/coefficient_targets.h"
#include "apps/learning/training/schedule.h"
#include "apps/learning/training/step_graphs.h"
#include "apps/learning/training/step_news.h"
#include "apps/learning/training/step_profile.h"
#include "apps/learning/training/training_plan.h"
#include "apps/learning/training/validation.h"
#include "apps/learning/training/weight_update.h"
#include "io/bytes/atomic_file.h"
#include "io/shards/manifest.h"
#include "models/layers/field_loss.h"
#include "models/layers/metrics.h"
#include "models/layers/normalizer.h"
#include "models/layers/random_draws.h"
#include "models/registry/coefficient_head.h"
#include "models/registry/encoded_model.h"
#include "models/registry/grid_forward.h"
#include "partition/error.h"
#include "sharding/memory/device_graph.h"
#include "sharding/memory/saved_tensors.h"
#include "sharding/parameters/fully_shard.h"
#include "sharding/parameters/move_module.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/exact_mode.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/record_function.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <iostream>
#include <map>
#include <set>
#include <utility>

namespace meshard {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

// Seeds of neighbouring steps and data groups must not be neighbours.
constexpr std::uint64_t kStepStride = 0xD1B54A32D192ED03, kGroupStride = 0x8CB92BA72F3D8DD7;

constexpr double kRoundingInGraphs = 1e-4,
                 kNarrowRoundingInGraphs = 2e-2;  // relative, where a GPU's libraries choose other products in a graph
constexpr double kMuchWaiting = 0.05;             // share of the steps' time
constexpr double kMuchWider = 3;                  // deviation of a field in one data set over that in another

// In checkpoints: what is drawn in a step is a function of the seed, the step and the data group, so that there is no
// state to keep.
constexpr const char* kDrawsOfSteps = "of each step";

double seconds_since(Clock::time_point start)
{
    return std::chrono::duration<double>(Clock::now() - start).count();
}

template <class... Values>
std::string formatted(const char* format, Values... values)
{
    char text[256];
    std::snprintf(text, sizeof text, format, values...);
    return text;
}

/// Of each channel, unbiased.
std::vector<double> deviations_of(const ChannelStatistics& statistics)
{
    auto deviations = statistics.squared_differences();
    for (auto& value : deviations)
        value = std::sqrt(value / static_cast<double>(std::max<std::int64_t>(1, statistics.num_rows() - 1)));
    return deviations;
}

/// Exact mode, where it is asked for, as long as this lives. In one thread: where threads share out an operator,
/// LibTorch's vector code ends and its scalar code, which rounds differently, begins.
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

/// Turns of the first case alone.
std::function<std::optional<CaseTurn>()> first_turn()
{
    return [is_taken = false]() mutable {
        return std::exchange(is_taken, true) ? std::nullopt : std::optional(CaseTurn{0, 1});
    };
}

/// Errors of the fields over a list of cases: the mean over cases of each case's relative error.
struct FieldErrors {
    std::vector<double> relative_l2;
    double loss = 0;
    std::vector<Evaluation> judged;  // all metrics of all cases, one a part

    double mean() const
    {
        double sum = 0;
        for (const auto error : relative_l2) sum += error;
        return sum / static_cast<double>(relative_l2.size());
    }
};

enum class LoopEnd : std::uint8_t { Done, OutOfTime, Interrupted };

struct PendingStep {
    std::int64_t number = 0;       // from 1
    std::int64_t index = 0;        // of its first case, among those that train
    std::int64_t num_counted = 0;  // cases that the data groups took together
    double rate = 0;
    Clock::time_point start;
    std::shared_ptr<const c10::Event> start_on_device;
    StepSummary news;
    bool is_taken = true;                   // the weights were changed
    double seconds_waited = 0;              // for cases that were not read yet
    std::optional<double> next_loss_scale;  // in float16
};

/// One part of the cases, surface or volume, or the only one that they have.
struct CasePart {
    DataConfig data;
    CaseLists cases;
    std::optional<RunCases> stored;
    std::optional<CaseSequence> fed;                   // the training cases, in the order of the steps
    std::map<std::string, FieldScaling> scalings;      // by case id
    Normalizer normalizer;                             // of the fields without their units
    at::Tensor training_mean;                          // of these: the normaliser's, but where vectors keep their mean
    std::map<std::string, ChannelStatistics> of_sets;  // of each of several data sets, to be told only: models know one
    InputRanges ranges;
    FieldLoss loss;
    std::optional<Validation> validation;
};

/// Of a case, one a part.
using Example = std::vector<CaseTensors>;

struct CasePrediction {
    std::vector<at::Tensor> fields;  // of each part
    at::Tensor coefficients;         // of the head, (1, coefficients); undefined where the model has none
};

/// One run of `train`: what stays the same from step to step.
class Run {
public:
    Run(const TrainingRunConfig& config, const CaseLists& cases, bool is_recorded, World& world);

    void prepare(const TrainingStart& start, const volatile std::sig_atomic_t& stop_requested);
    void resume();
    void require_same_run(const nlohmann::json& description) const;
    LoopEnd loop(const volatile std::sig_atomic_t& stop_requested, std::int64_t profile_steps);
    void record_memory();
    void test();
    void describe();
    void print_plan();
    void say_scales_of_sets(const CasePart& part);
    void finish();

private:
    void check_measures(std::size_t part) const;
    void check_data(const TrainingStart& start, std::size_t part);
    void judge_by_shape(std::span<const CaseFigures> figures, const JudgedFields& layout);
    void prepare_part(std::size_t part, const TrainingStart& start, const volatile std::sig_atomic_t& stop_requested);
    void make_model();
    void check_augmentation() const;
    Example next_example(std::vector<CaseSequence*> sequences);
    CasePrediction predict(const Example& example);
    CasePrediction predict_for_backward(const Example& example);
    at::Tensor loss_of(const CasePrediction& prediction, const Example& example) const;
    at::Tensor loss_of_part(std::size_t part, const at::Tensor& prediction, const CaseTensors& example) const;
    std::vector<FieldConfig> fields() const;
    template <class NumbersOf>
    at::Tensor of_all_parts(const NumbersOf& numbers_of) const;
    Normalizer normalizer_of_all() const;
    void set_normalizers(const Normalizer& all, const at::Tensor& training_mean);
    bool is_kept() const;
    double seconds_waited() const;
    void check_grids();
    void make_loss();
    std::string why_no_graphs() const;
    StepInputs inputs_of_step(const Example& example, double weight) const;
    static Example with_tensors(Example example, const std::vector<at::Tensor>& tensors);
    at::Tensor loss_with_gradients(const Example& example, double weight);
    at::Tensor computed(const Example& example, double weight);
    void step(const std::vector<StepCase>& cases, PendingStep& under_way, double stop);
    at::Tensor local_summary(const std::vector<StepCase>& cases, const std::vector<at::Tensor>& losses, double stop,
                             const at::Tensor& gradient_norm) const;
    LoopEnd finish_steps(std::size_t num_left);
    CaseTensors augmented(const CaseTensors& example, std::int64_t time) const;
    std::int64_t points_in_step(std::int64_t index) const;
    DeviceLoad load_of(const std::string& what, const CaseSet& cases, std::int64_t index, bool trains) const;
    void finish_step(const PendingStep& step);
    void leave_out(const PendingStep& step, double loss);
    std::string names_of_cases(std::int64_t step) const;
    FieldErrors errors(CaseSet RunCases::* cases, const std::string& split);
    Json metrics(const FieldErrors& errors) const;
    void record_errors(const FieldErrors& errors, const std::string& split, std::int64_t epoch);
    void save(const char* name, const Json& metrics) const;
    void check_error(double error);
    double share_waited() const;
    void end_epoch(std::int64_t epoch, Clock::time_point epoch_start);
    nlohmann::json train_ids() const;
    nlohmann::json shares_of_sets() const;
    at::Device device() const { return world_.device(); }
    /// Of the first part; the others have as many cases, in the same order.
    const RunCases& stored() const { return *parts_.front().stored; }
    const CaseSet& training_cases() const { return stored().train; }
    std::int64_t num_steps_total() const { return config_.training.num_epochs * steps_per_epoch_; }
    std::int64_t num_steps_limit() const
    {
        return config_.training.max_steps > 0 ? std::min(num_steps_total(), config_.training.max_steps)
                                              : num_steps_total();
    }

    TrainingRunConfig config_;
    CaseLists cases_;
    World& world_;
    std::shared_ptr<const DeviceMesh> device_mesh_;
    std::shared_ptr<const DeviceMesh> domain_;
    std::int64_t num_groups_ = 1;
    std::int64_t group_ = 0;
    bool is_first_ = true;
    TrainingLog log_;
    std::optional<StepOrder> order_;
    std::int64_t num_cases_ = 1;  // that train
    std::int64_t steps_per_epoch_ = 1;

    std::deque<CasePart> parts_;          // which are not moved
    std::vector<DataFindings> findings_;  // one a part
    CaseBodies bodies_;
    Model model_;
    std::optional<ReplicatedModule> replicated_;
    std::optional<FullyShardedModule> sharded_;  // in its place
    std::optional<CoefficientTargets> coefficient_targets_;
    std::optional<ShapeCoefficients> shape_coefficients_;                         // of the first part's training cases
    std::function<FieldsAndCoefficients(const PointInputs&)> forward_with_head_;  // where there are targets
    std::optional<WeightUpdate> update_;
    std::optional<StepGraphs> graphs_;  // where steps are recorded

    std::int64_t steps_done_ = 0;
    std::deque<PendingStep> under_way_;
    std::int64_t first_step_ = 0;   // of this process
    Clock::time_point loop_start_;  // when that began
    Clock::time_point last_news_;   // when a step's loss was known last
    std::int64_t points_done_ = 0;
    double seconds_in_steps_ = 0;  // of the current epoch
    double seconds_in_all_steps_ = 0;
    double seconds_waited_ = 0;  // in these, for cases that were not read yet
    double epoch_loss_sum_ = 0;  // of the steps of the current epoch, each times its cases over the data groups
    std::int64_t epoch_cases_left_out_ = 0;
    std::int64_t skipped_in_a_row_ = 0;  // steps up to now
    double best_error_ = std::numeric_limits<double>::infinity();
    Plateau plateau_;
    EarlyStop early_stop_;
    double seconds_in_preparation_ = 0;
    Clock::time_point start_ = Clock::now();
};

Run::Run(const TrainingRunConfig& config, const CaseLists& cases, bool is_recorded, World& world)
    : config_(config), cases_(cases), world_(world), is_first_(world.rank() == 0),
      log_(is_recorded ? config.run_dir() / "metrics.jsonl" : std::filesystem::path(), is_first_)
{
    const auto shape = mesh_shape(config, world.size());
    if (is_recorded && config.writes_events) log_.write_events(config.run_dir() / "tensorboard");
    device_mesh_ = DeviceMesh::create(world, {shape[0], shape[1]}, {"data", "domain"});
    domain_ = device_mesh_->sub_mesh("domain");
    num_groups_ = shape[0];
    group_ = device_mesh_->coordinate(device_mesh_->axis("data"));
    num_cases_ = static_cast<std::int64_t>(cases.train.size());
    order_.emplace(CaseOrder(config.training, config.seed, cases.train, config.data.sets), num_cases_, num_groups_,
                   group_, config.training.accumulate);
    steps_per_epoch_ = order_->steps_per_epoch();
}

void Run::prepare(const TrainingStart& start, const volatile std::sig_atomic_t& stop_requested)
{
    if (start.is_trial()) {
        cases_.train.resize(1);
        cases_.val.clear();
        cases_.test.clear();
    }
    const auto preparing = Clock::now();
    if (!start.is_trial() && cases_.val.empty() &&
        (config_.training.stop_patience > 0 || config_.training.scheduler == "plateau")) {
        throw InvalidInput("training.early_stop and the scheduler plateau go by the error of validation cases, and "
                           "there are none. Give data.split some, e.g. "
                           "val: 0.1.");
    }
    for (std::size_t part = 0; part < config_.num_parts(); ++part) {
        parts_.emplace_back();
        prepare_part(part, start, stop_requested);
    }
    check_augmentation();
    make_model();
    if (config_.data.is_grid) check_grids();
    for (auto& part : parts_) {
        if (!part.data.is_grid) keep_cases(*part.stored, part.data, device(), device_mesh_->all(), log_);
        if (device().is_cpu()) continue;
        part.normalizer = part.normalizer.on(device());
        part.training_mean = part.training_mean.to(device());
        for (auto& [id, scaling] : part.scalings) scaling = scaling.on(device());
    }
    make_loss();
    if (config_.training.graph_capture && why_no_graphs().empty()) {
        const double rounding =
            config_.training.precision == Precision::Float32 ? kRoundingInGraphs : kNarrowRoundingInGraphs;
        graphs_.emplace(model_.module->parameters(), model_.module->buffers(), device().type(), device_mesh_->all(),
                        device().is_cuda() ? rounding : 0);
    }
    seconds_in_preparation_ = seconds_since(preparing);
}

void Run::prepare_part(std::size_t index, const TrainingStart& start, const volatile std::sig_atomic_t& stop_requested)
{
    auto& part = parts_[index];
    const auto config = config_.of_part(index);
    part.data = config.data;
    part.cases = cases_.of_part(index);
    part.stored.emplace(config.data.is_grid
                            ? prepare_grids(config, part.cases, device_mesh_, device())
                            : prepare_cases(config, part.cases, {.verify_sources = start.verify_sources}, device_mesh_,
                                            device(), log_, stop_requested));
    const auto& channels = part.stored->train.channels();
    part.validation.emplace(part.data, channels, config_.forces, part.cases,
                            names_of_coefficients(config_.training.coefficient_weights));
    if (!part.data.is_grid) check_measures(index);
    if (!part.data.is_grid) check_data(start, index);
    for (const auto& source : part.cases.all()) part.scalings[source.id] = field_scaling(part.data, channels, source);
    const auto statistics = target_statistics(part.stored->train, config_.training.exact, part.scalings);
    part.normalizer = statistics.normalizer(shared_vectors(part.data, channels));
    part.training_mean = statistics.normalizer().mean;
    part.of_sets = statistics_of_sets(part.stored->train, part.scalings);
    for (std::int64_t i = 0; i < part.stored->train.size(); ++i) {
        PointInputs bounds{
            .embedding = part.stored->train.input_bounds(i), .positions = {}, .constants = {}, .time = {}};
        add_case_constants(bounds, part.data, part.stored->train.sources()[i]);
        part.ranges.add(bounds);
    }
}

/// Before the first step: the cases have the areas or volumes by which their points are to be drawn or to count.
void Run::check_measures(std::size_t index) const
{
    const auto& stored = *parts_[index].stored;
    const auto& data = parts_[index].data;
    const auto& training = config_.training;
    const auto require = [](const CaseSet& cases, const char* key, bool takes_areas, bool takes_volumes) {
        for (std::int64_t i = 0; i < cases.size(); ++i) {
            const auto& measures = cases.measures(i);
            const bool is_of_kind = (takes_areas && measures.kind == MeasureKind::Areas) ||
                                    (takes_volumes && measures.kind == MeasureKind::Volumes);
            if (is_of_kind && !measures.blocks.empty()) continue;
            const std::string wanted = takes_areas && takes_volumes ? "areas or volumes"
                                       : takes_volumes              ? "volumes"
                                                                    : "areas";
            std::string found = "its cells have neither areas nor volumes";
            if (measures.kind != MeasureKind::None) found = std::string("its cells have ") + name_of(measures.kind);
            if (is_of_kind) found = "all its " + wanted + " are 0";
            throw InvalidInput("case " + cases.id(i) + ": " + key + " goes by " + wanted + ", and " + found +
                               ". Set another, or leave the case out.");
        }
    };
    if (config_.weighs_points(index)) {
        const bool takes_areas = training.weighs("areas") && index == 0,
                   takes_volumes = training.weighs("volumes") && (index == 1 || !config_.volume);
        for (const auto* cases : {&stored.train, &stored.val, &stored.test})
            require(*cases, "training.point_weights", takes_areas, takes_volumes);
    }
    if (data.num_sampled > 0 && data.sampling == SamplingKind::Areas)
        require(stored.train, "data.sampling", true, false);
}

/// What the cases say of themselves before anything is learnt from them. A run that goes on has been let pass when it
/// began.
void Run::check_data(const TrainingStart& start, std::size_t index)
{
    const auto& part = parts_[index];
    findings_.emplace_back();
    if (start.resume && index > 0) return;
    const JudgedFields layout(part.data.fields, part.stored->train.channels());
    const auto figures = part.stored->figures(part.data, device_mesh_->all());
    if (!start.resume) {
        findings_.back() = judge_data(part.cases, figures, part.data, config_.forces, layout);
        if (!findings_.back().contradictions.empty() && !start.accepts_data) {
            std::string text = "the data contradict themselves.";
            for (const auto& contradiction : findings_.back().contradictions) text += " " + contradiction;
            throw InvalidInput(text + " To train on them as they are: --accept-data.");
        }
    }
    if (index == 0) judge_by_shape(figures, layout);
    if (index == 0 && config_.training.has_coefficients()) {
        coefficient_targets_.emplace(config_.training.coefficient_weights, layout, config_.forces, part.cases.train,
                                     std::span(figures).first(part.cases.train.size()), device());
    }
}

/// Drag and lift of the cases that are not learnt from, by their shape alone: beside them those of the fields are
/// judged.
void Run::judge_by_shape(std::span<const CaseFigures> figures, const JudgedFields& layout)
{
    auto& part = parts_.front();
    const auto& cases = part.cases;
    shape_coefficients_ =
        ShapeCoefficients::of_cases(cases.train, figures.first(cases.train.size()), part.data, config_.forces, layout);
    if (!shape_coefficients_) return;
    std::map<std::string, ShapeCoefficients::Values> by_shape;
    const auto all = cases.all();
    for (std::size_t i = 0; i < all.size(); ++i) {
        std::string why;
        const auto flow = flow_reference(config_.forces, all[i], layout.pressure_kind, why);
        if (!flow) continue;
        const auto found = shape_coefficients_->of(figures[i].shape, figures[i].forces, figures[i].bounds, *flow,
                                                   constants_of_case(part.data, all[i]));
        if (found) by_shape[all[i].id] = *found;
    }
    part.validation->compare_with(std::move(by_shape));
}

void Run::make_model()
{
    std::vector<std::int64_t> num_channels(2, 0);
    for (std::size_t part = 0; part < parts_.size(); ++part) {
        for (const auto count : parts_[part].stored->train.channels()) num_channels[part] += count;
    }
    torch::manual_seed(config_.seed);
    if (config_.data.is_grid) {
        model_ = meshard::make_model(
            config_.model.name,
            grid_model_arguments(config_.model,
                                 grid_widths(CaseSequence(training_cases(), first_turn()).next(), config_.data)));
        take_rows_of_grids(model_, *stored().of_inputs);
    } else {
        const auto num_features = coefficient_targets_ ? config_.training.coefficient_features : 0;
        model_ =
            meshard::make_model(config_.model.name, model_arguments(config_.model, config_.data,
                                                                    num_channels[0] + num_features, num_channels[1]));
        encode_coordinates(model_, config_.data.encoding, static_cast<std::uint64_t>(config_.seed));
        if (coefficient_targets_)
            forward_with_head_ = add_coefficient_head(model_, num_features,
                                                      static_cast<std::int64_t>(coefficient_targets_->means().size()));
    }
    set_memory(*model_.module, config_.training.memory);
    if (!config_.training.init.empty()) {
        for (const auto& note : load_weights(config_.training.init, *model_.module, model_.class_name))
            log_.say(config_.training.init.string() + ": " + note);
    }
    move_module(*model_.module, device());
    if (config_.shard_parameters) {
        // Parts that are used as they lie belong to one domain: where there are several, all parameters are gathered.
        auto kept_parts =
            num_groups_ == 1 ? share_parameters(model_, domain_->num_ranks()) : std::map<std::string, AxisLayout>();
        sharded_.emplace(fully_shard(*model_.module, device_mesh_,
                                     {.is_unit = {}, .over_all_axes = true, .kept_parts = std::move(kept_parts)}));
    } else {
        replicated_.emplace(replicate(*model_.module, device_mesh_));
    }
    allow_tf32(config_.training.precision == Precision::TF32);
    update_.emplace(config_.training, *model_.module, sharded_ ? &*sharded_ : nullptr, device_mesh_->all());
}

void Run::make_loss()
{
    for (auto& part : parts_) {
        auto options = config_.training.loss;
        if (!config_.training.field_weights.empty()) {
            for (const auto& field : part.data.fields) {
                const auto found = config_.training.field_weights.find(field.name);
                options.field_weights.push_back(found == config_.training.field_weights.end() ? std::vector<double>{1.0}
                                                                                              : found->second);
            }
        }
        part.loss = FieldLoss(options, part.stored->train.channels(), part.normalizer);
    }
}

at::Tensor Run::loss_of(const CasePrediction& prediction, const Example& example) const
{
    if (parts_.size() == 1) {
        const auto loss = loss_of_part(0, prediction.fields[0], example[0]);
        if (!coefficient_targets_ || !model_.module->is_training()) return loss;
        return loss + coefficient_targets_->loss(prediction.coefficients, example[0].id);
    }
    at::Tensor sum;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
        const auto weighted =
            loss_of_part(part, prediction.fields[part], example[part]) * config_.training.part_weights[part];
        sum = sum.defined() ? sum + weighted : weighted;
    }
    return sum;
}

at::Tensor Run::loss_of_part(std::size_t index, const at::Tensor& prediction, const CaseTensors& example) const
{
    const auto& part = parts_[index];
    const auto& scaling = part.scalings.at(example.id);
    const auto target = part.normalizer.normalize(scaling.without_unit(example.target));
    return part.loss(prediction, target, config_.weighs_points(index) ? example.measures : at::Tensor());
}

/// Of all parts, in their order.
std::vector<FieldConfig> Run::fields() const
{
    std::vector<FieldConfig> all;
    for (const auto& part : parts_) all.insert(all.end(), part.data.fields.begin(), part.data.fields.end());
    return all;
}

/// A number a channel, of the parts one after the other.
template <class NumbersOf>
at::Tensor Run::of_all_parts(const NumbersOf& numbers_of) const
{
    if (parts_.size() == 1) return numbers_of(parts_.front());
    std::vector<at::Tensor> all;
    for (const auto& part : parts_) all.push_back(numbers_of(part));
    return torch::cat(all);
}

Normalizer Run::normalizer_of_all() const
{
    return {of_all_parts([](const CasePart& part) { return part.normalizer.mean; }),
            of_all_parts([](const CasePart& part) { return part.normalizer.std; })};
}

void Run::set_normalizers(const Normalizer& all, const at::Tensor& training_mean)
{
    std::int64_t first = 0;
    for (auto& part : parts_) {
        const auto count = part.normalizer.mean.size(0);
        part.normalizer = {all.mean.narrow(0, first, count), all.std.narrow(0, first, count)};
        part.training_mean = training_mean.narrow(0, first, count);
        first += count;
    }
}

/// Whether all cases stay in memory.
bool Run::is_kept() const
{
    return std::ranges::all_of(parts_, [](const auto& part) { return part.stored->train.is_kept(); });
}

double Run::seconds_waited() const
{
    double seconds = 0;
    for (const auto& part : parts_) seconds += part.fed->seconds_waited();
    return seconds;
}

void Run::describe()
{
    Json line{{"phase", "dataset"}};
    line["cases"] = {{"train", stored().train.size()}, {"val", stored().val.size()}, {"test", stored().test.size()}};
    const char* const names[] = {"points", "volume_points"};
    for (std::size_t part = 0; part < parts_.size(); ++part) {
        const auto& cases = *parts_[part].stored;
        line[names[part]] = {
            {"train", cases.train.num_points()}, {"val", cases.val.num_points()}, {"test", cases.test.num_points()}};
    }
    const auto normalizer = normalizer_of_all();
    for (std::int64_t c = 0; c < normalizer.mean.size(0); ++c) {
        line["mean"].push_back(normalizer.mean[c].item<double>());
        line["std"].push_back(normalizer.std[c].item<double>());
    }
    for (const auto& part : parts_) {
        for (const auto& [set, of_set] : part.of_sets) {
            const Json mean = of_set.mean(), deviations = deviations_of(of_set);
            for (std::size_t c = 0; c < mean.size(); ++c) {
                line["sets"][set]["mean"].push_back(mean[c]);
                line["sets"][set]["std"].push_back(deviations[c]);
            }
        }
    }
    line["shards_per_case"] = stored().num_parts;
    line["seconds"] = seconds_in_preparation_;
    log_.record(line);
    log_.say(formatted("%lld training, %lld validation, %lld test cases, %lld points in training; prepared in %.1f s",
                       static_cast<long long>(stored().train.size()), static_cast<long long>(stored().val.size()),
                       static_cast<long long>(stored().test.size()),
                       static_cast<long long>(training_cases().num_points()), seconds_in_preparation_));
    if (parts_.size() > 1) {
        log_.say(formatted(
            "of surfaces, and %lld points of volumes; %lld case(s) with only one of the two are left out",
            static_cast<long long>(parts_[1].stored->train.num_points()), static_cast<long long>(cases_.num_left_out)));
    }

    if (const auto& missing = cases_.without_file; !missing.empty()) {
        log_.say("look at this: " + std::to_string(missing.size()) +
                 " case(s) of the table have a split and no file, and are left out: " + missing[0] +
                 (missing.size() > 1 ? ", " + missing[1] : "") + (missing.size() > 2 ? ", ..." : ""));
    }
    const auto of_sets = order_->order().cases_of_sets();
    for (std::size_t s = 0; s < of_sets.size(); ++s) {
        const auto& name = config_.data.sets[s].name;
        const auto count = std::ranges::count(cases_.train, name, &CaseSource::set);
        log_.say(formatted("%lld of the %lld cases of an epoch are of %s, which has %lld",
                           static_cast<long long>(of_sets[s]), static_cast<long long>(num_cases_), name.c_str(),
                           static_cast<long long>(count)));
    }

    for (const auto& part : parts_) say_scales_of_sets(part);
    for (std::size_t part = 0; part < findings_.size(); ++part) {
        const auto& findings = findings_[part];
        if (!findings.numbers.empty()) {
            Json found{{"phase", "data"}};
            if (part > 0) found["part"] = "volume";
            found.update(findings.numbers);
            log_.record(found);
        }
        const std::string who = part > 0 ? "data, volume: " : "data: ";
        for (const auto& sentence : findings.found) log_.say(who + sentence);
        for (const auto& warning : findings.warnings) log_.say(who + "look at this: " + warning);
        for (const auto& contradiction : findings.contradictions) log_.say(who + "accepted, though: " + contradiction);
    }

    std::int64_t num_parameters = 0;
    for (const auto& parameter : model_.module->parameters())
        num_parameters += sharded_ ? c10::multiply_integers(sharded_->whole_shape(parameter)) : parameter.numel();
    const auto where = device_text(world_, device_mesh_->all());
    log_.say(formatted("%s with %lld parameters%s on %lld rank(s): %lld data x %lld domain, ",
                       config_.model.name.c_str(), static_cast<long long>(num_parameters),
                       sharded_ ? ", cut among all ranks," : "", static_cast<long long>(device_mesh_->num_ranks()),
                       static_cast<long long>(num_groups_), static_cast<long long>(domain_->num_ranks())) +
             where);
    if (config_.training.precision == Precision::TF32 && model_.module->parameters().front().is_cpu())
        log_.say("training.precision tf32: products are rounded on GPUs only; on CPUs it is float32");
    if (config_.training.offload && device().is_cpu())
        log_.say("training.offload: ranks compute on CPUs, where nothing is moved");
    if (config_.training.graph_capture && !graphs_)
        log_.say("training.graph_capture: steps run as they are: " + why_no_graphs());
    const auto num_last = order_->cases_in_step(steps_per_epoch_ - 1);
    if (num_last < order_->cases_per_step() && config_.training.accumulate > 1) {
        log_.say(formatted(
            "%lld training case(s), %lld a step: the last step of an epoch has %lld, so that each case counts once",
            static_cast<long long>(num_cases_), static_cast<long long>(order_->cases_per_step()),
            static_cast<long long>(num_last)));
    } else if (num_last < num_groups_) {
        log_.say(formatted("%lld training case(s) on %lld data groups: the last step of an epoch has %lld, so that "
                           "each case counts once; the other groups then add nothing",
                           static_cast<long long>(num_cases_), static_cast<long long>(num_groups_),
                           static_cast<long long>(num_last)));
    }
    if (steps_done_ == 0) return;
    log_.say("resumed after step " + std::to_string(steps_done_));
    if (steps_done_ >= num_steps_limit()) {
        log_.say(formatted(
            "all %lld steps are done; training.num_epochs or training.max_steps (0: no limit) can be set to more",
            static_cast<long long>(num_steps_limit())));
    }
}

/// Where all sets are scaled by one deviation that fits some of them badly.
void Run::say_scales_of_sets(const CasePart& part)
{
    std::size_t first = 0;
    for (std::size_t f = 0; f < part.data.fields.size(); ++f) {
        const auto count = static_cast<std::size_t>(part.stored->train.channels()[f]);
        std::pair<double, std::string> least{std::numeric_limits<double>::infinity(), ""}, most{0, ""};
        for (const auto& [set, of_set] : part.of_sets) {
            const auto deviations = deviations_of(of_set);
            const auto size = *std::max_element(deviations.begin() + static_cast<std::ptrdiff_t>(first),
                                                deviations.begin() + static_cast<std::ptrdiff_t>(first + count));
            least = std::min(least, {size, set});
            most = std::max(most, {size, set});
        }
        first += count;
        if (part.of_sets.size() < 2 || most.first < kMuchWider * least.first) continue;
        log_.say(part.data.fields[f].name + " deviates by " + formatted("%.3g", most.first) + " in " + most.second +
                 " and by " + formatted("%.3g", least.first) + " in " + least.second +
                 "; one scale serves all sets, and errors of the former count more. Without units (data.targets: "
                 "nondimensional) they may be alike");
    }
}

void Run::print_plan()
{
    std::deque<CaseSequence> first_cases;
    std::vector<CaseSequence*> sequences;
    for (const auto& part : parts_) sequences.push_back(&first_cases.emplace_back(part.stored->train, first_turn()));
    const auto example = next_example(sequences);
    const auto plan = training_plan(model_, config_, example, *device_mesh_, world_, [&] { predict(example); });
    if (is_first_) std::cout << plan << std::flush;
}

void Run::require_same_run(const nlohmann::json& description) const
{
    const auto refuse = [](const std::string& what) { throw InvalidInput("resume: " + what); };
    if (description.contains("seed") && description["seed"] != config_.seed) {
        refuse("the run was made with seed " + description["seed"].dump() +
               ", which orders its cases and its draws, and seed is " + std::to_string(config_.seed) +
               " now. Leave it out.");
    }
    if (const auto optimizer = description.value("optimizer", "adamw"); optimizer != config_.training.optimizer) {
        refuse("the run's optimiser was " + optimizer + ", and training.optimizer.name is " +
               config_.training.optimizer + " now. Leave it as it was, or start a new run with training.init.");
    }
    const auto require_same = [&](const nlohmann::json& before, const nlohmann::json& now, const std::string& place) {
        for (const auto& [key, value] : now.items()) {
            if (before.at(key) != value)
                refuse(place + key + " was " + before.at(key).dump() + " when the run began, and is " + value.dump() +
                       " now. Leave it as it was, or start a new run.");
        }
    };
    if (description.contains("volume") != config_.volume.has_value())
        refuse(std::string("data.volume.files ") + (config_.volume ? "is set now, and was not" : "was set") +
               " when the run began. Leave it as it was, or start a new run.");
    require_same(to_json(data_config(description.at("data"))), to_json(config_.data), "data.");
    if (config_.volume)
        require_same(to_json(data_config(description.at("volume"))), to_json(*config_.volume), "data.volume.");
    if (description.value("shares_of_sets", nlohmann::json::array()) != shares_of_sets()) {
        refuse("the shares of data.sets were " + description.value("shares_of_sets", nlohmann::json::array()).dump() +
               " when the run began, and are " + shares_of_sets().dump() +
               " now. Leave them as they were, or start a new run.");
    }
    const nlohmann::json head_before =
        description.contains("coefficients") ? description["coefficients"].at("names") : nlohmann::json::array();
    if (const nlohmann::json head = names_of_coefficients(config_.training.coefficient_weights); head != head_before) {
        refuse("training.coefficient_weights gave the model a head for " + head_before.dump() +
               " when the run began, and would give it one for " + head.dump() +
               " now. Leave it as it was, or start a new run.");
    }
    if (description.contains("train_cases") && description["train_cases"] != train_ids()) {
        refuse("the run trained on " + std::to_string(description["train_cases"].size()) + " cases, and data gives " +
               std::to_string(cases_.train.size()) +
               " or others now. Use the same cases (data.root, data.split), or start a new run.");
    }
    if (description.value("steps_per_epoch", steps_per_epoch_) != steps_per_epoch_) {
        refuse("the run had " + description["steps_per_epoch"].dump() + " steps an epoch, and has " +
               std::to_string(steps_per_epoch_) + " now. Use the same cases and as many data groups.");
    }
}

void Run::resume()
{
    const Checkpoint checkpoint(config_.run_dir() / "checkpoints" / "last.safetensors");
    const auto& description = checkpoint.description();
    require_same_run(description);
    if (sharded_) {
        checkpoint.load_weights(*model_.module, *sharded_);
        checkpoint.load_optimizer(*sharded_, update_->optimizers());
    } else {
        checkpoint.load_weights(*model_.module);
        checkpoint.load_optimizer(*model_.module, update_->optimizers());
    }
    if (update_->average()) update_->average()->restart();
    if (sharded_)
        checkpoint.load_raw_weights(*model_.module, *sharded_);
    else
        checkpoint.load_raw_weights(*model_.module);
    set_normalizers(checkpoint.normalizer().on(device()), checkpoint.training_mean().to(device()));
    if (config_.data.is_grid) {
        parts_.front().stored->of_inputs = checkpoint.input_normalizer();
        take_rows_of_grids(model_, *stored().of_inputs);
    }
    make_loss();
    steps_done_ = description.at("step").get<std::int64_t>();
    epoch_loss_sum_ = description.value("epoch_loss_sum", 0.0);
    if (description.contains("best_error") && description["best_error"].is_number())
        best_error_ = description["best_error"].get<double>();
    epoch_cases_left_out_ = description.value("epoch_cases_left_out", std::int64_t{0});
    skipped_in_a_row_ = description.value("skipped_in_a_row", std::int64_t{0});
    update_->resume(description);
    if (description.contains("plateau")) {
        const auto& state = description["plateau"];
        plateau_ = {state.at("factor"), state.at("best").is_number() ? state["best"].get<double>() : plateau_.best,
                    state.at("bad_checks")};
    }
    if (description.contains("early_stop")) {
        const auto& state = description["early_stop"];
        early_stop_ = {state.at("best").is_number() ? state["best"].get<double>() : early_stop_.best,
                       state.at("bad_checks")};
    }
    if (const auto before = description.value("num_steps", num_steps_total()); before != num_steps_total()) {
        log_.say(formatted("the learning rate was planned for %lld steps, and goes on as one for %lld does",
                           static_cast<long long>(before), static_cast<long long>(num_steps_total())));
    }
    if (description.value("draws", "") != kDrawsOfSteps) {
        log_.say("meshard train: warning: the checkpoint is of an earlier meshard, whose draws depended on all that "
                 "was drawn before: with dropout, or "
                 "Transolver++'s noise, the run does not go on "
                 "exactly as it would have without the stop");
    }
    log_.go_back_to(steps_done_, steps_per_epoch_, steps_done_ >= num_steps_limit());
}

/// Of data.sets; empty where they have none.
nlohmann::json Run::shares_of_sets() const
{
    auto shares = nlohmann::json::array();
    for (const auto& set : config_.data.sets) {
        if (set.share > 0) shares.push_back(set.share);
    }
    return shares;
}

nlohmann::json Run::train_ids() const
{
    auto ids = nlohmann::json::array();
    for (const auto& source : cases_.train) ids.push_back(source.id);
    return ids;
}

/// The case whose turn it is, all its parts, with the body where the model takes one.
Example Run::next_example(std::vector<CaseSequence*> sequences)
{
    RECORD_USER_SCOPE("data");
    Example example;
    for (auto* sequence : sequences) example.push_back(sequence->next());
    if (!model_.forward_parts) return example;
    const auto& first = parts_.front();
    const auto& id = example.front().id;
    const auto body = bodies_.of(id, [&] {
        const auto all = first.cases.all();
        const auto& source = *std::ranges::find(all, id, &CaseSource::id);
        const auto frame = case_frame(first.data.frame, read_manifest(first.stored->shards.at(id)).bounds, source);
        return case_body(read_wall(source.wall, source.file, first.data.wall_patches, orient_of(first.data)), frame);
    });
    for (auto& part : example) part.inputs.body = body;
    return example;
}

CasePrediction Run::predict(const Example& example)
{
    RECORD_USER_SCOPE("forward");
    const PrecisionGuard precision(config_.training.precision, device().type());
    if (forward_with_head_) {
        const auto predicted = forward_with_head_(example[0].inputs);
        return {{predicted.fields.to(torch::kFloat)}, predicted.coefficients.to(torch::kFloat)};
    }
    if (example.size() == 1) return {{model_.forward(example[0].inputs).to(torch::kFloat)}, {}};
    const auto fields = model_.forward_parts(&example[0].inputs, &example[1].inputs);
    return {{fields.surface.to(torch::kFloat), fields.volume.to(torch::kFloat)}, {}};
}

/// The same for a step's backward, whose tensors wait where the settings say.
CasePrediction Run::predict_for_backward(const Example& example)
{
    std::optional<OffloadSavedTensors> offload;
    if (config_.training.offload && !device().is_cpu()) offload.emplace();
    return predict(example);
}

/// A training case as it is shown this time.
CaseTensors Run::augmented(const CaseTensors& example, std::int64_t time) const
{
    const auto& augmentation = config_.training.augmentation;
    if (!augmentation.is_any()) return example;
    return mapped_case(example, drawn_map(augmentation, config_.data.frame.up, config_.seed, time, example.id),
                       augmentation, config_.data);
}

/// Before the first step: cases and fields that augmentation would falsify are refused.
void Run::check_augmentation() const
{
    const auto& augmentation = config_.training.augmentation;
    if (augmentation.turns()) require_turnable(config_.data, training_cases().channels());
    if (augmentation.mirror_axis < 0 || augmentation.mirrors_half_bodies) return;
    for (const auto& source : cases_.train)
        require_whole_body(source.id, read_manifest(stored().shards.at(source.id)).bounds, augmentation.mirror_axis);
}

/// Before the first step: the model takes the grids of all cases. Of each shape one is tried.
void Run::check_grids()
{
    const torch::NoGradGuard no_grad;
    model_.module->eval();
    std::set<std::vector<std::int64_t>> tried;
    for (const auto* cases : {&stored().train, &stored().val, &stored().test}) {
        CaseSequence all(*cases, [size = cases->size(), i = std::int64_t{0}]() mutable {
            return i < size ? std::optional(CaseTurn{i++, 0}) : std::nullopt;
        });
        for (std::int64_t i = 0; i < cases->size(); ++i) {
            const auto example = all.next();
            if (!tried.insert(example.inputs.grid).second) continue;
            try {
                predict({example});
            } catch (const InvalidInput& wrong) {
                throw InvalidInput("case " + example.id + ", a grid of " + extents_text(example.inputs.grid) + ": " +
                                   wrong.what());
            }
        }
    }
    model_.module->train();
}

std::int64_t Run::points_in_step(std::int64_t index) const
{
    std::int64_t count = 0;
    for (const auto& part : parts_) {
        const auto limit = part.data.num_sampled, all = part.stored->train.num_points(index);
        count += limit == 0 ? all : std::min(limit, all);
    }
    return count;
}

/// Work on a case, for the case that the device's memory ends.
DeviceLoad Run::load_of(const std::string& what, const CaseSet& cases, std::int64_t index, bool trains) const
{
    const auto num_ranks = domain_->num_ranks();
    const auto all = trains ? points_in_step(index) : cases.num_points(index);
    DeviceLoad load{.device = device(),
                    .what = what + " of case " + cases.id(index),
                    .num_points = (all + num_ranks - 1) / num_ranks,
                    .num_ranks = num_ranks,
                    .memory = std::string(name_of(config_.training.memory)),
                    .mode_option = "training.memory=",
                    .rank_option = "--nproc ",
                    .fewer_points = trains && !config_.data.is_grid ? "data.sampling_resolution" : ""};
    for (const auto mode : memory_modes(*model_.module, config_.training.memory))
        load.modes.emplace_back(name_of(mode));
    if (load.modes.size() == 1) load.memory.clear();
    return load;
}

/// Of all data groups, for messages.
std::string Run::names_of_cases(std::int64_t step) const
{
    std::string names;
    for (const auto index : order_->counted_in_step(step - 1))
        names += (names.empty() ? "case " : ", ") + training_cases().id(index);
    return names;
}

/// Why no step of this run can be recorded, as the end of a sentence; empty if one may be.
std::string Run::why_no_graphs() const
{
    if (device().is_cpu()) return "ranks compute on CPUs, where nothing is recorded";
    if (!can_record(device().type())) return "work of this device cannot be recorded";
    if (device_mesh_->num_ranks() > 1 && world_.carrier(device()).is_by_way_of_host)
        return "ranks share a device, and their messages go by way of the host";
    if (config_.training.accumulate > 1) return "a step adds up the gradients of several cases";
    if (config_.training.offload) return "training.offload copies tensors to the host in each step";
    if (config_.shard_parameters) return "parallel.parameters=sharded gathers them in each step";
    for (const auto& part : parts_) {
        if (part.data.needs_all_points && part.data.num_sampled > 0)
            return "the model knows all points of a case, of which others are drawn in each step";
    }
    return {};
}

/// What a step is given. Its case counts where loss or targets know more of that than its tensors.
StepInputs Run::inputs_of_step(const Example& example, double weight) const
{
    StepInputs inputs;
    inputs.key = formatted("%.17g %.17g ", weight, update_->loss_scale().value_or(1));
    inputs.subject = example.front().id;
    bool knows_case = coefficient_targets_.has_value();
    for (std::size_t part = 0; part < example.size(); ++part) {
        const auto& one = example[part];
        knows_case |= parts_[part].scalings.at(one.id).scale.defined();
        inputs.key += extents_text(one.inputs.grid) + " ";
        for (const auto& tensor : {one.inputs.embedding, one.inputs.positions, one.inputs.constants, one.inputs.time,
                                   one.target, one.measures})
            inputs.tensors.push_back(tensor);
        inputs.kept.push_back(one.inputs.body);
        inputs.kept.push_back(one.inputs.drawn_from);
    }
    if (knows_case) inputs.key += inputs.subject;
    return inputs;
}

/// The example with these tensors in place of its own.
Example Run::with_tensors(Example example, const std::vector<at::Tensor>& tensors)
{
    auto next = tensors.begin();
    for (auto& one : example) {
        for (auto* tensor : {&one.inputs.embedding, &one.inputs.positions, &one.inputs.constants, &one.inputs.time,
                             &one.target, &one.measures})
            *tensor = *next++;
    }
    return example;
}

/// The loss of an example, detached, whose gradients it makes.
at::Tensor Run::loss_with_gradients(const Example& example, double weight)
{
    const auto loss = loss_of(predict_for_backward(example), example);
    RECORD_USER_SCOPE("backward");
    update_->scaled(weight == 1 ? loss : loss * weight).backward();
    return loss.detach();
}

/// The same, from a graph where steps are recorded.
at::Tensor Run::computed(const Example& example, double weight)
{
    if (!graphs_ || graphs_->why_not()) return loss_with_gradients(example, weight);
    RECORD_USER_SCOPE("graph");
    const auto loss = graphs_->run(inputs_of_step(example, weight), [&](const std::vector<at::Tensor>& tensors) {
        return loss_with_gradients(with_tensors(example, tensors), weight);
    });
    if (graphs_->why_not()) log_.say("training.graph_capture: steps run as they are: " + *graphs_->why_not());
    return loss;
}

void Run::step(const std::vector<StepCase>& cases, PendingStep& under_way, double stop)
{
    if (config_.training.scheduler == "one_cycle")
        update_->optimizers().set_first_beta(first_beta_in_cycle(steps_done_, num_steps_total()));
    update_->zero_grad();
    std::vector<at::Tensor> losses;
    std::vector<CaseSequence*> fed;
    for (auto& part : parts_) fed.push_back(&*part.fed);
    const auto waited_before = seconds_waited();
    for (const auto& [index, time, slot, weight] : cases) {
        auto example = next_example(fed);
        for (auto& part : example) part = augmented(part, time);
        seed_draws(*model_.module, static_cast<std::uint64_t>(config_.seed) +
                                       kStepStride * static_cast<std::uint64_t>(under_way.number) +
                                       kGroupStride * static_cast<std::uint64_t>(slot));
        if (replicated_)
            replicated_->set_sync(losses.size() + 1 == cases.size());  // gradients are exchanged once a step
        losses.push_back(computed(example, weight));
    }
    under_way.seconds_waited = seconds_waited() - waited_before;
    UpdateOutcome outcome;
    {
        RECORD_USER_SCOPE("optimizer");
        outcome = update_->apply(under_way.rate, losses);
    }
    under_way.is_taken = outcome.is_taken;
    under_way.next_loss_scale = update_->loss_scale();
    under_way.news = {local_summary(cases, losses, stop, outcome.gradient_norm), device_mesh_->all()};
}

/// One message for all that the ranks must know of each other: the loss over all points, averaged over the step's
/// cases, a wish to stop, and the gradients' norm, which one rank tells. A loss that no rank has a share of, but each
/// the whole, counts on one rank of a group.
at::Tensor Run::local_summary(const std::vector<StepCase>& cases, const std::vector<at::Tensor>& losses, double stop,
                              const at::Tensor& gradient_norm) const
{
    const auto options = to_local(losses[0]).options().dtype(torch::kDouble);
    const auto number = [&](double value) { return torch::full({}, value, options); };  // no copy from the host
    at::Tensor sum;
    for (std::size_t i = 0; i < losses.size(); ++i) {
        const bool is_pending = is_sharded(losses[i]) && spec_of(losses[i])->has_partial();
        if (!is_pending && domain_->all().rank() != 0) continue;
        const auto share = to_local(losses[i]).to(torch::kDouble) * cases[i].weight / static_cast<double>(num_groups_);
        sum = sum.defined() ? sum + share : share;
    }
    std::vector<at::Tensor> numbers{sum.defined() ? sum : number(0), number(stop)};
    if (gradient_norm.defined()) numbers.push_back(is_first_ ? gradient_norm : number(0));
    return torch::stack(numbers);
}

LoopEnd Run::loop(const volatile std::sig_atomic_t& stop_requested, std::int64_t profile_steps)
{
    StepProfile profile(profile_steps,
                        config_.run_dir() / "profile" / ("rank_" + std::to_string(world_.rank()) + ".json"), log_);
    const auto num_steps = num_steps_total();
    const auto limit = num_steps_limit();
    first_step_ = steps_done_;
    loop_start_ = Clock::now();
    auto epoch_start = loop_start_;
    model_.module->train();
    for (auto& part : parts_) part.fed.emplace(part.stored->train, order_->turns(steps_done_, limit));

    while (steps_done_ < limit && !early_stop_.is_over(config_.training)) {
        const auto epoch = steps_done_ / steps_per_epoch_ + 1;
        const auto in_epoch = steps_done_ % steps_per_epoch_;
        if (in_epoch == 0) {
            epoch_start = Clock::now();
            seconds_in_steps_ = 0;
            seconds_waited_ = 0;
            epoch_loss_sum_ = 0;
            epoch_cases_left_out_ = 0;
        }
        const auto cases = order_->cases_of_step(steps_done_);

        profile.next_step();
        PendingStep under_way;
        under_way.number = steps_done_ + 1;
        under_way.index = cases[0].index;
        under_way.num_counted = order_->cases_in_step(steps_done_);
        under_way.rate = learning_rate(config_.training, steps_done_, num_steps) * plateau_.factor;
        under_way.start = Clock::now();
        under_way.start_on_device = StepSummary::beginning(device());
        const bool has_reached_time_limit =
            config_.training.max_minutes > 0 && seconds_since(start_) > 60 * config_.training.max_minutes;
        const auto wish = stop_requested != 0      ? StepSummary::kInterrupted
                          : has_reached_time_limit ? StepSummary::kOutOfTime
                                                   : 0;
        within_memory([&] { return load_of("a training step", training_cases(), cases[0].index, true); },
                      [&] { step(cases, under_way, wish); });
        ++steps_done_;
        under_way_.push_back(std::move(under_way));
        const bool ends_epoch = in_epoch + 1 == steps_per_epoch_ || steps_done_ == limit;
        // A device computes while the host prepares the next step: the loss of a step is read when the next one is
        // queued.
        const auto stop = finish_steps(device().is_cpu() || ends_epoch ? 0 : 1);
        if (ends_epoch) end_epoch(epoch, epoch_start);
        if (stop != LoopEnd::Done && steps_done_ < limit && !early_stop_.is_over(config_.training)) {
            profile.finish();
            finish_steps(0);
            save("last", {});
            log_.say((stop == LoopEnd::OutOfTime ? "training.max_minutes are over: " : "") +
                     std::string("stopped after step ") + std::to_string(steps_done_) + "; go on with --resume " +
                     config_.run_dir().string());
            return stop;
        }
    }
    profile.finish();
    return LoopEnd::Done;
}

/// Until so many steps are under way. Returns whether a rank wants to stop, and why.
LoopEnd Run::finish_steps(std::size_t num_left)
{
    auto stop = LoopEnd::Done;
    while (under_way_.size() > num_left) {
        const auto step = under_way_.front();
        under_way_.pop_front();
        finish_step(step);
        if (step.news.wants_stop())
            stop = std::max(stop, step.news.is_interrupted() ? LoopEnd::Interrupted : LoopEnd::OutOfTime);
    }
    return stop;
}

void Run::finish_step(const PendingStep& step)
{
    const auto loss = step.news.loss();
    // A device is asked for its own time: the host goes on while it computes.
    const auto seconds =
        step.news.seconds_since(step.start_on_device).value_or(seconds_since(std::max(step.start, last_news_)));
    last_news_ = Clock::now();
    const auto epoch = (step.number - 1) / steps_per_epoch_ + 1, in_epoch = (step.number - 1) % steps_per_epoch_ + 1;
    const bool is_left_out =
        config_.training.max_skipped_steps > 0 && !step.is_taken && !(step.next_loss_scale && std::isfinite(loss));
    if (is_left_out) {
        leave_out(step, loss);
    } else if (!std::isfinite(loss)) {
        throw Error("training: the loss became " + std::string(std::isnan(loss) ? "NaN" : "infinite") + " in step " +
                    std::to_string(step.number) + " (epoch " + std::to_string(epoch) + ", case " +
                    training_cases().id(step.index) + "). Lower training.optimizer.lr (now " +
                    formatted("%g", config_.training.learning_rate) + ") or add training.scheduler.warmup_steps.");
    } else {
        skipped_in_a_row_ = 0;
        epoch_loss_sum_ += loss * static_cast<double>(step.num_counted) / static_cast<double>(num_groups_);
    }
    seconds_in_steps_ += seconds;
    seconds_in_all_steps_ += seconds;
    seconds_waited_ += step.seconds_waited;
    points_done_ += points_in_step(step.index) * step.num_counted;
    const auto limit = num_steps_limit();
    if (step.number % config_.log_interval == 0 || step.number == limit) {
        Json line{{"phase", "train_step"}, {"step", step.number}, {"epoch", epoch},
                  {"loss", loss},          {"lr", step.rate},     {"seconds", seconds}};
        if (order_->cases_per_step() == 1) line["case"] = training_cases().id(step.index);
        if (step.next_loss_scale) line["loss_scale"] = *step.next_loss_scale;
        if (config_.training.clip_norm > 0) line["grad_norm"] = step.news.gradient_norm();
        if (is_left_out) line["left_out"] = true;
        if (!is_kept()) line["data_wait"] = std::min(1.0, step.seconds_waited / seconds);
        log_.record(line);
    }
    const auto elapsed = seconds_since(loop_start_);
    const auto left =
        elapsed / static_cast<double>(step.number - first_step_) * static_cast<double>(limit - step.number);
    log_.progress(formatted("epoch %lld/%lld [%lld/%lld] loss %.4g lr %.2e %.3f s/step %.3g points/s, %s left",
                            static_cast<long long>(epoch), static_cast<long long>(config_.training.num_epochs),
                            static_cast<long long>(in_epoch), static_cast<long long>(steps_per_epoch_), loss, step.rate,
                            seconds, static_cast<double>(points_done_) / seconds_in_all_steps_,
                            duration_text(left).c_str()),
                  false);
}

/// A step whose loss or gradients are not finite, where so many may be left out in a row.
void Run::leave_out(const PendingStep& step, double loss)
{
    epoch_cases_left_out_ += step.num_counted;
    ++skipped_in_a_row_;
    const auto what = std::string(std::isfinite(loss) ? "the gradients are" : "the loss is") + " not finite in step " +
                      std::to_string(step.number) + " (epoch " +
                      std::to_string((step.number - 1) / steps_per_epoch_ + 1) + ", " + names_of_cases(step.number) +
                      ")";
    log_.say(what + "; the step is left out");
    if (skipped_in_a_row_ <= config_.training.max_skipped_steps) return;
    throw Error("training: " + what + ", and " + std::to_string(skipped_in_a_row_) +
                " steps in a row were left out; training.max_skipped_steps is " +
                std::to_string(config_.training.max_skipped_steps) +
                ". Look at these cases, lower training.optimizer.lr or set training.clip_norm.");
}

/// What the error of a validation means for the steps to come.
void Run::check_error(double error)
{
    if (config_.training.scheduler == "plateau" && plateau_.check(error, config_.training)) {
        log_.say(formatted("the error has not fallen for %lld validations: the learning rate is multiplied by %g",
                           static_cast<long long>(config_.training.plateau_patience + 1), config_.training.gamma));
    }
    if (config_.training.stop_patience > 0 && early_stop_.check(error, config_.training)) {
        log_.say(formatted("the error has not fallen for %lld validations: the run ends early",
                           static_cast<long long>(config_.training.stop_patience)));
    }
}

/// Of the epoch's steps, on the rank that waited longest for cases: the others then wait for it.
double Run::share_waited() const
{
    if (is_kept()) return 0;
    auto seconds = torch::full({1}, seconds_waited_, torch::kDouble);
    device_mesh_->all().all_reduce(seconds, Reduction::Max);
    return std::min(1.0, seconds.item<double>() / seconds_in_steps_);
}

void Run::end_epoch(std::int64_t epoch, Clock::time_point epoch_start)
{
    const auto num_steps = (steps_done_ - 1) % steps_per_epoch_ + 1;
    const auto num_cases =
        std::max<std::int64_t>(1, std::min(num_steps * order_->cases_per_step(), num_cases_) - epoch_cases_left_out_);
    const auto mean_loss = epoch_loss_sum_ * static_cast<double>(num_groups_) / static_cast<double>(num_cases);
    Json line{{"phase", "train"},
              {"epoch", epoch},
              {"loss", mean_loss},
              {"steps", num_steps},
              {"seconds_in_steps", seconds_in_steps_}};
    const auto wait = share_waited();
    if (!is_kept()) line["data_wait"] = wait;
    log_.record(line);
    const bool is_last = epoch == config_.training.num_epochs || steps_done_ == config_.training.max_steps;

    auto text = formatted("epoch %lld: loss %.5g", static_cast<long long>(epoch), mean_loss);
    Json values;
    bool is_best = false;
    if (wait > kMuchWaiting)
        text += formatted(", %.0f %% of the steps' time was spent waiting for cases to be read", 100 * wait);
    if (stored().val.size() > 0 && (is_last || epoch % config_.training.val_interval == 0)) {
        const auto found = errors(&RunCases::val, "val");
        values = metrics(found);
        record_errors(found, "val", epoch);
        const auto all = fields();
        for (std::size_t i = 0; i < all.size(); ++i)
            text += formatted(", val %s %.4f", all[i].name.c_str(), found.relative_l2[i]);
        text += drag_text(found.judged.front());
        is_best = found.mean() < best_error_;
        best_error_ = std::min(best_error_, found.mean());
        if (steps_done_ % steps_per_epoch_ == 0)
            check_error(found.mean());  // an epoch cut short is not one that a run without a stop has
    } else if (stored().val.size() == 0) {
        is_best = mean_loss < best_error_;
        best_error_ = std::min(best_error_, mean_loss);
    }
    if (is_best) save("best", values);  // first: `last` says which error it has
    const KeptCheckpoints kept{config_.training.num_kept, config_.training.snapshot_interval};
    const bool is_snapshot = kept.snapshot_interval > 0 && epoch % kept.snapshot_interval == 0;
    if (is_last || is_snapshot || early_stop_.is_over(config_.training) ||
        epoch % config_.training.save_interval == 0) {
        save("last", values);
        if (is_first_) keep_last_checkpoint(config_.run_dir() / "checkpoints", epoch, kept);
    }
    log_.say(text + formatted(", %.1f s", seconds_since(epoch_start)));
}

FieldErrors Run::errors(CaseSet RunCases::* of_split, const std::string& split)
{
    RECORD_USER_SCOPE("validation");
    torch::NoGradGuard no_grad;
    const AveragedWeights averaged(*update_);
    model_.module->eval();
    const auto& cases = stored().*of_split;
    const auto num_fields = static_cast<std::int64_t>(fields().size());
    auto sums = torch::zeros({num_fields + 1}, torch::kDouble);
    std::deque<CaseSequence> kept_sequences;  // which are not moved
    std::vector<CaseSequence*> sequences;
    for (const auto& part : parts_) {
        const auto& of_part = *part.stored.*of_split;
        sequences.push_back(
            &kept_sequences.emplace_back(of_part, order_->turns_of_split(of_part.size(), sharded_.has_value())));
    }
    for (std::int64_t first = 0; first < cases.size(); first += num_groups_) {
        const auto i = first + group_;
        if (i >= cases.size()) {
            if (sharded_) predict(next_example(sequences));
            continue;
        }
        const auto example = next_example(sequences);
        const auto prediction =
            within_memory([&] { return load_of("validation", cases, i, false); }, [&] { return predict(example); });
        sums[num_fields] += loss_of(prediction, example).item<double>();
        std::int64_t field = 0;
        for (std::size_t p = 0; p < parts_.size(); ++p) {
            auto& part = parts_[p];
            const auto& points = example[p];
            const auto& scaling = part.scalings.at(points.id);
            const auto physical = scaling.physical(part.normalizer.denormalize(prediction.fields[p])),
                       guess = scaling.physical(part.training_mean);
            const auto volumes =
                part.data.is_grid ? at::Tensor()
                                  : (*part.stored.*of_split).volumes(i, spec_of(points.target)->index_map->global_ids);
            part.validation->add(static_cast<std::size_t>(i), points, part.stored->shards.at(points.id), volumes,
                                 physical, guess, *domain_);
            if (p == 0 && coefficient_targets_) {
                part.validation->add_of_head(static_cast<std::size_t>(i),
                                             physical_coefficients(prediction.coefficients,
                                                                   coefficient_targets_->means(),
                                                                   coefficient_targets_->deviations()));
            }
            std::int64_t channel = 0;
            for (const auto count : points.channels) {
                sums[field++] +=
                    relative_l2(physical.narrow(-1, channel, count), points.target.narrow(-1, channel, count));
                channel += count;
            }
        }
    }
    model_.module->train();
    device_mesh_->group(device_mesh_->axis("data")).all_reduce(sums);
    sums /= static_cast<double>(cases.size());

    FieldErrors errors;
    for (std::int64_t f = 0; f < num_fields; ++f) errors.relative_l2.push_back(sums[f].item<double>());
    errors.loss = sums[num_fields].item<double>();
    for (auto& part : parts_)
        errors.judged.push_back(part.validation->finish((*part.stored.*of_split).sources(), split,
                                                        device_mesh_->group(device_mesh_->axis("data"))));
    return errors;
}

Json Run::metrics(const FieldErrors& errors) const
{
    Json values;
    const auto all = fields();
    for (std::size_t f = 0; f < all.size(); ++f) values[all[f].name]["rel_l2"] = errors.relative_l2[f];
    return values;
}

/// All numbers of a validation, and a line a case in SPLIT_cases.csv.
void Run::record_errors(const FieldErrors& found, const std::string& split, std::int64_t epoch)
{
    if (!is_first_) return;
    Json line{{"phase", split}, {"epoch", epoch}, {"loss", found.loss}, {"metrics", metrics(found)}};
    const auto more = validation_json(found.judged.front());
    for (const auto& [name, value] : more.items()) line[name] = value;
    if (found.judged.size() > 1) line["errors"].update(validation_json(found.judged.back())["errors"]);
    log_.record(line);
    write_file_atomically(config_.run_dir() / (split + "_cases.csv"), to_csv(found.judged.front()));
    if (found.judged.size() > 1)
        write_file_atomically(config_.run_dir() / (split + "_volume_cases.csv"), to_csv(found.judged.back()));
}

void Run::save(const char* name, const Json& metrics) const
{
    if (!is_first_ && !sharded_) return;
    const auto values = sharded_ ? trained_values(*model_.module, *sharded_, update_->optimizers(), update_->average())
                                 : trained_values(*model_.module, update_->optimizers(), update_->average());
    if (!is_first_) return;
    nlohmann::json description{
        {"format", "meshard checkpoint"}, {"version", checkpoint_version}, {"torch", TORCH_VERSION}};
    description["model_class"] = model_.class_name;
    description["model"] = model_.arguments;
    description["data"] = to_json(config_.data);
    if (config_.volume) description["volume"] = to_json(*config_.volume);
    for (const auto& part : parts_) {
        for (std::size_t f = 0; f < part.data.fields.size(); ++f) {
            const auto& field = part.data.fields[f];
            description["fields"].push_back({{"name", field.name},
                                             {"from", field.from},
                                             {"kind", field.kind},
                                             {"channels", part.stored->train.channels()[f]}});
        }
    }
    if (config_.data.shares_deviation) {
        const auto mean = of_all_parts([](const CasePart& part) { return part.training_mean; }).cpu();
        description["training_mean"] =
            std::vector<float>(mean.const_data_ptr<float>(), mean.const_data_ptr<float>() + mean.numel());
    }
    if (coefficient_targets_) {
        description["coefficients"] = {{"names", names_of_coefficients(config_.training.coefficient_weights)},
                                       {"features", config_.training.coefficient_features},
                                       {"means", coefficient_targets_->means()},
                                       {"deviations", coefficient_targets_->deviations()}};
    }
    if (shape_coefficients_) description["shape_coefficients"] = shape_coefficients_->to_json();
    description["input_ranges"] = parts_.front().ranges.to_json();
    if (config_.volume) description["volume_input_ranges"] = parts_.back().ranges.to_json();
    for (std::size_t part = 0; part < parts_.size(); ++part) {
        const auto& facing = parts_[part].stored->facing;
        description[part == 1 ? "volume_facing" : "facing"] = {{"surfaces", facing.surfaces.to_json()},
                                                               {"walls", facing.walls.to_json()}};
    }
    description["seed"] = config_.seed;
    description["draws"] = kDrawsOfSteps;
    description["train_cases"] = train_ids();
    if (const auto shares = shares_of_sets(); !shares.empty()) description["shares_of_sets"] = shares;
    description["step"] = steps_done_;
    description["num_steps"] = num_steps_total();
    description["optimizer"] = config_.training.optimizer;
    description["steps_per_epoch"] = steps_per_epoch_;
    description["epoch"] = (steps_done_ + steps_per_epoch_ - 1) / steps_per_epoch_;
    description["epoch_loss_sum"] = epoch_loss_sum_;
    description["best_error"] = best_error_;
    if (epoch_cases_left_out_ > 0) description["epoch_cases_left_out"] = epoch_cases_left_out_;
    if (skipped_in_a_row_ > 0) description["skipped_in_a_row"] = skipped_in_a_row_;
    if (config_.training.scheduler == "plateau")
        description["plateau"] = {
            {"factor", plateau_.factor}, {"best", plateau_.best}, {"bad_checks", plateau_.bad_checks}};
    if (config_.training.stop_patience > 0)
        description["early_stop"] = {{"best", early_stop_.best}, {"bad_checks", early_stop_.bad_checks}};
    update_->describe(description);
    if (!metrics.is_null()) description["val"] = metrics;
    const auto dir = config_.run_dir() / "checkpoints";
    std::filesystem::create_directories(dir);
    save_checkpoint(dir / (std::string(name) + ".safetensors"), values, normalizer_of_all(), description,
                    stored().of_inputs ? &*stored().of_inputs : nullptr);
}

/// What a rank holds of parameters, gradients and the optimiser's state: the rank that holds most.
void Run::record_memory()
{
    const auto parts = sharded_ ? sharded_->local_parameters() : model_.module->parameters();
    auto bytes = torch::zeros({3}, torch::kLong);
    auto* const sums = bytes.mutable_data_ptr<std::int64_t>();
    for (const auto& part : parts) {
        sums[0] += static_cast<std::int64_t>(part.nbytes());
        if (part.grad().defined()) sums[1] += static_cast<std::int64_t>(part.grad().nbytes());
        const auto state = update_->optimizers().state(part);
        if (!state) continue;
        sums[2] +=
            static_cast<std::int64_t>(state->mean.nbytes() + (state->squares.defined() ? state->squares.nbytes() : 0));
    }
    device_mesh_->all().all_reduce(bytes, Reduction::Max);
    log_.record(
        {{"phase", "memory"}, {"parameter_bytes", sums[0]}, {"gradient_bytes", sums[1]}, {"optimizer_bytes", sums[2]}});
}

void Run::test()
{
    if (stored().test.size() == 0) return;
    const auto found = errors(&RunCases::test, "test");
    const auto epoch = (steps_done_ + steps_per_epoch_ - 1) / steps_per_epoch_;
    record_errors(found, "test", epoch);
    std::string text = "test:";
    const auto all = fields();
    for (std::size_t f = 0; f < all.size(); ++f)
        text += formatted("%s %s %.4f", f == 0 ? "" : ",", all[f].name.c_str(), found.relative_l2[f]);
    log_.say(text + " (relative L2 error)" + drag_text(found.judged.front()));
    if (const auto worst = worst_text(found.judged.front()); !worst.empty()) log_.say(worst);
}

void Run::finish()
{
    if (graphs_ && !graphs_->why_not()) {
        log_.say(formatted(
            "training.graph_capture: %zu kind(s) of steps were recorded, and %lld of %lld steps ran from there",
            graphs_->num_graphs(), static_cast<long long>(graphs_->num_replays()),
            static_cast<long long>(steps_done_ - first_step_)));
    }
    log_.say(formatted("done in %s; the run lies in ", duration_text(seconds_since(start_)).c_str()) +
             config_.run_dir().string());
}

}  // namespace

bool train(const TrainingRunConfig& config, const CaseLists& cases, const TrainingStart& start, World& world,
           const volatile std::sig_atomic_t& stop_requested)
{
    const ExactMode exact(config.training.exact);
    std::optional<OwnStream> stream;
    if (config.training.graph_capture && can_record(world.device().type())) stream.emplace(world.device());
    auto used = config;
    if (start.resume) used.training.init.clear();  // the checkpoint's weights count; that file may be gone
    Run run(used, cases, !start.is_trial(), world);
    run.prepare(start, stop_requested);
    if (start.resume && !start.is_trial()) run.resume();
    run.describe();
    if (start.print_plan) run.print_plan();
    if (start.is_trial()) return true;
    if (start.before_first_step) start.before_first_step();
    const auto end = run.loop(stop_requested, start.profile_steps);
    if (end != LoopEnd::Done) return end == LoopEnd::OutOfTime;
    run.record_memory();
    run.test();
    if (start.after_last_step) start.after_last_step();
    run.finish();
    return true;
}

}  // namespace meshard
