// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/read_warnings.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace meshard {

namespace {

std::mutex warning_mutex;
std::function<void(const std::string&)> warning_handler;

}  // namespace

void set_read_warning_handler(std::function<void(const std::string&)> handler)
{
    const std::lock_guard lock(warning_mutex);
    warning_handler = std::move(handler);
}

void deliver_read_warnings(const std::vector<std::string>& warnings, const ReadOptions& options)
{
    const std::lock_guard lock(warning_mutex);
    for (auto warning = warnings.begin(); warning != warnings.end(); ++warning) {
        if (std::find(warnings.begin(), warning, *warning) != warning) continue;
        if (options.warnings != nullptr)
            options.warnings->push_back(*warning);
        else if (warning_handler)
            warning_handler(*warning);
    }
}

}  // namespace meshard
