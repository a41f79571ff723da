// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace meshard {

/// Returns a saved tensor when backward needs it.
using UnpackSaved = std::function<at::Tensor()>;

/// Called with each tensor that autograd saves for backward (detached); returns the function that restores it. An empty function: the tensor itself is kept.
using PackSaved = std::function<UnpackSaved(const at::Tensor&)>;

/// A guard: while it lives, `pack` is called with every tensor that autograd saves in this thread, plain or sharded. Of nested guards the innermost is used;
/// guards must be destroyed in the reverse order of their construction. Tensors saved under a guard are unpacked by its functions, also after it has been
/// destroyed.
class SavedTensorHooks {
public:
    explicit SavedTensorHooks(PackSaved pack);
    ~SavedTensorHooks();
    SavedTensorHooks(const SavedTensorHooks&) = delete;
    SavedTensorHooks& operator=(const SavedTensorHooks&) = delete;
};

struct OffloadOptions {
    std::int64_t least_bytes = 1 << 20;  ///< smaller tensors stay on the GPU: not worth the transfer
    bool page_locked = true;             ///< page-locked host memory, which cannot be swapped: copies run while the GPU computes
};

/// A guard: while it lives, tensors that autograd saves on a GPU are copied to host memory, and back when backward needs them. Tensors on the host stay
/// where they are, and so do parameters, which are on the GPU anyway. Of a sharded tensor this rank's part is copied.
class OffloadSavedTensors {
public:
    explicit OffloadSavedTensors(const OffloadOptions& options = {});

private:
    SavedTensorHooks hooks_;
};

/// The `pack` function of OffloadSavedTensors: copies the tensors for which `moves` returns true to host memory.
PackSaved offload_where(std::function<bool(const at::Tensor& local)> moves, bool page_locked);

}  // namespace meshard
