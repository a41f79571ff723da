// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/training_steps.h"

#include "apps/learning/checkpoints/kept_checkpoints.h"
#include "apps/learning/steps/augmentation.h"
#include "apps/learning/training/roll_out.h"
#include "apps/learning/training/schedule.h"
#include "apps/learning/training/split_errors.h"
#include "apps/learning/training/step_profile.h"
#include "models/layers/random_draws.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace meshard {
namespace {

/// An event that has its time, of what the device's current stream has been given up to now.
std::shared_ptr<c10::Event> recorded_on(const at::Device& device)
{
    auto event = std::make_shared<c10::Event>(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    return event;
}

using Json = nlohmann::ordered_json;

// Seeds of neighbouring steps and data groups must not be neighbours.
constexpr std::uint64_t kStepStride = 0xD1B54A32D192ED03, kGroupStride = 0x8CB92BA72F3D8DD7;

constexpr double kMuchWaiting = 0.05;  // share of the steps' time

}  // namespace

StepSummary::StepSummary(at::Tensor own, const RankGroup& ranks)
{
    ranks.all_reduce(own);
    host_ = own;
    if (own.is_cpu()) return;
    host_ = at::empty(own.sizes(), at::TensorOptions(at::kDouble).pinned_memory(true));
    host_.copy_(own, /*non_blocking=*/true);
    copied_ = recorded_on(own.device());
}

std::shared_ptr<const c10::Event> StepSummary::beginning(const at::Device& device)
{
    return device.is_cpu() ? nullptr : recorded_on(device);
}

std::optional<double> StepSummary::seconds_since(const std::shared_ptr<const c10::Event>& beginning) const
{
    if (!copied_ || !beginning) return std::nullopt;
    wait();
    return beginning->elapsedTime(*copied_) * 1e-3;
}

void StepSummary::wait() const
{
    if (copied_ && !std::exchange(is_there_, true)) copied_->synchronize();
}

double StepSummary::number(std::int64_t i) const
{
    wait();
    return host_.const_data_ptr<double>()[i];
}

TrainingSteps::TrainingSteps(Run& run) : run_(run), training_(run.config.training), first_step_(run.progress.num_steps)
{
    if (run.config.balances_ranks && run.ranks.domain->num_ranks() > 1) {
        balance_.emplace(run.ranks.num_groups, run.ranks.domain->num_ranks(),
                         [&cases = run.data.training_cases()](const Shares& wanted) { return cases.attained(wanted); });
        if (balance_->go_on_with(run.progress.rank_shares)) run_.data.share_out(balance_->of_group(run.ranks.group));
    }
    read_from(first_step_);
}

/// Reads the examples of the steps to come.
void TrainingSteps::read_from(std::int64_t first_step)
{
    examples_.emplace(run_.data, &RunCases::train,
                      unrolled_turns(run_.data.order().turns(first_step, run_.num_steps_limit()), run_.data));
}

LoopEnd TrainingSteps::train(const volatile std::sig_atomic_t& stop_requested, std::int64_t profile_steps)
{
    auto& num_done = run_.progress.num_steps;
    const auto& config = run_.config;
    StepProfile profile(profile_steps,
                        config.run_dir() / "profile" / fmt::format("rank_{}.json", run_.ranks.world.rank()), run_.log);
    run_.model.module().train();
    while (!run_.is_over()) {
        const auto epoch = epoch_of(num_done + 1);
        if (num_done % run_.data.steps_per_epoch() == 0) begin_epoch();
        profile.next_step();
        const bool is_out_of_time =
            training_.max_minutes > 0 && Run::seconds_since(run_.start) > 60 * training_.max_minutes;
        under_way_.push_back(begin_step(stop_requested != 0 ? StepSummary::kInterrupted
                                        : is_out_of_time    ? StepSummary::kOutOfTime
                                                            : 0));
        ++num_done;
        const bool ends_epoch = num_done % run_.data.steps_per_epoch() == 0 || num_done == run_.num_steps_limit();
        // A device computes while the host prepares the next step: the loss of a step is read when the next one is
        // queued.
        const auto stop = finish_steps(run_.ranks.device().is_cpu() || ends_epoch ? 0 : 1);
        if (ends_epoch) end_epoch(epoch, stop != LoopEnd::Done);
        if (stop == LoopEnd::Done || run_.is_over()) continue;
        profile.finish();
        finish_steps(0);
        if (!ends_epoch) save(run_, "last", {});
        run_.log.say("{}stopped after step {}; go on with --resume {}",
                     stop == LoopEnd::OutOfTime ? "training.max_minutes are over: " : "", num_done,
                     config.run_dir().string());
        return stop;
    }
    profile.finish();
    return LoopEnd::Done;
}

void TrainingSteps::begin_epoch()
{
    epoch_start_ = Clock::now();
    seconds_in_epoch_ = 0;
    seconds_waited_ = 0;
    run_.progress.epoch_loss_sum = 0;
    run_.progress.num_left_out = 0;
}

/// Computes the next step, or on a device queues it. @param wish   what this rank tells the others (`StepSummary`)
TrainingSteps::PendingStep TrainingSteps::begin_step(double wish)
{
    const auto num_done = run_.progress.num_steps;
    const auto cases = run_.data.order().cases_of_step(num_done);
    PendingStep next;
    next.number = num_done + 1;
    next.index = cases[0].index;
    next.num_counted = run_.data.order().cases_in_step(num_done);
    next.rate = learning_rate(training_, num_done, run_.num_steps()) * run_.progress.plateau.factor;
    next.start = Clock::now();
    next.start_on_device = StepSummary::beginning(run_.ranks.device());
    const auto waited_before = run_.ranks.mesh->counter().seconds_waited();
    within_memory([&] { return run_.model.load_of("a training step", run_.data.training_cases(), next.index, true); },
                  [&] { step(cases, next, wish); });
    if (balance_) {
        const auto waited = run_.ranks.mesh->counter().seconds_waited() - waited_before + next.seconds_waited;
        balance_->add_step(Run::seconds_since(next.start) - waited);
    }
    return next;
}

void TrainingSteps::step(const std::vector<StepCase>& cases, PendingStep& under_way, double wish)
{
    auto& update = run_.model.update();
    const auto& config = run_.config;
    if (training_.scheduler == "one_cycle")
        update.optimizers().set_first_beta(first_beta_in_cycle(under_way.number - 1, run_.num_steps()));
    run_.model.begin_step();
    std::vector<at::Tensor> losses;
    const auto waited_before = examples_->seconds_waited();
    for (const auto& [index, time, slot, weight] : cases) {
        auto steps = next_steps(*examples_, run_.data.num_unrolled(index, epoch_of(under_way.number)));
        if (const auto& augmentation = training_.augmentation; augmentation.is_any()) {
            for (auto& part : steps.front())
                part = mapped_case(part, drawn_map(augmentation, config.data.frame.up, config.seed, time, part.id),
                                   augmentation, config.data);
        }
        const auto seed = static_cast<std::uint64_t>(config.seed) +
                          kStepStride * static_cast<std::uint64_t>(under_way.number) +
                          kGroupStride * static_cast<std::uint64_t>(slot);
        seed_draws(run_.model.module(), seed);
        run_.model.set_sync(losses.size() + 1 == cases.size());  // gradients are exchanged once a step
        const auto& source = run_.data.training_cases().sources()[index];
        losses.push_back(run_.model.loss_with_gradients(steps, run_.data.frame_of(source), weight, seed, run_.log));
    }
    under_way.seconds_waited = examples_->seconds_waited() - waited_before;
    UpdateOutcome outcome;
    {
        RECORD_USER_SCOPE("optimizer");
        outcome = update.apply(under_way.rate, losses);
        run_.model.settle_statistics(outcome.is_taken);
    }
    under_way.is_taken = outcome.is_taken;
    under_way.next_loss_scale = update.loss_scale();
    under_way.news = {local_summary(cases, losses, wish, outcome.gradient_norm), run_.ranks.all()};
}

/// Puts all that the ranks must know of each other into one message: the loss over all points, averaged over the step's
/// cases, a wish to stop, and the gradients' norm, which one rank contributes. A loss that no rank has a share of, but
/// each the whole, counts on one rank of a group.
at::Tensor TrainingSteps::local_summary(const std::vector<StepCase>& cases, const std::vector<at::Tensor>& losses,
                                        double wish, const at::Tensor& gradient_norm) const
{
    const auto options = to_local(losses[0]).options().dtype(torch::kDouble);
    const auto number = [&](double value) { return torch::full({}, value, options); };  // no copy from the host
    at::Tensor sum;
    for (std::size_t i = 0; i < losses.size(); ++i) {
        const bool is_pending = is_sharded(losses[i]) && spec_of(losses[i])->has_partial();
        if (!is_pending && run_.ranks.domain->all().rank() != 0) continue;
        const auto share =
            to_local(losses[i]).to(torch::kDouble) * cases[i].weight / static_cast<double>(run_.ranks.num_groups);
        sum = sum.defined() ? sum + share : share;
    }
    std::vector<at::Tensor> numbers{sum.defined() ? sum : number(0), number(wish)};
    if (gradient_norm.defined()) numbers.push_back(run_.ranks.is_first() ? gradient_norm : number(0));
    return torch::stack(numbers);
}

/// Reads the news of steps until so many are under way. Returns whether a rank wants to stop, and why.
LoopEnd TrainingSteps::finish_steps(std::size_t num_left)
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

void TrainingSteps::finish_step(const PendingStep& step)
{
    const auto loss = step.news.loss();
    // A device is asked for its own time: the host goes on while it computes.
    const auto seconds =
        step.news.seconds_since(step.start_on_device).value_or(Run::seconds_since(std::max(step.start, last_news_)));
    last_news_ = Clock::now();
    const bool is_left_out =
        training_.max_skipped_steps > 0 && !step.is_taken && !(step.next_loss_scale && std::isfinite(loss));
    if (is_left_out) {
        leave_out(step, loss);
    } else if (!std::isfinite(loss)) {
        const auto remedy =
            step.number == 1
                ? "The weights are still the initial ones: look at the numbers of this case, or change the model's "
                  "settings"
                : fmt::format("Lower training.optimizer.lr (now {:g}) or add training.scheduler.warmup_steps",
                              training_.learning_rate);
        throw Error("training: the loss became {} in step {} (epoch {}, case {}). {}.",
                    std::isnan(loss) ? "NaN" : "infinite", step.number, epoch_of(step.number),
                    run_.data.training_cases().id(step.index), remedy);
    } else {
        run_.progress.num_skipped = 0;
        run_.progress.epoch_loss_sum += loss * static_cast<double>(step.num_counted);
    }
    seconds_in_epoch_ += seconds;
    seconds_in_steps_ += seconds;
    seconds_waited_ += step.seconds_waited;
    points_done_ += run_.data.points_in_step(step.index) * step.num_counted;
    record_step(step, loss, seconds, is_left_out);
}

/// Counts a step whose loss or gradients are not finite, and ends the run where too many were left out in a row.
void TrainingSteps::leave_out(const PendingStep& step, double loss)
{
    run_.progress.num_left_out += step.num_counted;
    ++run_.progress.num_skipped;
    std::string cases;
    for (const auto index : run_.data.order().counted_in_step(step.number - 1))
        cases += (cases.empty() ? "case " : ", ") + run_.data.training_cases().id(index);
    const auto what = fmt::format("{} not finite in step {} (epoch {}, {})",
                                  std::isfinite(loss) ? "the gradients are" : "the loss is", step.number,
                                  epoch_of(step.number), cases);
    run_.log.say(what + "; the step is left out");
    if (run_.progress.num_skipped <= training_.max_skipped_steps) return;
    throw Error("training: {}, and {} steps in a row were left out; training.max_skipped_steps is {}. Look "
                "at these cases, lower "
                "training.optimizer.lr or set training.clip_norm.",
                what, run_.progress.num_skipped, training_.max_skipped_steps);
}

void TrainingSteps::record_step(const PendingStep& step, double loss, double seconds, bool is_left_out)
{
    const auto limit = run_.num_steps_limit(), per_epoch = run_.data.steps_per_epoch(), epoch = epoch_of(step.number);
    if (step.number % run_.config.log_interval == 0 || step.number == limit) {
        Json line{{"phase", "train_step"}, {"step", step.number}, {"epoch", epoch},
                  {"loss", loss},          {"lr", step.rate},     {"seconds", seconds}};
        if (run_.data.order().cases_per_step() == 1) line["case"] = run_.data.training_cases().id(step.index);
        if (step.next_loss_scale) line["loss_scale"] = *step.next_loss_scale;
        if (training_.clip_norm > 0) line["grad_norm"] = step.news.gradient_norm();
        if (is_left_out) line["left_out"] = true;
        if (!run_.data.is_kept()) line["data_wait"] = std::min(1.0, step.seconds_waited / seconds);
        run_.log.record(line);
    }
    const auto seconds_left = Run::seconds_since(start_) / static_cast<double>(step.number - first_step_) *
                              static_cast<double>(limit - step.number);
    run_.log.progress(fmt::format("epoch {}/{} [{}/{}] loss {:.4g} lr {:.2e} {:.3f} s/step {:.3g} points/s, {} left",
                                  epoch, training_.num_epochs, (step.number - 1) % per_epoch + 1, per_epoch, loss,
                                  step.rate, seconds, static_cast<double>(points_done_) / seconds_in_steps_,
                                  duration_text(seconds_left)),
                      false);
}

/// Draws from the error of a validation what it means for the steps to come.
void TrainingSteps::check_error(double error)
{
    if (training_.scheduler == "plateau" && lowers_rate(run_.progress.plateau, error, training_)) {
        run_.log.say("the error has not fallen for {} validations: the learning rate is multiplied by {:g}",
                     training_.plateau_patience + 1, training_.gamma);
    }
    if (training_.stop_patience > 0 && ends_run(run_.progress.early_stop, error, training_))
        run_.log.say("the error has not fallen for {} validations: the run ends early", training_.stop_patience);
}

/// Returns the share of the epoch's steps that the rank waited for cases which waited longest: the others then wait for
/// it.
double TrainingSteps::share_waited() const
{
    if (run_.data.is_kept()) return 0;
    auto seconds = torch::full({1}, seconds_waited_, torch::kDouble);
    run_.ranks.all().all_reduce(seconds, Reduction::Max);
    return std::min(1.0, seconds.item<double>() / seconds_in_epoch_);
}

/// Deals the rows of the cases anew where a rank computes longer than the others. Returns text for the epoch's line.
std::string TrainingSteps::balance_ranks()
{
    if (!balance_ || run_.is_over() || !balance_->update(run_.ranks.all())) return {};
    examples_.reset();  // it may have read ahead rows that other ranks have from now on
    run_.data.share_out(balance_->of_group(run_.ranks.group));
    read_from(run_.progress.num_steps);
    run_.progress.rank_shares = balance_->shares();
    return fmt::format(", shares {:.2f}", fmt::join(balance_->shares(), " "));
}

/// @param stops   whether the run is interrupted after it
void TrainingSteps::end_epoch(std::int64_t epoch, bool stops)
{
    auto& progress = run_.progress;
    const auto& order = run_.data.order();
    const auto num_steps = (progress.num_steps - 1) % order.steps_per_epoch() + 1;
    const auto num_counted =
        std::min(num_steps * order.cases_per_step(), run_.data.num_in_epoch()) - progress.num_left_out;
    const auto mean_loss = num_counted > 0 ? progress.epoch_loss_sum / static_cast<double>(num_counted)
                                           : std::numeric_limits<double>::quiet_NaN();
    Json line{{"phase", "train"},
              {"epoch", epoch},
              {"loss", mean_loss},  // null where all steps were left out
              {"steps", num_steps},
              {"seconds_in_steps", seconds_in_epoch_}};
    const auto wait = share_waited();
    if (!run_.data.is_kept()) line["data_wait"] = wait;
    if (balance_) line["shares"] = balance_->shares();
    run_.log.record(line);
    const bool is_last = epoch == training_.num_epochs || progress.num_steps == training_.max_steps;

    auto text = fmt::format("epoch {}: loss {:.5g}", epoch, mean_loss);
    if (wait > kMuchWaiting)
        text += fmt::format(", {:.0f} % of the steps' time was spent waiting for cases to be read", 100 * wait);
    text += balance_ranks();
    Json errors;
    HeldOutErrors held_out;
    auto error = std::numeric_limits<double>::infinity();
    if (run_.data.stored().val.size() == 0) {
        error = mean_loss;
    } else if (is_last || epoch % training_.val_interval == 0) {
        const auto found = split_errors(run_, &RunCases::val, "val");
        errors = error_json(run_, found);
        held_out = HeldOutErrors::of_split(found.judged.front(), "val");
        record_errors(run_, found, "val", epoch);
        const auto fields = run_.data.fields();
        for (std::size_t f = 0; f < fields.size(); ++f)
            text += fmt::format(", val {} {:.4f}", fields[f].name, found.relative_l2[f]);
        text += roll_out_text(found) + drag_text(found.judged.front());
        error = found.mean();
    }
    // An epoch that was cut short is not one that a run without a stop has, and its mean loss is one of other cases.
    const bool is_whole = num_steps == order.steps_per_epoch();
    const bool is_comparable = (is_whole && num_counted > 0) || run_.data.stored().val.size() > 0;
    const bool is_best = is_comparable ? error < progress.best_error : std::isinf(progress.best_error);
    if (is_comparable) progress.best_error = std::min(progress.best_error, error);
    if (!errors.is_null() && is_whole) check_error(error);
    if (is_best) save(run_, "best", errors, held_out);  // first: `last` says which error it has
    const KeptCheckpoints kept{training_.num_kept, training_.snapshot_interval};
    const bool is_snapshot = kept.snapshot_interval > 0 && epoch % kept.snapshot_interval == 0;
    const bool is_kept =
        is_last || is_snapshot || is_over(progress.early_stop, training_) || epoch % training_.save_interval == 0;
    if (is_kept || stops) save(run_, "last", errors, held_out);
    if (is_kept && run_.ranks.is_first()) keep_last_checkpoint(run_.config.run_dir() / "checkpoints", epoch, kept);
    run_.log.say(text + fmt::format(", {:.1f} s", Run::seconds_since(epoch_start_)));
}

}  // namespace meshard
