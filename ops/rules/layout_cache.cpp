// SPDX-License-Identifier: Apache-2.0
#include "ops/rules/layout_cache.h"

#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace meshard {
namespace {

// For each device mesh; beyond it all entries are dropped, on every rank in the same call.
constexpr std::size_t kMaxNotes = 4096;

struct Notes {
    std::weak_ptr<const DeviceMesh> mesh;
    std::map<std::vector<std::int64_t>, AxisLayouts> layouts;
};

std::mutex mutex;

std::map<const DeviceMesh*, Notes>& all_notes()
{
    static std::map<const DeviceMesh*, Notes> notes;
    return notes;
}

}  // namespace

void store_layout(const at::Tensor& tensor)
{
    if (!is_sharded(tensor) || !tensor.requires_grad()) return;
    const auto& spec = *spec_of(tensor);
    if (!spec.has_shard() || spec.has_partial()) return;
    const std::lock_guard lock(mutex);
    std::erase_if(all_notes(), [](const auto& entry) { return entry.second.mesh.expired(); });
    auto& notes = all_notes()[spec.device_mesh.get()];
    notes.mesh = spec.device_mesh;
    if (notes.layouts.size() >= kMaxNotes) notes.layouts.clear();
    notes.layouts[tensor.sizes().vec()] = spec.axes;
}

std::optional<AxisLayouts> find_layout(const RuleCall& call, c10::IntArrayRef sizes)
{
    const std::lock_guard lock(mutex);
    const auto notes = all_notes().find(call.device_mesh().get());
    if (notes == all_notes().end() || notes->second.mesh.expired()) return std::nullopt;
    const auto found = notes->second.layouts.find(sizes.vec());
    if (found == notes->second.layouts.end()) return std::nullopt;
    return found->second;
}

}  // namespace meshard
