// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace meshard {

/// Returns a saved tensor when backward needs it.
using UnpackSaved = std::function<at::Tensor()>;

/// Called with each tensor that autograd saves for backward (detached); returns the function that restores it, or an
/// empty function to keep the tensor itself.
using PackSaved = std::function<UnpackSaved(const at::Tensor&)>;

/// A saved tensor that stays where it is.
class KeptTensor {
public:
    KeptTensor() = default;
    explicit KeptTensor(at::Tensor tensor);

    bool defined() const { return tensor_.defined(); }

    /// @throws c10::Error, in LibTorch's words, if it was written to since
    at::Tensor take();

private:
    at::Tensor tensor_;
    std::int64_t num_writes_ = 0;
};

/// A guard: while it exists, `pack` is called with every tensor that autograd saves in this thread, plain or sharded.
/// The innermost of nested guards is used; guards must be destroyed in the reverse order of their construction. Tensors
/// saved under a guard are unpacked by its functions, also after it has been destroyed.
class SavedTensorHooks {
public:
    explicit SavedTensorHooks(PackSaved pack);
    ~SavedTensorHooks();
    SavedTensorHooks(const SavedTensorHooks&) = delete;
    SavedTensorHooks& operator=(const SavedTensorHooks&) = delete;
};

struct OffloadOptions {
    std::int64_t least_bytes = 1 << 20;  ///< smaller tensors stay on the GPU
    bool page_locked = true;             ///< use page-locked host memory, so that copies run while the GPU computes
    std::vector<at::Tensor> stay = {};   ///< tensors that stay on the GPU anyway, such as parameters
};

/// A guard: while it exists, tensors that autograd saves on a GPU are copied to host memory, and back when backward
/// needs them. Tensors on the host and those that stay are not copied. For a sharded tensor the local part is copied.
class OffloadSavedTensors {
public:
    explicit OffloadSavedTensors(const OffloadOptions& options = {});

private:
    SavedTensorHooks hooks_;
};

/// The `pack` function of OffloadSavedTensors: copies the tensors for which `moves` returns true to host memory.
PackSaved offload_where(std::function<bool(const at::Tensor& local)> moves, bool page_locked);

}  // namespace meshard
