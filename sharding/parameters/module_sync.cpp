// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/module_sync.h"

#include "partition/error.h"
#include "sharding/ranks/value_hash.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

namespace meshard {
namespace {

constexpr std::int64_t kMessageBytes = 25 << 20;

struct NamedTensors {
    std::vector<std::string> names;
    std::vector<at::Tensor> tensors;
};

NamedTensors plain_tensors(const torch::nn::Module& module)
{
    NamedTensors all;
    const auto add = [&](const std::string& name, const at::Tensor& tensor) {
        if (!tensor.defined() || is_sharded(tensor)) return;
        all.names.push_back(name);
        all.tensors.push_back(tensor.detach());
    };
    for (const auto& item : module.named_parameters()) add(item.key(), item.value());
    for (const auto& item : module.named_buffers()) add(item.key(), item.value());
    return all;
}

/// Throws on every rank if the ranks' lists of tensors differ: their collectives would not match.
void check_same_list(const NamedTensors& all, const DeviceMesh& mesh, int source_rank)
{
    std::uint64_t hash = 0;
    for (std::size_t k = 0; k < all.tensors.size(); ++k) {
        for (const char c : all.names[k]) hash = mix(hash, static_cast<unsigned char>(c));
        for (const auto size : all.tensors[k].sizes()) hash = mix(hash, static_cast<std::uint64_t>(size));
        hash = mix(hash, static_cast<std::uint64_t>(all.tensors[k].scalar_type()));
    }
    const auto count = std::ssize(all.tensors);
    const auto found =
        mesh.all().all_gather_integers(std::vector<std::int64_t>{count, static_cast<std::int64_t>(hash), source_rank});
    for (std::size_t r = 0; r < found.size(); ++r) {
        if (found[r] != found[0]) {
            throw InvalidInput(
                "replicate: rank {} has {} parameters and buffers, rank 0 has {}, or they differ in name, "
                "shape or type, or the source rank does. Build the same module on every rank.",
                r, found[r][0], found[0][0]);
        }
    }
    if (source_rank < 0 || source_rank >= mesh.num_ranks()) {
        throw InvalidInput(
            "replicate: source rank {} of a device mesh of {} ranks. Count from 0 within this device mesh.",
            source_rank, mesh.num_ranks());
    }
}

}  // namespace

void broadcast_module(torch::nn::Module& module, const DeviceMesh& mesh, int source_rank)
{
    const at::NoGradGuard no_grad;
    auto all = plain_tensors(module);
    check_same_list(all, mesh, source_rank);
    if (mesh.num_ranks() == 1) return;
    auto pending = all.tensors;
    while (!pending.empty()) {
        // Tensors of one type and device are sent together, in messages of bounded size.
        const auto first = pending.front();
        std::vector<at::Tensor> together, rest, flat;
        std::int64_t bytes = 0;
        for (const auto& tensor : pending) {
            const auto size = static_cast<std::int64_t>(tensor.nbytes());
            const bool same = tensor.scalar_type() == first.scalar_type() && tensor.device() == first.device();
            if (same && (together.empty() || bytes + size <= kMessageBytes)) {
                bytes += size;
                together.push_back(tensor);
                flat.push_back(tensor.reshape({-1}));
            } else {
                rest.push_back(tensor);
            }
        }
        auto buffer = at::cat(flat);
        mesh.all().broadcast(buffer, source_rank);
        std::int64_t offset = 0;
        for (auto& tensor : together) {
            tensor.copy_(buffer.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
            offset += tensor.numel();
        }
        pending = std::move(rest);
    }
}

void verify_module(const torch::nn::Module& module, const DeviceMesh& mesh, int source_rank)
{
    const auto all = plain_tensors(module);
    check_same_list(all, mesh, source_rank);
    if (all.tensors.empty()) return;
    std::vector<std::int64_t> hashes;
    for (const auto& tensor : all.tensors) hashes.push_back(hash_of_values(tensor));
    const auto found = mesh.all().all_gather_integers(hashes);
    for (std::size_t k = 0; k < hashes.size(); ++k) {
        std::string ranks;
        for (std::size_t r = 0; r < found.size(); ++r) {
            if (found[r][k] != found[source_rank][k]) ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
        }
        if (!ranks.empty()) {
            throw InvalidInput("verify: '{}' on rank {} differs from that of rank {}. Start all ranks from "
                               "the same values (broadcast), or find what changed it on one rank only.",
                               all.names[k], ranks, source_rank);
        }
    }
}

}  // namespace meshard
