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

/// A transport for tensors of one type of device, such as NCCL for CUDA.
struct DeviceTransport {
    std::string name;  ///< such as "nccl"
    /// Returns an empty text if this process can use the transport, otherwise the reason as the end of a sentence.
    std::function<std::string()> why_not;
    /// Returns the physical device, as the same text in every process that uses it.
    std::function<std::string(const at::Device&)> identity;
    std::function<c10::intrusive_ptr<c10d::Backend>(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                    std::chrono::milliseconds limit)>
        connect;
    /// Returns whether work that this thread queues on the device is being recorded for later replays. Null if it never
    /// is, or if the code that records checks this itself.
    std::function<bool()> is_recording = nullptr;
};

/// Call it before ranks connect. A later registration for the same type replaces an earlier one. NCCL is registered for
/// CUDA from the start.
void register_device_transport(c10::DeviceType type, DeviceTransport transport);

/// Returns an empty text if tensors of that type of device can use a transport of their own in this process, otherwise
/// the reason as the end of a sentence.
std::string why_no_transport(c10::DeviceType type);

/// The physical device, as the same text in every process that uses it: what the type's transport returns, otherwise
/// the name of the host and that of the device.
std::string identity_of(const at::Device& device);

/// Makes a group that sends CPU tensors by `host`, and each other tensor by the transport of its type of device. A
/// transport connects at the first tensor of its type, with the current device; all ranks must send such a tensor
/// together. Tensors are copied to the host and sent from there if two ranks share a device, or if a rank can use no
/// transport for it. The group is a RowExchange if `host` is one.
///
/// @param store      the group's own store
/// @param required   name of a transport that must be available, such as "nccl"; empty: none
/// @return `host` itself if this process can use no transport
/// @throws CommunicationError if the required transport is not available; at its first tensor, if ranks share a device
c10::intrusive_ptr<c10d::Backend> with_device_transports(c10::intrusive_ptr<c10d::Backend> host,
                                                         c10::intrusive_ptr<c10d::Store> store,
                                                         std::chrono::milliseconds time_limit,
                                                         const std::string& required);

/// `with_device_transports` with a transport that has connected already, for tensors of one type of device.
c10::intrusive_ptr<c10d::Backend> with_device_backend(c10::intrusive_ptr<c10d::Backend> host, c10::DeviceType type,
                                                      c10::intrusive_ptr<c10d::Backend> device);

/// The transport by which such a group sends tensors of a device; null if they are copied to the host. Collective over
/// the group, as `carrier_of`.
c10d::Backend* device_backend_of(c10d::Backend& group, const at::Device& device);

/// @throws InvalidInput if work that this thread queues on a device is being recorded, and its tensors are copied to
/// the host
void require_not_recording(const at::Device& device);

/// Makes a group that copies all tensors of devices to host memory and sends them by `host`. It is a RowExchange if
/// `host` is one.
c10::intrusive_ptr<c10d::Backend> by_way_of_host(c10::intrusive_ptr<c10d::Backend> host);

/// The transport that carries tensors of a device in a group. Collective over the group: connects it if necessary.
/// @throws CommunicationError as the first tensor of the device would
Carrier carrier_of(c10d::Backend& group, const at::Device& device);

}  // namespace meshard
