// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/transport/carrier.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <string>

namespace meshard {

/// What carries tensors of one type of device between ranks: NCCL for GPUs of CUDA.
struct DeviceTransport {
    std::string name;                                        ///< such as "nccl"
    std::function<std::string()> why_not;                    ///< empty if this process can use it, else the reason, as the end of a sentence
    std::function<std::string(const at::Device&)> identity;  ///< the physical device, the same text in every process that sees it
    std::function<c10::intrusive_ptr<c10d::Backend>(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds limit)> connect;
    /// Whether what this thread gives the device is recorded, to run later; null: it never is, or whoever records sees to it himself.
    std::function<bool()> is_recording = nullptr;
};

/// Call before ranks connect. A later registration for the same type replaces the earlier. NCCL is there for CUDA from the beginning.
void register_device_transport(c10::DeviceType type, DeviceTransport transport);

/// Empty if tensors of that type can go over a transport of their own in this process, else the reason why not, as the end of a sentence.
std::string why_no_transport(c10::DeviceType type);

/// The physical device, the same text in every process that sees it: as its type's transport says, else the host's name and its own.
std::string identity_of(const at::Device& device);

/// A group that sends CPU tensors by `host`, and each other tensor by the transport of its type of device. A transport connects at the first tensor of its
/// type, with the device that is current then; all ranks come with such a tensor together. Tensors go by way of the host, which copies them there and back,
/// where two ranks share a device, or a rank can use no transport for it. It is a RowExchange where `host` is one.
///
/// `store` is the group's own. Returns `host` itself if this process can use no transport.
/// @param required   name of the transport that must be there, such as "nccl"; empty: none
/// @throws CommunicationError if the required one is not; at its first tensor, if ranks share a device
c10::intrusive_ptr<c10d::Backend> with_device_transports(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<c10d::Store> store,
                                                         std::chrono::milliseconds time_limit, const std::string& required);

/// The same with a transport that has connected already, for the tensors of one type of device.
c10::intrusive_ptr<c10d::Backend> with_device_backend(c10::intrusive_ptr<c10d::Backend> host, c10::DeviceType type, c10::intrusive_ptr<c10d::Backend> device);

/// The transport of its own by which a group of these sends tensors of a device, null if they go by way of the host. Collective over the group, as
/// `carrier_of`.
c10d::Backend* device_backend_of(c10d::Backend& group, const at::Device& device);

/// @throws InvalidInput if what this thread gives a device is recorded, where its tensors go by way of the host
void require_not_recording(const at::Device& device);

/// A group that sends all tensors by `host`, those of devices through copies in host memory. It is a RowExchange where `host` is one.
c10::intrusive_ptr<c10d::Backend> by_way_of_host(c10::intrusive_ptr<c10d::Backend> host);

/// What carries tensors of a device in a group. Collective over the group: connects what is not connected yet.
/// @throws CommunicationError as the first tensor would
Carrier carrier_of(c10d::Backend& group, const at::Device& device);

}  // namespace meshard
