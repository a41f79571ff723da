// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/checkpoints/kept_checkpoints.h"

#include "io/bytes/atomic_file.h"
#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <system_error>
#include <vector>

namespace meshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeights = ".safetensors";
constexpr const char* kDescription = ".json";

std::string name_of_epoch(std::int64_t epoch)
{
    return fmt::format("epoch_{:06}", epoch);
}

/// Lists the epochs of the checkpoints epoch_N.safetensors, in order.
std::vector<std::int64_t> epochs_in(const fs::path& folder)
{
    std::vector<std::int64_t> epochs;
    for (const auto& entry : fs::directory_iterator(folder)) {
        const auto name = entry.path().filename().string();
        if (!name.starts_with("epoch_") || entry.path().extension() != kWeights) continue;
        const auto epoch = std::atoll(name.c_str() + 6);
        if (name == name_of_epoch(epoch) + kWeights) epochs.push_back(epoch);
    }
    std::ranges::sort(epochs);
    return epochs;
}

/// Makes a second name of a file appear at once, in place of an earlier file of that name.
void give_second_name(const fs::path& named_from, const fs::path& named_to)
{
    const auto from = followed_links(named_from),
               to = followed_links(named_to);  // a second name of a link would change with what it leads to
    const fs::path partial = to.string() + ".partial";
    std::error_code error;
    fs::remove(partial, error);
    fs::create_hard_link(from, partial, error);
    if (error) fs::copy_file(from, partial, fs::copy_options::overwrite_existing, error);
    if (!error) fs::rename(partial, to, error);
    if (!error) return;
    std::error_code ignored;
    fs::remove(partial, ignored);
    throw IoError("{} cannot be made of {}: {}.", to.string(), from.string(), error.message());
}

}  // namespace

void keep_last_checkpoint(const fs::path& folder, std::int64_t epoch, const KeptCheckpoints& kept)
{
    const auto is_snapshot = [&](std::int64_t one) {
        return kept.snapshot_interval > 0 && one % kept.snapshot_interval == 0;
    };
    if (kept.num_last > 0 || is_snapshot(epoch)) {
        for (const auto* extension : {kWeights, kDescription})
            give_second_name(folder / (std::string("last") + extension), folder / (name_of_epoch(epoch) + extension));
    }
    if (kept.num_last == 0) return;
    const auto epochs = epochs_in(folder);
    for (std::size_t i = 0; i + static_cast<std::size_t>(kept.num_last) < epochs.size(); ++i) {
        if (is_snapshot(epochs[i])) continue;
        std::error_code ignored;  // what stays is in nobody's way
        // The weights last: by them the next removal finds what one that was interrupted has left.
        for (const auto* extension : {kDescription, kWeights})
            fs::remove(folder / (name_of_epoch(epochs[i]) + extension), ignored);
    }
}

}  // namespace meshard
