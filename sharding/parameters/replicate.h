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
    std::int64_t bucket_bytes = 4 << 20;  ///< gradients are reduced in messages of about this size
    bool broadcast_at_start = true;       ///< parameters and buffers become those of the source rank
    bool verify_at_start = false;         ///< instead: they are checked to be those of the source rank, bit by bit; nothing changes
    int source_rank = 0;                  ///< within the device mesh
};

class NoSync;

/// Keeps a module's parameters the same on every rank of a device mesh: the hooks of `replicate`, until destroyed.
///
/// Backward gives each parameter its gradient of the whole loss, summed over all axes but `data` (each rank holds its share of one
/// loss) and averaged over `data` (each group has a loss of its own). Gradients are reduced in buckets, in the order in which backward
/// makes them, while backward still runs; when `backward()` returns, every `grad()` is plain and complete. A parameter that takes no
/// part keeps an undefined gradient if that is so on all ranks.
///
/// Hooks on a parameter see the gradient of the whole as a sharded tensor, and what `autograd::grad` returns is one, too. Hooks that run after the accumulation
/// run at the end of backward, when the gradient is complete.
///
/// A parameter that meets plain tensors gets a plain gradient. Where those go on through `from_local` of a tensor that is cut, it is this rank's share,
/// and the shares are summed; else it must be the same on all ranks of a domain, since it counts once. `backward()` throws InvalidInput on every rank,
/// naming the parameter, where it is not (rows that `to_local` gave), or where it is both.
class ReplicatedModule {
public:
    ~ReplicatedModule();
    ReplicatedModule(ReplicatedModule&&) noexcept;

    /// While off, backward only adds up this rank's own shares (gradient accumulation); the next backward with it on reduces them all.
    void set_sync(bool on);

    /// Off as long as the result lives.
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

/// Turns the reduction of gradients off while it lives.
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

/// Collective over all ranks of `device_mesh` and no others; sharded parameters are left alone. @throws InvalidInput on every rank if
/// the ranks' parameters differ in number, shape or type, or one was given to `replicate` before; with `verify_at_start` in any bit, naming the tensor and the
/// rank.
ReplicatedModule replicate(torch::nn::Module& module, std::shared_ptr<const DeviceMesh> device_mesh, const ReplicateOptions& options = {});

}  // namespace meshard
