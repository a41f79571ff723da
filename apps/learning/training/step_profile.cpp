// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/step_profile.h"

#include "partition/error.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <exception>
#include <set>
#include <utility>

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

}  // namespace

StepProfile::StepProfile(std::int64_t num_steps, std::filesystem::path path) : num_steps_(num_steps), path_(std::move(path)) {}

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
    }
    if (num_begun_ == num_steps_ + 2) finish();
}

void StepProfile::finish()
{
    if (!std::exchange(is_recording_, false)) return;
    const auto trace = profiler::disableProfiler();
    std::error_code error;
    std::filesystem::create_directories(path_.parent_path(), error);
    auto unfinished = path_;
    unfinished += ".unfinished";
    if (!error) {
        trace->save(unfinished.string());
        std::filesystem::rename(unfinished, path_, error);
    }
    if (error) throw IoError("--profile: " + path_.string() + " cannot be written: " + error.message() + ".");
}

}  // namespace meshard
