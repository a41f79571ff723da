// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/device_mesh.h"

#include <cstdint>
#include <memory>

namespace torch::nn {
class Module;
}

namespace meshard {

struct ReplicateOptions {
    std::int64_t bucket_bytes = 4 << 20;  ///< approximate size of the messages in which gradients are reduced
    /// Check that parameters and buffers equal those of the source rank bit by bit, instead of copying them.
    bool verify_at_start = false;
    int source_rank = 0;  ///< within the device mesh
};

class NoSync;

/// Keeps a module's parameters equal on all ranks of a device mesh, by hooks that exist until this object is destroyed.
///
/// Backward gives each parameter the gradient of the whole loss, summed over all axes but `data` (each rank holds its
/// share of one loss) and averaged over `data` (each group has its own loss). Gradients are reduced in buckets, in the
/// order in which backward computes them, while backward still runs, the last at its end; when `backward()` returns,
/// every `grad()` is plain and complete. A parameter that no rank has used keeps an undefined gradient.
///
/// Hooks on a parameter see the gradient of the whole as a sharded tensor, and `autograd::grad` returns one. Hooks
/// after the accumulation run at the end of backward, when the gradient is complete.
///
/// A parameter that is combined with plain tensors gets a plain gradient. If the result enters `from_local` as part of
/// a sharded tensor, the gradient is this rank's share, and the shares are summed; otherwise it must be equal on all
/// ranks of a domain, since it counts once. `backward()` throws InvalidInput on every rank, naming the parameter, if it
/// is not equal (as for rows that `to_local` returned), or if it is the sum of both kinds.
class ReplicatedModule {
public:
    ~ReplicatedModule();
    ReplicatedModule(ReplicatedModule&&) noexcept;

    /// While off, backward only accumulates this rank's own shares; the next backward with sync on reduces them all.
    void set_sync(bool on);

    /// Turns sync off during the lifetime of the result.
    [[nodiscard]] NoSync no_sync();

private:
    friend NoSync;
    friend ReplicatedModule replicate(torch::nn::Module&, std::shared_ptr<const DeviceMesh>, const ReplicateOptions&);
    struct Impl;
    struct BeforeAccumulation;
    struct BehindAccumulation;
    struct Attachment;
    class EndOfBackward;
    explicit ReplicatedModule(std::shared_ptr<Impl> impl);
    std::shared_ptr<Impl> impl_;
};

/// A guard that turns the reduction of gradients off.
class NoSync {
public:
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

private:
    friend ReplicatedModule;
    explicit NoSync(std::shared_ptr<ReplicatedModule::Impl> impl);
    std::shared_ptr<ReplicatedModule::Impl> impl_;
    bool before_;
};

/// Replicates a module. Sharded parameters are skipped. Collective over exactly the ranks of `device_mesh`.
/// @throws InvalidInput on every rank if the ranks' parameters differ in number, shape or type, or one is replicated
/// already; with `verify_at_start` if any bit differs, naming the tensor and the rank.
ReplicatedModule replicate(torch::nn::Module& module, std::shared_ptr<const DeviceMesh> device_mesh,
                           const ReplicateOptions& options = {});

}  // namespace meshard
