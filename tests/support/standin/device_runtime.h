// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/standin/standin.h"

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <string>

namespace meshard::standin {

inline constexpr int kMaxDevices = 16;
inline constexpr auto kType = c10::DeviceType::PrivateUse1;

/// MESHARD_STANDIN_DEVICES, 8 if unset.
int num_devices();

/// Of the calling thread.
int current_device();
void set_current_device(int device);
c10::Stream current_stream(int device);

/// Adds to a device's counters.
enum class Count { Launch, DeviceToHost, HostToDevice, Sync };
void count(int device, Count what, const std::string& operation, std::int64_t bytes = 0);

/// Work that the device does late: `finish` is called when the host waits for the stream, or for an event that was
/// recorded there later. `written`: the start of the page-locked memory to which it writes, if any.
void do_late(const c10::Stream& stream, std::function<void()> finish, const void* written = nullptr);
/// Does what the stream has been given to do up to its last write to that memory: what is queued after that on the same
/// stream reads what was written.
void finish_writes_to(const void* memory, const c10::Stream& stream);
/// Waits for everything on the stream. Counted as a sync under that name. @throws what late work throws
void synchronize(const c10::Stream& stream, const std::string& operation);

/// Work on the current stream of a device reads or writes a tensor's memory, named by where its storage begins. @throws
/// c10::Error if another stream wrote there last, and this one has not waited for that
void reads_memory(int device, const void* memory);
void writes_memory(int device, const void* memory);

c10::Allocator& device_allocator();
/// The generator of the CPU that draws for a device: the same numbers for the same seed.
at::Generator host_generator(const at::Generator& generator);
at::Generator host_generator(int device);
bool is_page_locked(const void* address);

/// A tensor of the device as one of the CPU that shares its memory, for work that the device does.
at::Tensor as_host(const at::Tensor& tensor);

}  // namespace meshard::standin
