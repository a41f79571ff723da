// SPDX-License-Identifier: Apache-2.0
#include "apps/console/error_text.h"

#include "sharding/transport/launch.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string_view>

namespace meshard {

std::string error_text(const std::exception& error)
{
    const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
    std::string text = of_torch ? of_torch->what_without_backtrace() : error.what();
    // An exception that quotes another one contains its backtrace, and LibTorch's out-of-memory message goes on with
    // usage figures; both are cut off.
    for (const std::string_view beginning :
         {"\nException raised from ", "\nframe #", "\nC++ CapturedTraceback:", " Including non-PyTorch memory,"})
        text.erase(std::min(text.size(), text.find(beginning)));
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return dynamic_cast<const c10::OutOfMemoryError*>(&error) ? "out of memory: " + text : text;
}

void tell_other_ranks(const std::string& message)
{
    report_failure_to_ranks(message);
}

}  // namespace meshard
