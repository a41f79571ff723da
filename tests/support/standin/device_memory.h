// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace meshard::standin {

// Memory of the stand-in's devices. Each byte has two addresses: the device's, which tensors hold and which is closed
// to everybody, and the host's view of it, which only the device's own work knows. So no operator has to open and close
// memory, and a thread that reads device memory is caught whatever the others do.

/// Whole pages on a device, filled with 0xFF (NaN as numbers). @return an address of the device; null for no bytes
/// @throws std::bad_alloc beyond the bytes that a device has: MESHARD_STANDIN_MEMORY, 64 GiB if unset
void* take_memory(int device, std::size_t bytes);
void give_memory(void* address);

/// Bytes of a device: in use, the most that ever were or since `reset_peak`, and all.
struct MemoryUse {
    std::size_t now, peak, total;
};
MemoryUse memory_use(int device);
void reset_peak(int device);

/// All memory of a device as it is, and puts it back: memory that was taken in between is filled with 0xFF.
std::vector<char> copy_of_memory(int device);
void put_back_memory(int device, const std::vector<char>& before);

/// Where the device's own work finds the bytes at an address of a device; other addresses are returned as they are.
void* host_view(const void* address);
/// -1 if it is no address of a device.
int device_of(const void* address);

/// While it lives, the memory of a device can be read and written at its own addresses too, by every thread: for
/// kernels that are given addresses.
class OpenMemory {
public:
    explicit OpenMemory(int device);
    ~OpenMemory();
    OpenMemory(const OpenMemory&) = delete;
    OpenMemory& operator=(const OpenMemory&) = delete;

private:
    int device_;
};

/// Ends the process with a sentence when host code reads or writes memory of a device. Other faults go to the handler
/// that was there before.
void watch_memory();

}  // namespace meshard::standin
