// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/usable_input.h"

#include "apps/console/console.h"
#include "apps/console/error_text.h"
#include "io/bytes/interruption.h"
#include "sharding/ranks/rank_group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace meshard {

void read_together(const RankGroup& ranks, const std::function<void()>& work)
{
    std::string fault;
    int code = exit_code::ok;
    try {
        work();
    } catch (const UsageError&) {
        throw;
    } catch (const Interrupted&) {
        throw;
    } catch (const std::exception& error) {
        fault = without_function_name(error_text(error));
        code = exit_code_of_current_error();
    }
    const std::array<std::int64_t, 2> own{code, std::ssize(fault)};
    const auto all = ranks.all_gather_integers(own);
    const auto failed = std::ranges::find_if(all, [](const auto& rank) { return rank[0] != exit_code::ok; });
    if (failed == all.end()) return;
    auto text = at::empty({(*failed)[1]}, at::kByte);
    std::copy(fault.begin(), fault.begin() + std::min(std::ssize(fault), text.numel()),
              text.mutable_data_ptr<std::uint8_t>());
    if (ranks.size() > 1) ranks.broadcast(text, static_cast<int>(failed - all.begin()));
    const auto* letters = text.const_data_ptr<std::uint8_t>();
    throw UnusableInput(std::string(letters, letters + text.numel()), static_cast<int>((*failed)[0]));
}

}  // namespace meshard
