// SPDX-License-Identifier: Apache-2.0
#include "apps/training/training.h"

#include "apps/cases/case_cutting.h"
#include "apps/program/rank_device.h"
#include "apps/settings/training_log.h"
#include "apps/training/loss_scaling.h"
#include "apps/training/run_checkpoint.h"
#include "apps/training/schedule.h"
#include "apps/training/step_news.h"
#include "apps/training/step_profile.h"
#include "apps/training/training_plan.h"
#include "models/layers/metrics.h"
#include "models/layers/normalizer.h"
#include "models/layers/random_draws.h"
#include "partition/error.h"
#include "sharding/memory/saved_tensors.h"
#include "sharding/parameters/fully_shard.h"
#include "sharding/parameters/fused_adamw.h"
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

namespace meshard {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

// Seeds of neighbouring steps and data groups must not be neighbours.
constexpr std::uint64_t kStepStride = 0xD1B54A32D192ED03, kGroupStride = 0x8CB92BA72F3D8DD7;

constexpr std::int64_t kShareOfCases = 4;  // of a device's free memory: 1 / this for cases that stay there

// In checkpoints: what is drawn in a step is a function of the seed, the step and the data group, so that there is no state to keep.
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

/// Exact mode, where it is asked for, as long as this lives. In one thread: where threads share out an operator, LibTorch's vector code ends and its
/// scalar code, which rounds differently, begins.
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

/// Errors of the fields over a list of cases: the mean over cases of each case's relative error.
struct FieldErrors {
    std::vector<double> relative_l2;
    double loss = 0;

    double mean() const
    {
        double sum = 0;
        for (const auto error : relative_l2) sum += error;
        return sum / static_cast<double>(relative_l2.size());
    }
};

struct StepUnderWay {
    std::int64_t number = 0;  // from 1
    const CaseTensors* example = nullptr;
    std::int64_t num_counted = 0;  // cases that the data groups took together
    double rate = 0;
    Clock::time_point start;
    StepNews news;
    std::optional<double> next_loss_scale;  // in float16
};

/// One run of `train`: what stays the same from step to step.
class Run {
public:
    Run(const TrainingRunConfig& config, const CaseLists& cases, bool is_recorded, World& world);

