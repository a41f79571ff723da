// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/step_profile.h"

#include "apps/console/text_table.h"
#include "partition/error.h"

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <exception>
#include <kineto/ActivityType.h>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshard {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

std::set<ActivityType> activities()
{
    std::set<ActivityType> all{ActivityType::CPU};
    if (at::hasCUDA()) all.insert(ActivityType::CUDA);
    return all;
}

constexpr std::string_view kMessages = "messages", kData = "data", kGraph = "graph";
constexpr std::string_view kPhases[] = {"forward", "backward", "optimizer", kMessages, kData, "validation", kGraph};

/// The phase that a range stands for; empty for other ranges and for operators.
std::string_view phase_of(const profiler::KinetoEvent& event)
{
    if (static_cast<libkineto::ActivityType>(event.activityType()) != libkineto::ActivityType::USER_ANNOTATION)
        return {};
    const auto name = event.name();
    if (name.find(" over ") != std::string::npos)
        return kMessages;  // `all_reduce over domain`, `wait for exchange over domain`
    const auto* const found = std::ranges::find(kPhases, name);
    return found == std::end(kPhases) ? std::string_view() : *found;
}

struct Cost {
    std::int64_t calls = 0, nanoseconds = 0;
};

struct Costs {
    std::map<std::string_view, Cost> phases;
    std::map<std::string, Cost> operators, kernels;
};

/// Sums the times of this thread's ranges and operators, each without what lies within it. Messages and data count as
/// such wherever they lie, all else as the outermost phase.
Costs costs_of(const std::vector<profiler::KinetoEvent>& events)
{
    using Kind = libkineto::ActivityType;
    Costs costs;
    std::vector<const profiler::KinetoEvent*> own;
    for (const auto& event : events) {
        const auto kind = static_cast<Kind>(event.activityType());
        if (kind == Kind::CONCURRENT_KERNEL || kind == Kind::GPU_MEMCPY || kind == Kind::GPU_MEMSET) {
            auto& cost = costs.kernels[event.name()];
            ++cost.calls;
            cost.nanoseconds += static_cast<std::int64_t>(event.durationNs());
        }
        const bool is_on_host = kind == Kind::CPU_OP || kind == Kind::USER_ANNOTATION;
        if (is_on_host && !event.isAsync() && event.startThreadId() == at::RecordFunction::currentThreadId())
            own.push_back(&event);
    }
    std::ranges::stable_sort(own, [](const auto* a, const auto* b) {
        return std::pair(a->startNs(), b->endNs()) < std::pair(b->startNs(), a->endNs());
    });

    struct Open {
        std::uint64_t end;
        std::string_view phase;
        Cost* as_operator;
    };
    std::vector<Open> open;
    for (const auto* event : own) {
        while (!open.empty() && open.back().end <= event->startNs()) open.pop_back();
        auto phase = phase_of(*event);
        if (!open.empty() && !open.back().phase.empty() && phase != kMessages && phase != kData)
            phase = open.back().phase;
        const bool is_operator = static_cast<Kind>(event->activityType()) == Kind::CPU_OP;
        auto* const as_operator = is_operator ? &costs.operators[event->name()] : nullptr;
        const auto duration = static_cast<std::int64_t>(event->durationNs());
        if (!phase.empty()) costs.phases[phase].nanoseconds += duration;
        if (as_operator) {
            ++as_operator->calls;
            as_operator->nanoseconds += duration;
        }
        if (!open.empty()) {
            if (!open.back().phase.empty()) costs.phases[open.back().phase].nanoseconds -= duration;
            if (open.back().as_operator) open.back().as_operator->nanoseconds -= duration;
        }
        open.push_back({event->endNs(), phase, as_operator});
    }
    return costs;
}

std::string milliseconds(std::int64_t nanoseconds)
{
    return fixed_text(static_cast<double>(nanoseconds) * 1e-6, 3);
}

