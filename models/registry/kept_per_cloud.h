// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace meshard {

/// Which tensor it is, and how often it was written to. Writes to a tensor made in inference mode, which LibTorch does
/// not count, go unseen.
struct TensorState {
    const at::TensorImpl* tensor = nullptr;
    std::int64_t num_writes = 0;

    static TensorState of(const at::Tensor& one)
    {
        return {one.unsafeGetTensorImpl(), one.defined() && !one.is_inference() ? one._version() : 0};
    }
    bool operator==(const TensorState&) const = default;
};

/// Returns whether what is computed from the tensor now has derivatives by it.
inline bool has_derivatives(const at::Tensor& tensor)
{
    return at::GradMode::is_enabled() && tensor.defined() && tensor.requires_grad();
}

/// Caches what was computed from a tensor of positions, and others, as long as the positions exist and none is written
/// to, so that clouds that do not move are searched once. What has derivatives is computed for each call.
template <class Value>
class KeptPerCloud {
public:
    /// Returns the value for these positions. Several threads may call it.
    /// @param others   other tensors from which it is computed
    /// @param make     computes the value
    template <class Make>
    std::shared_ptr<const Value> of(const at::Tensor& positions, const std::vector<at::Tensor>& others,
                                    const Make& make)
    {
        const auto* key = positions.unsafeGetTensorImpl();
        std::vector<TensorState> states{TensorState::of(positions)};
        bool is_kept = !has_derivatives(positions);
        for (const auto& other : others) {
            states.push_back(TensorState::of(other));
            is_kept = is_kept && !has_derivatives(other);
        }
        if (!is_kept) return std::make_shared<const Value>(make());
        {
            const std::lock_guard one_at_a_time(in_use_);
            std::erase_if(entries_, [](const auto& item) { return item.second.positions.expired(); });
            const auto found = entries_.find(key);
            if (found != entries_.end() && found->second.states == states) return found->second.value;
        }
        auto value = std::make_shared<const Value>(make());  // may take long, and wait for other ranks
        const std::lock_guard one_at_a_time(in_use_);
        entries_.insert_or_assign(key,
                                  Entry{WeakTensor(positions.getIntrusivePtr()), std::move(states), others, value});
        return value;
    }

private:
    using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
    struct Entry {
        WeakTensor positions;
        std::vector<TensorState> states;  // of the positions and the others, when the value was computed
        std::vector<at::Tensor> others;   // held, so that no new tensor has their address
        std::shared_ptr<const Value> value;
    };
    std::mutex in_use_;
    std::map<const c10::TensorImpl*, Entry> entries_;
};

}  // namespace meshard
