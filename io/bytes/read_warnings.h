// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/io_options.h"

#include <functional>
#include <string>
#include <vector>

namespace meshard {

/// Sets the handler for warnings of readers whose caller gave no list for them (`ReadOptions::warnings`), for the whole
/// process; without a handler they are dropped. A warning is one sentence without its full stop, which begins with the
/// file's name. Several threads may call the handler at once.
void set_read_warning_handler(std::function<void(const std::string&)> handler);

/// Passes each warning once, to the list of `options` or else to the handler.
void deliver_read_warnings(const std::vector<std::string>& warnings, const ReadOptions& options);

}  // namespace meshard
