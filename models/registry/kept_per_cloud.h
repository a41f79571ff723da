// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>

namespace meshard {

/// Caches what was computed from a tensor of positions as long as that tensor exists, so that clouds that do not move
/// are searched once.
template <class Value>
class KeptPerCloud {
public:
    /// @param make   computes the value for new positions
    template <class Make>
    const Value& of(const at::Tensor& positions, const Make& make)
    {
        std::erase_if(entries_, [](const auto& item) { return item.second.positions.expired(); });
        const auto* key = positions.unsafeGetTensorImpl();
        if (const auto found = entries_.find(key); found != entries_.end()) return found->second.value;
        return entries_.emplace(key, Entry{WeakTensor(positions.getIntrusivePtr()), make()}).first->second.value;
    }

private:
    using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
    struct Entry {
        WeakTensor positions;
        Value value;
    };
    std::map<const c10::TensorImpl*, Entry> entries_;
};

}  // namespace meshard