    void prepare(const TrainingStart& start, const volatile std::sig_atomic_t& stop_requested);
    void resume();
    void require_same_run(const nlohmann::json& description) const;
    bool loop(const volatile std::sig_atomic_t& stop_requested, std::int64_t profile_steps);
    void record_memory();
    void test();
    void describe();
    void print_plan() const;
    void finish();

private:
    std::vector<CaseTensors> load(const std::vector<CaseSource>& sources, std::span<const std::filesystem::path> shards) const;
    void make_model();
    void place_cases();
    at::Tensor predict(const PointInputs& inputs);
    at::Tensor predict_for_backward(const PointInputs& inputs);
    StepNews step(const CaseTensors& example, double rate, double weight, bool stop);
    at::Tensor own_news(const at::Tensor& loss, double weight, bool stop) const;
    bool finish_steps(std::size_t num_left);
    void finish_step(const StepUnderWay& step);
    std::vector<at::Tensor> gradients() const;
    std::int64_t cases_in_step(std::int64_t in_epoch) const;
    FieldErrors errors(const std::vector<CaseTensors>& examples);
    Json metrics(const FieldErrors& errors) const;
    void save(const char* name, const Json& metrics) const;
    void end_epoch(std::int64_t epoch, Clock::time_point epoch_start);
    nlohmann::json train_ids() const;
    at::Device device() const { return world_.device(); }
    std::int64_t shards_per_case() const { return config_.data.num_parts > 0 ? config_.data.num_parts : domain_->num_ranks(); }
    std::int64_t num_steps_total() const { return config_.training.num_epochs * steps_per_epoch_; }
    std::int64_t num_steps_limit() const
    {
        return config_.training.max_steps > 0 ? std::min(num_steps_total(), config_.training.max_steps) : num_steps_total();
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
    CaseOrder order_;
    std::int64_t num_cases_ = 1;  // that train
    std::int64_t steps_per_epoch_ = 1;

    std::vector<CaseTensors> train_;
    std::vector<CaseTensors> val_;
    std::vector<CaseTensors> test_;
    Normalizer normalizer_;
    Model model_;
    std::optional<ReplicatedModule> replicated_;
    std::optional<FullyShardedModule> sharded_;  // in its place
    std::unique_ptr<torch::optim::AdamW> optimizer_;
    std::optional<LossScaling> loss_scaling_;  // in float16

    std::int64_t steps_done_ = 0;
    std::deque<StepUnderWay> under_way_;
    std::int64_t first_step_ = 0;   // of this process
    Clock::time_point loop_start_;  // when that began
    Clock::time_point last_news_;   // when a step's loss was known last
    std::int64_t points_done_ = 0;
    double seconds_in_steps_ = 0;  // of the current epoch
    double epoch_loss_sum_ = 0;    // of the steps of the current epoch, each times the share of the data groups that had a case
    double best_error_ = std::numeric_limits<double>::infinity();
    double seconds_in_preparation_ = 0;
    Clock::time_point start_ = Clock::now();
};

Run::Run(const TrainingRunConfig& config, const CaseLists& cases, bool is_recorded, World& world)
    : config_(config), cases_(cases), world_(world), is_first_(world.rank() == 0),
      log_(is_recorded ? config.run_dir() / "metrics.jsonl" : std::filesystem::path(), is_first_), order_(config.training, config.seed, cases.train)
{
    const auto shape = mesh_shape(config, world.size());
    device_mesh_ = DeviceMesh::create(world, {shape[0], shape[1]}, {"data", "domain"});
    domain_ = device_mesh_->sub_mesh("domain");
    num_groups_ = shape[0];
    group_ = device_mesh_->coordinate(device_mesh_->axis("data"));
    num_cases_ = static_cast<std::int64_t>(cases.train.size());
    steps_per_epoch_ = (num_cases_ + num_groups_ - 1) / num_groups_;
}

void Run::prepare(const TrainingStart& start, const volatile std::sig_atomic_t& stop_requested)
{
    if (start.is_trial()) {
        cases_.train.resize(1);
        cases_.val.clear();
        cases_.test.clear();
    }
    const auto preparing = Clock::now();
    const ShardCache cache{config_.data.shards, shards_per_case(), config_.seed, start.verify_sources, computed_inputs(config_.data)};
    const auto shards = cut_cases(cases_.all(), cache, device_mesh_->all(), log_, stop_requested);
    const std::span all(shards);
    train_ = load(cases_.train, all.first(cases_.train.size()));
    val_ = load(cases_.val, all.subspan(cases_.train.size(), cases_.val.size()));
    test_ = load(cases_.test, all.last(cases_.test.size()));
    ChannelStatistics statistics;
    for (const auto& example : train_) statistics.add(example.target.squeeze(0));
    normalizer_ = statistics.normalizer();
    make_model();
    place_cases();
    seconds_in_preparation_ = seconds_since(preparing);
}

std::vector<CaseTensors> Run::load(const std::vector<CaseSource>& sources, std::span<const std::filesystem::path> shards) const
{
    std::vector<CaseTensors> examples;
    for (std::size_t i = 0; i < sources.size(); ++i) {
        examples.push_back(load_case(sources[i], shards[i], config_.data, domain_, config_.training.exact ? RowOrder::Ids : RowOrder::Parts));
        if (examples.back().channels != examples.front().channels) {
            throw InvalidInput("case " + sources[i].id + ": a field has another number of components than in case " + sources.front().id + ".");
        }
    }
    return examples;
}

void Run::make_model()
{
    std::int64_t num_channels = 0;
    for (const auto count : train_.front().channels) num_channels += count;
    torch::manual_seed(config_.seed);
    model_ = meshard::make_model(config_.model.name, model_arguments(config_.model, config_.data, num_channels));
    set_memory(*model_.module, config_.training.memory);
    if (!config_.training.init.empty()) load_weights(config_.training.init, *model_.module);
    move_module(*model_.module, device());
    if (config_.shard_parameters)
        sharded_.emplace(fully_shard(*model_.module, device_mesh_, {.is_unit = {}, .over_all_axes = true}));
    else
        replicated_.emplace(replicate(*model_.module, device_mesh_));
    const auto& training = config_.training;
    if (training.precision == Precision::Float16) loss_scaling_.emplace();
    allow_tf32(training.precision == Precision::TF32);
    optimizer_ =
        make_adamw(sharded_ ? sharded_->local_parameters() : model_.module->parameters(),
                   torch::optim::AdamWOptions(training.learning_rate).betas({training.betas[0], training.betas[1]}).weight_decay(training.weight_decay));
}

/// Where the device has room for all cases they stay there; else each is copied when it is its turn.
void Run::place_cases()
{
    if (device().is_cpu()) return;
    normalizer_ = normalizer_.on(device());
    std::int64_t bytes = 0;
    for (auto* examples : {&train_, &val_, &test_}) {
        for (const auto& example : *examples) bytes += bytes_of(example);
    }
    const auto room = memory_of(device()) / kShareOfCases / ranks_a_device(world_, device_mesh_->all());
    for (auto* examples : {&train_, &val_, &test_}) {
        for (auto& example : *examples) example = bytes <= room ? on_device(example, device()) : page_locked(example);
    }
    if (bytes > room) log_.say(formatted("the cases take %.3g GB a rank, and each is copied to the device for its step", static_cast<double>(bytes) * 1e-9));
}

void Run::describe()
{
    const auto count_points = [](const std::vector<CaseTensors>& examples) {
        std::int64_t count = 0;
        for (const auto& example : examples) count += example.num_points;
        return count;
    };
    Json line{{"phase", "dataset"}};
    line["cases"] = {{"train", train_.size()}, {"val", val_.size()}, {"test", test_.size()}};
    line["points"] = {{"train", count_points(train_)}, {"val", count_points(val_)}, {"test", count_points(test_)}};
    for (std::int64_t c = 0; c < normalizer_.mean.size(0); ++c) {
        line["mean"].push_back(normalizer_.mean[c].item<double>());
        line["std"].push_back(normalizer_.std[c].item<double>());
    }
    line["shards_per_case"] = shards_per_case();
    line["seconds"] = seconds_in_preparation_;
    log_.record(line);
    log_.say(formatted("%zu training, %zu validation, %zu test cases, %lld points in training; prepared in %.1f s", train_.size(), val_.size(), test_.size(),
                       static_cast<long long>(count_points(train_)), seconds_in_preparation_));

    std::int64_t num_parameters = 0;
    for (const auto& parameter : model_.module->parameters()) num_parameters += parameter.numel();
    const auto where = device_text(world_, device_mesh_->all());
    log_.say(formatted("%s with %lld parameters%s on %lld rank(s): %lld data x %lld domain, ", config_.model.name.c_str(),
                       static_cast<long long>(num_parameters), sharded_ ? ", cut among all ranks," : "", static_cast<long long>(device_mesh_->num_ranks()),
                       static_cast<long long>(num_groups_), static_cast<long long>(domain_->num_ranks())) +
             where);
    if (config_.training.precision == Precision::TF32 && model_.module->parameters().front().is_cpu())
        log_.say("training.precision tf32: products are rounded on GPUs only; on CPUs it is float32");
    if (config_.training.offload && device().is_cpu()) log_.say("training.offload: ranks compute on CPUs, where nothing is moved");
    const auto num_last = cases_in_step(steps_per_epoch_ - 1);
    if (num_last < num_groups_) {
        log_.say(formatted(
            "%lld training case(s) on %lld data groups: the last step of an epoch has %lld, so that each case counts once; the other groups then add nothing",
            static_cast<long long>(num_cases_), static_cast<long long>(num_groups_), static_cast<long long>(num_last)));
    }
    if (steps_done_ == 0) return;
    log_.say("resumed after step " + std::to_string(steps_done_));
    if (steps_done_ >= num_steps_limit()) {
        log_.say(formatted("all %lld steps are done; training.num_epochs or training.max_steps (0: no limit) can be set to more",
                           static_cast<long long>(num_steps_limit())));
    }
}

void Run::print_plan() const
{
    const auto plan = training_plan(model_, config_, on_device(train_.front(), device()), *device_mesh_, world_);
    if (is_first_) std::cout << plan << std::flush;
}

void Run::require_same_run(const nlohmann::json& description) const
{
    const auto refuse = [](const std::string& what) { throw InvalidInput("resume: " + what); };
    if (description.contains("seed") && description["seed"] != config_.seed) {
        refuse("the run was made with seed " + description["seed"].dump() + ", which orders its cases and its draws, and seed is " +
               std::to_string(config_.seed) + " now. Leave it out.");
    }
    const auto before = to_json(data_config(description.at("data"))), now = to_json(config_.data);
    for (const auto& [key, value] : now.items()) {
        if (before.at(key) != value)
            refuse("data." + key + " was " + before.at(key).dump() + " when the run began, and is " + value.dump() +
                   " now. Leave it as it was, or start a new run.");
    }
    if (description.contains("train_cases") && description["train_cases"] != train_ids()) {
        refuse("the run trained on " + std::to_string(description["train_cases"].size()) + " cases, and data gives " + std::to_string(cases_.train.size()) +
               " or others now. Use the same cases (data.root, data.split), or start a new run.");
    }
    if (description.value("steps_per_epoch", steps_per_epoch_) != steps_per_epoch_) {
        refuse("the run had " + description["steps_per_epoch"].dump() + " steps an epoch, and has " + std::to_string(steps_per_epoch_) +
               " now. Use the same cases and as many data groups.");
    }
}

void Run::resume()
{
    const Checkpoint checkpoint(config_.run_dir() / "checkpoints" / "last.safetensors");
    const auto& description = checkpoint.description();
    require_same_run(description);
    if (sharded_) {
        checkpoint.load_weights(*model_.module, *sharded_);
        checkpoint.load_optimizer(*sharded_, *optimizer_);
    } else {
        checkpoint.load_weights(*model_.module);
        checkpoint.load_optimizer(*model_.module, *optimizer_);
    }
    normalizer_ = checkpoint.normalizer().on(device());
    steps_done_ = description.at("step").get<std::int64_t>();
    epoch_loss_sum_ = description.value("epoch_loss_sum", 0.0);
    if (description.contains("best_error") && description["best_error"].is_number()) best_error_ = description["best_error"].get<double>();
    if (loss_scaling_ && description.contains("loss_scale")) {
        loss_scaling_->scale = description["loss_scale"].at("scale").get<double>();
        loss_scaling_->num_good_steps = description["loss_scale"].at("good_steps").get<std::int64_t>();
    }
    if (description.value("draws", "") != kDrawsOfSteps) {
        log_.say("meshard train: warning: the checkpoint is of an earlier meshard, whose draws depended on all that was drawn before: with dropout, or "
                 "Transolver++'s noise, the run does not go on "
                 "exactly as it would have without the stop");
    }
    log_.go_back_to(steps_done_, steps_per_epoch_);
}

nlohmann::json Run::train_ids() const
{
    auto ids = nlohmann::json::array();
    for (const auto& source : cases_.train) ids.push_back(source.id);
    return ids;
}

at::Tensor Run::predict(const PointInputs& inputs)
{
    RECORD_USER_SCOPE("forward");
    const PrecisionGuard precision(config_.training.precision, device().type());
    return model_.forward(inputs).to(torch::kFloat);
}

/// The same for a step's backward, whose tensors wait where the settings say.
at::Tensor Run::predict_for_backward(const PointInputs& inputs)
{
    std::optional<OffloadSavedTensors> offload;
    if (config_.training.offload && !device().is_cpu()) offload.emplace();
    return predict(inputs);
}

/// Those that the optimiser takes; undefined ones among them.
std::vector<at::Tensor> Run::gradients() const
{
    std::vector<at::Tensor> all;
    for (const auto& parameter : optimizer_->param_groups().front().params()) all.push_back(parameter.grad());
    return all;
}

/// Cases that the data groups take together in a step: one each, but what is left of them in the last step of an epoch.
std::int64_t Run::cases_in_step(std::int64_t in_epoch) const
{
    return std::min(num_groups_, num_cases_ - in_epoch * num_groups_);
}

/// `weight` is how often the case counts in the mean over the data groups: 0 for one that only lets this group take part.
StepNews Run::step(const CaseTensors& given, double rate, double weight, bool stop)
{
    const auto example = on_device(given, device());
    seed_draws(*model_.module, static_cast<std::uint64_t>(config_.seed) + kStepStride * static_cast<std::uint64_t>(steps_done_ + 1) +
                                   kGroupStride * static_cast<std::uint64_t>(group_));
    static_cast<torch::optim::AdamWOptions&>(optimizer_->param_groups().front().options()).lr(rate);
    optimizer_->zero_grad();
    const auto prediction = predict_for_backward(example.inputs);
    const auto loss = mean_squared_error(prediction, normalizer_.normalize(example.target));
    const auto weighted = weight == 1 ? loss : loss * weight;
    {
        RECORD_USER_SCOPE("backward");
        (loss_scaling_ ? loss_scaling_->scaled(weighted) : weighted).backward();
    }
    {
        RECORD_USER_SCOPE("optimizer");
        if (!loss_scaling_ || loss_scaling_->unscale(gradients(), device_mesh_->all())) optimizer_->step();
    }

    return {own_news(loss.detach(), weight, stop), device_mesh_->all()};
}

/// One message for all that the ranks must know of each other: the loss over all points, averaged over the groups, and a wish to stop. A loss that no rank has
/// a share of, but each the whole, counts on one rank of a group.
at::Tensor Run::own_news(const at::Tensor& loss, double weight, bool stop) const
{
    const bool is_pending = is_sharded(loss) && spec_of(loss)->has_partial();
    const bool counts = is_pending || domain_->all().rank() == 0;
    const auto share = to_local(loss).to(torch::kDouble);
    const auto number = [&](double value) { return torch::full({}, value, share.options()); };  // no copy from the host
    return torch::stack({counts ? share * weight / static_cast<double>(num_groups_) : number(0), number(stop ? 1 : 0)});
}

bool Run::loop(const volatile std::sig_atomic_t& stop_requested, std::int64_t profile_steps)
{
    StepProfile profile(profile_steps, config_.run_dir() / "profile" / ("rank_" + std::to_string(world_.rank()) + ".json"));
    const auto num_steps = num_steps_total();
    const auto limit = num_steps_limit();
    first_step_ = steps_done_;
    loop_start_ = Clock::now();
    auto epoch_start = loop_start_;
    model_.module->train();

    while (steps_done_ < limit) {
        const auto epoch = steps_done_ / steps_per_epoch_ + 1;
        const auto in_epoch = steps_done_ % steps_per_epoch_;
        if (in_epoch == 0) {
            epoch_start = Clock::now();
            seconds_in_steps_ = 0;
            epoch_loss_sum_ = 0;
        }
        const auto order = order_.of_epoch(epoch);
        const auto& example = train_[order[(in_epoch * num_groups_ + group_) % num_cases_]];
        const auto num_counted = cases_in_step(in_epoch);
        const auto weight = group_ < num_counted ? static_cast<double>(num_groups_) / static_cast<double>(num_counted) : 0.0;
        const auto rate = learning_rate(config_.training, steps_done_, num_steps);

        profile.next_step();
        const auto step_start = Clock::now();
        const auto news = step(example, rate, weight, stop_requested != 0);
        ++steps_done_;
        under_way_.push_back({steps_done_, &example, num_counted, rate, step_start, news, loss_scaling_ ? std::optional(loss_scaling_->scale) : std::nullopt});
        const bool ends_epoch = in_epoch + 1 == steps_per_epoch_ || steps_done_ == limit;
        // A device computes while the host prepares the next step: the loss of a step is read when the next one is queued.
        const bool stop = finish_steps(device().is_cpu() || ends_epoch ? 0 : 1);
        if (ends_epoch) end_epoch(epoch, epoch_start);
        if (stop && steps_done_ < limit) {
            profile.finish();
            finish_steps(0);
            save("last", {});
            log_.say("stopped after step " + std::to_string(steps_done_) + "; go on with --resume " + config_.run_dir().string());
            return false;
        }
    }
    profile.finish();
    if (profile_steps > 0) {
        log_.say(first_step_ + 1 < limit ? "a trace of each rank's steps lies in " + (config_.run_dir() / "profile").string()
                                         : std::string("--profile has traced nothing: it leaves out the first step, and no other came"));
    }
    return true;
}

/// Until so many steps are under way. Returns whether a rank wants to stop.
bool Run::finish_steps(std::size_t num_left)
{
    bool stop = false;
    while (under_way_.size() > num_left) {
        const auto step = under_way_.front();
        under_way_.pop_front();
        finish_step(step);
        stop |= step.news.wants_stop();
    }
    return stop;
}

void Run::finish_step(const StepUnderWay& step)
{
    const auto loss = step.news.loss();
    const auto seconds = seconds_since(std::max(step.start, last_news_));
    last_news_ = Clock::now();
    const auto epoch = (step.number - 1) / steps_per_epoch_ + 1, in_epoch = (step.number - 1) % steps_per_epoch_ + 1;
    if (!std::isfinite(loss)) {
        throw Error("training: the loss became " + std::string(std::isnan(loss) ? "NaN" : "infinite") + " in step " + std::to_string(step.number) + " (epoch " +
                    std::to_string(epoch) + ", case " + step.example->id + "). Lower training.optimizer.lr (now " +
                    formatted("%g", config_.training.learning_rate) + ") or add training.scheduler.warmup_steps.");
    }
    epoch_loss_sum_ += loss * static_cast<double>(step.num_counted) / static_cast<double>(num_groups_);
    seconds_in_steps_ += seconds;
    points_done_ += step.example->num_points * step.num_counted;
    const auto limit = num_steps_limit();
    if (step.number % config_.log_interval == 0 || step.number == limit) {
        Json line{{"phase", "train_step"}, {"step", step.number}, {"epoch", epoch}, {"loss", loss}, {"lr", step.rate}, {"seconds", seconds}};
        if (num_groups_ == 1) line["case"] = step.example->id;
        if (step.next_loss_scale) line["loss_scale"] = *step.next_loss_scale;
        log_.record(line);
    }
    const auto elapsed = seconds_since(loop_start_);
    const auto left = elapsed / static_cast<double>(step.number - first_step_) * static_cast<double>(limit - step.number);
    log_.progress(formatted("epoch %lld/%lld [%lld/%lld] loss %.4g lr %.2e %.3f s/step %.3g points/s, %s left", static_cast<long long>(epoch),
                            static_cast<long long>(config_.training.num_epochs), static_cast<long long>(in_epoch), static_cast<long long>(steps_per_epoch_),
                            loss, step.rate, seconds, static_cast<double>(points_done_) / elapsed, duration_text(left).c_str()),
                  false);
}

void Run::end_epoch(std::int64_t epoch, Clock::time_point epoch_start)
{
    const auto num_steps = (steps_done_ - 1) % steps_per_epoch_ + 1;
    const auto num_cases = std::min(num_steps * num_groups_, num_cases_);
    const auto mean_loss = epoch_loss_sum_ * static_cast<double>(num_groups_) / static_cast<double>(num_cases);
    log_.record({{"phase", "train"}, {"epoch", epoch}, {"loss", mean_loss}, {"steps", num_steps}, {"seconds_in_steps", seconds_in_steps_}});
    const bool is_last = epoch == config_.training.num_epochs || steps_done_ == config_.training.max_steps;

    auto text = formatted("epoch %lld: loss %.5g", static_cast<long long>(epoch), mean_loss);
    Json values;
    bool is_best = false;
    if (!val_.empty() && (is_last || epoch % config_.training.val_interval == 0)) {
        const auto found = errors(val_);
        values = metrics(found);
        log_.record({{"phase", "val"}, {"epoch", epoch}, {"loss", found.loss}, {"metrics", values}});
        for (std::size_t i = 0; i < config_.data.fields.size(); ++i) {
            text += formatted(", val %s %.4f", config_.data.fields[i].name.c_str(), found.relative_l2[i]);
        }
        is_best = found.mean() < best_error_;
        best_error_ = std::min(best_error_, found.mean());
    } else if (val_.empty()) {
        is_best = mean_loss < best_error_;
        best_error_ = std::min(best_error_, mean_loss);
    }
    if (is_best) save("best", values);  // first: `last` says which error it has
    if (is_last || epoch % config_.training.save_interval == 0) save("last", values);
    log_.say(text + formatted(", %.1f s", seconds_since(epoch_start)));
}

FieldErrors Run::errors(const std::vector<CaseTensors>& examples)
{
    torch::NoGradGuard no_grad;
    model_.module->eval();
    const auto num_fields = static_cast<std::int64_t>(config_.data.fields.size());
    auto sums = torch::zeros({num_fields + 1}, torch::kDouble);
    const auto num_examples = static_cast<std::int64_t>(examples.size());
    for (std::int64_t first = 0; first < num_examples; first += num_groups_) {
        const auto i = first + group_;
        if (i >= num_examples) {
            if (sharded_) predict(on_device(examples.back(), device()).inputs);  // so that the others get this group's parts of the parameters
            continue;
        }
        const auto example = on_device(examples[i], device());
        const auto prediction = predict(example.inputs);
        sums[num_fields] += mean_squared_error(prediction, normalizer_.normalize(example.target)).item<double>();
        const auto physical = normalizer_.denormalize(prediction);
        std::int64_t channel = 0;
        for (std::int64_t f = 0; f < num_fields; ++f) {
            const auto count = example.channels[f];
            sums[f] += relative_l2(physical.narrow(-1, channel, count), example.target.narrow(-1, channel, count));
            channel += count;
        }
    }
    model_.module->train();
    device_mesh_->group(device_mesh_->axis("data")).all_reduce(sums);
    sums /= static_cast<double>(examples.size());

    FieldErrors errors;
    for (std::int64_t f = 0; f < num_fields; ++f) errors.relative_l2.push_back(sums[f].item<double>());
    errors.loss = sums[num_fields].item<double>();
    return errors;
}

Json Run::metrics(const FieldErrors& errors) const
{
    Json values;
    for (std::size_t f = 0; f < config_.data.fields.size(); ++f) values[config_.data.fields[f].name]["rel_l2"] = errors.relative_l2[f];
    return values;
}

void Run::save(const char* name, const Json& metrics) const
{
    if (!is_first_ && !sharded_) return;
    const auto values = sharded_ ? trained_values(*model_.module, *sharded_, *optimizer_) : trained_values(*model_.module, *optimizer_);
    if (!is_first_) return;
    nlohmann::json description{{"format", "meshard checkpoint"}, {"version", 1}, {"torch", TORCH_VERSION}};
    description["model_class"] = model_.class_name;
    description["model"] = model_.arguments;
    description["data"] = to_json(config_.data);
    for (std::size_t f = 0; f < config_.data.fields.size(); ++f) {
        const auto& field = config_.data.fields[f];
        description["fields"].push_back({{"name", field.name}, {"from", field.from}, {"kind", field.kind}, {"channels", train_.front().channels[f]}});
    }
    description["seed"] = config_.seed;
    description["draws"] = kDrawsOfSteps;
    description["train_cases"] = train_ids();
    description["step"] = steps_done_;
    description["steps_per_epoch"] = steps_per_epoch_;
    description["epoch"] = (steps_done_ + steps_per_epoch_ - 1) / steps_per_epoch_;
    description["epoch_loss_sum"] = epoch_loss_sum_;
    description["best_error"] = best_error_;
    if (loss_scaling_) description["loss_scale"] = {{"scale", loss_scaling_->scale}, {"good_steps", loss_scaling_->num_good_steps}};
    if (!metrics.is_null()) description["val"] = metrics;
    const auto dir = config_.run_dir() / "checkpoints";
    std::filesystem::create_directories(dir);
    save_checkpoint(dir / (std::string(name) + ".safetensors"), values, normalizer_, description);
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
        const auto state = optimizer_->state().find(part.unsafeGetTensorImpl());
        if (state == optimizer_->state().end()) continue;
        const auto& moments = static_cast<const torch::optim::AdamWParamState&>(*state->second);
        sums[2] += static_cast<std::int64_t>(moments.exp_avg().nbytes() + moments.exp_avg_sq().nbytes());
    }
    device_mesh_->all().all_reduce(bytes, Reduction::Max);
    log_.record({{"phase", "memory"}, {"parameter_bytes", sums[0]}, {"gradient_bytes", sums[1]}, {"optimizer_bytes", sums[2]}});
}

void Run::test()
{
    if (test_.empty()) return;
    const auto found = errors(test_);
    const auto epoch = (steps_done_ + steps_per_epoch_ - 1) / steps_per_epoch_;
    log_.record({{"phase", "test"}, {"epoch", epoch}, {"loss", found.loss}, {"metrics", metrics(found)}});
    std::string text = "test:";
    for (std::size_t f = 0; f < config_.data.fields.size(); ++f) {
        text += formatted("%s %s %.4f", f == 0 ? "" : ",", config_.data.fields[f].name.c_str(), found.relative_l2[f]);
    }
    log_.say(text + " (relative L2 error)");
}

void Run::finish()
{
    log_.say(formatted("done in %s; the run lies in ", duration_text(seconds_since(start_)).c_str()) + config_.run_dir().string());
}

}  // namespace

bool train(const TrainingRunConfig& config, const CaseLists& cases, const TrainingStart& start, World& world, const volatile std::sig_atomic_t& stop_requested)
{
    const ExactMode exact(config.training.exact);
    auto used = config;
    if (start.resume) used.training.init.clear();  // the checkpoint's weights count; that file may be gone
    Run run(used, cases, !start.is_trial(), world);
    run.prepare(start, stop_requested);
    if (start.resume && !start.is_trial()) run.resume();
    run.describe();
    if (start.print_plan) run.print_plan();
    if (start.is_trial()) return true;
    if (start.before_first_step) start.before_first_step();
    if (!run.loop(stop_requested, start.profile_steps)) return false;
    run.record_memory();
    run.test();
    run.finish();
    return true;
}

}  // namespace meshard
