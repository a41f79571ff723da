// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/read_warnings.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

namespace meshard {

namespace {

using ReadWarningHandler = std::function<void(const std::string&)>;

std::mutex warning_mutex;
std::shared_ptr<const ReadWarningHandler> warning_handler;

}  // namespace

void set_read_warning_handler(std::function<void(const std::string&)> handler)
{
    auto shared = handler ? std::make_shared<const ReadWarningHandler>(std::move(handler)) : nullptr;
    const std::lock_guard lock(warning_mutex);
    warning_handler = std::move(shared);
}

void deliver_read_warnings(const std::vector<std::string>& warnings, const ReadOptions& options)
{
    std::shared_ptr<const ReadWarningHandler> handler;
    {
        const std::lock_guard lock(warning_mutex);
        handler = warning_handler;
    }
    for (auto warning = warnings.begin(); warning != warnings.end(); ++warning) {
        if (std::find(warnings.begin(), warning, *warning) != warning) continue;
        if (options.warnings != nullptr)
            options.warnings->push_back(*warning);
        else if (handler)
            (*handler)(*warning);
    }
}

}  // namespace meshard
