// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "sharding/device_mesh.h"

namespace torch::nn {
class Module;
}

namespace meshard {

struct ReplicateOptions {
    std::int64_t bucket_bytes = 25 << 20;   ///< gradients are reduced in messages of about this size
    bool broadcast_at_start = true;         ///< parameters and buffers become those of rank 0
};

/// Keeps a module's parameters the same on every rank of a device mesh: the hooks of `replicate`, until destroyed.
///
/// Backward gives each parameter its gradient of the whole loss, summed over all axes but `data` (each rank holds its share of one
/// loss) and averaged over `data` (each group has a loss of its own). Gradients are reduced in buckets, in the order in which backward
/// makes them, while backward still runs; when `backward()` returns, every `grad()` is plain and complete. A parameter that takes no part keeps an
/// undefined gradient if that is so on all ranks.
class ReplicatedModule {
public:
    ~ReplicatedModule();
    ReplicatedModule(ReplicatedModule&&) noexcept;

    /// While off, backward only adds up this rank's own shares (gradient accumulation); the next backward with it on reduces them all.
    void set_sync(bool on);

private:
    friend ReplicatedModule replicate(torch::nn::Module&, std::shared_ptr<const DeviceMesh>, const ReplicateOptions&);
    struct Impl;
    explicit ReplicatedModule(std::shared_ptr<Impl> impl);
    std::shared_ptr<Impl> impl_;
};

/// Collective over all ranks of `device_mesh`. @throws InvalidInput if the ranks' parameters differ in number, shape or type.
ReplicatedModule replicate(torch::nn::Module& module, std::shared_ptr<const DeviceMesh> device_mesh,
                           const ReplicateOptions& options = {});

}  // namespace meshard
