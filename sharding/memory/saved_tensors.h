// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

namespace meshard {

/// Gives a saved tensor back when backward asks for it.
using UnpackSaved = std::function<at::Tensor()>;

/// Takes over a tensor that autograd saves for backward; the tensor has no history. An empty function: keep it as it is.
using PackSaved = std::function<UnpackSaved(const at::Tensor&)>;

/// While it lives, every tensor that autograd saves in this thread, plain or sharded, goes through `pack`. The innermost one counts; guards
/// end in the reverse order of their making. What was saved under it is unpacked by it later too, also after it has ended.
class SavedTensorHooks {
public:
    explicit SavedTensorHooks(PackSaved pack);
    ~SavedTensorHooks();
    SavedTensorHooks(const SavedTensorHooks&) = delete;
    SavedTensorHooks& operator=(const SavedTensorHooks&) = delete;
};

struct OffloadOptions {
    std::int64_t least_bytes = 1 << 20;   ///< smaller tensors stay: their transfer costs more than they hold
    bool page_locked = true;              ///< copies that run beside the computation; takes memory that cannot be swapped
};

/// Moves what autograd saves while it lives from a GPU to host memory, and back when backward asks for it. Tensors on the host stay
/// where they are, and so do parameters, which are on the GPU anyway. A sharded tensor's own part moves.
class OffloadSavedTensors {
public:
    explicit OffloadSavedTensors(const OffloadOptions& options = {});

private:
    SavedTensorHooks hooks_;
};

/// The function that OffloadSavedTensors saves by, for the tensors that `moves` chooses.
PackSaved offload_where(std::function<bool(const at::Tensor& local)> moves, bool page_locked);

}  // namespace meshard