std::string share(std::int64_t nanoseconds, std::int64_t total)
{
    return fixed_text(100 * static_cast<double>(nanoseconds) / static_cast<double>(std::max<std::int64_t>(total, 1)),
                      1) +
           " %";
}

TextTable table_of_phases(const std::map<std::string_view, Cost>& phases, std::int64_t total)
{
    TextTable table("lrr");
    table.add_row({"", "ms", "share"});
    auto left = total;
    for (const auto name : kPhases) {
        const auto found = phases.find(name);
        if (found == phases.end()) {
            if (name != kGraph) table.add_row({std::string(name), "none"});
            continue;
        }
        table.add_row(
            {std::string(name), milliseconds(found->second.nanoseconds), share(found->second.nanoseconds, total)});
        left -= found->second.nanoseconds;
    }
    table.add_row({"other", milliseconds(left), share(left, total)});
    table.add_row({"sum", milliseconds(total), share(total, total)});
    return table;
}

/// Lists the ten entries that took most time.
TextTable table_of_dearest(const std::string& what, const std::map<std::string, Cost>& costs, std::int64_t total)
{
    constexpr std::size_t kShown = 10, kLongest = 80;
    std::vector<std::pair<std::string, Cost>> dearest(costs.begin(), costs.end());
    std::ranges::stable_sort(dearest, std::greater<>(), [](const auto& one) { return one.second.nanoseconds; });
    dearest.resize(std::min(kShown, dearest.size()));
    TextTable table("lrrr");
    table.add_row({what, "calls", "ms", "share"});
    for (const auto& [name, cost] : dearest) {
        table.add_row({name.size() <= kLongest ? name : name.substr(0, kLongest - 3) + "...",
                       std::to_string(cost.calls), milliseconds(cost.nanoseconds), share(cost.nanoseconds, total)});
    }
    return table;
}

}  // namespace

StepProfile::StepProfile(std::int64_t num_steps, std::filesystem::path path, TrainingLog& log)
    : num_steps_(num_steps), path_(std::move(path)), log_(log)
{
}

StepProfile::~StepProfile()
{
    try {
        if (is_recording_) profiler::disableProfiler();
    } catch (const std::exception&) {  // the run ends with an error of its own
    }
}

void StepProfile::next_step()
{
    if (num_steps_ == 0) return;
    ++num_begun_;
    if (num_begun_ == 2) {
        const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
        profiler::prepareProfiler(config, activities());
        profiler::enableProfiler(config, activities());
        is_recording_ = true;
        begin_ = std::chrono::steady_clock::now();
    }
    if (num_begun_ == num_steps_ + 2) finish();
}

void StepProfile::finish()
{
    if (num_steps_ == 0 || std::exchange(is_finished_, true)) return;
    if (!std::exchange(is_recording_, false)) {
        log_.say("--profile has traced nothing: it leaves out the first step, and no other came");
        return;
    }
    const std::int64_t total = std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin_).count();
    const auto trace = profiler::disableProfiler();
    const auto costs = costs_of(trace->events());
    const auto num_traced = std::min(num_begun_ - 1, num_steps_);
    std::ostringstream text;
    text << "profile of " << count_text(num_traced, "step") << " on rank 0, in the host's time\n"
         << table_of_phases(costs.phases, total)
         << table_of_dearest("operator (without those it calls)", costs.operators, total);
    if (!costs.kernels.empty()) text << table_of_dearest("kernel (the device's time)", costs.kernels, total);
    log_.say(text.str() + "a trace of each rank's steps lies in " + path_.parent_path().string());

    std::error_code error;
    std::filesystem::create_directories(path_.parent_path(), error);
    auto unfinished = path_;
    unfinished += ".unfinished";
    if (!error) {
        trace->save(unfinished.string());
        std::filesystem::rename(unfinished, path_, error);
    }
    if (error) throw IoError("--profile: {} cannot be written: {}.", path_.string(), error.message());
}

}  // namespace meshard
