// SPDX-License-Identifier: Apache-2.0
#include "tests/support/standin/device_memory.h"

#include "tests/support/standin/device_runtime.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <execinfo.h>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <new>
#include <sys/mman.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

namespace meshard::standin {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kArena = std::size_t{64} << 30;      // of addresses a device; memory is used as it is written
constexpr std::size_t kGivenBack = std::size_t{16} << 20;  // larger blocks go back to the system when they are freed

/// The memory of one device.
class Arena {
public:
    Arena()
    {
        const int file = memfd_create("standin", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, static_cast<off_t>(kArena)) != 0) throw std::bad_alloc();
        device_ = map(file, PROT_NONE);
        host_ = map(file, PROT_READ | PROT_WRITE);
        file_ = file;
    }

    char* device() const { return device_; }
    char* host() const { return host_; }
    bool holds(const void* address) const { return address >= device_ && address < device_ + kArena; }

    void* take(std::size_t bytes)
    {
        const auto size = size_class(bytes);
        const std::lock_guard lock(mutex_);
        if (in_use_ + size > limit()) throw std::bad_alloc();
        auto& free = free_[size];
        std::size_t offset = 0;
        if (!free.empty()) {
            offset = free.back();
            free.pop_back();
        } else {
            if (end_ + size > kArena) throw std::bad_alloc();
            offset = end_;
            end_ += size;
        }
        sizes_[offset] = size;
        in_use_ += size;
        peak_ = std::max(peak_, in_use_);
        std::memset(host_ + offset, 0xFF, bytes);
        return device_ + offset;
    }

    void give(void* address)
    {
        const auto offset = static_cast<std::size_t>(static_cast<char*>(address) - device_);
        const std::lock_guard lock(mutex_);
        const auto found = sizes_.find(offset);
        const auto size = found->second;
        sizes_.erase(found);
        in_use_ -= size;
        if (size >= kGivenBack)
            fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                      static_cast<off_t>(size));
        free_[size].push_back(offset);
    }

    MemoryUse use()
    {
        const std::lock_guard lock(mutex_);
        return {in_use_, peak_, limit()};
    }

    void reset_peak()
    {
        const std::lock_guard lock(mutex_);
        peak_ = in_use_;
    }

    /// All that was taken up to now.
    std::vector<char> copy()
    {
        const std::lock_guard lock(mutex_);
        return {host_, host_ + end_};
    }

    /// What was taken since then holds no numbers.
    void put_back(const std::vector<char>& before)
    {
        const std::lock_guard lock(mutex_);
        std::memcpy(host_, before.data(), before.size());
        std::memset(host_ + before.size(), 0xFF, end_ - before.size());
    }

    void open(int change)
    {
        const std::lock_guard lock(opening_);
        const bool was_open = num_open_ > 0;
        num_open_ += change;
        if (was_open != (num_open_ > 0)) mprotect(device_, kArena, num_open_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
    }

private:
    static char* map(int file, int access)
    {
        auto* const memory = mmap(nullptr, kArena, access, MAP_SHARED | MAP_NORESERVE, file, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        return static_cast<char*>(memory);
    }

    static std::size_t limit()
    {
        static const std::size_t bytes = [] {
            const char* text = std::getenv("MESHARD_STANDIN_MEMORY");
            return text ? std::min(static_cast<std::size_t>(std::strtoull(text, nullptr, 10)), kArena) : kArena;
        }();
        return bytes;
    }

    /// Whole pages, an eighth too many at most, so that freed blocks fit again.
    static std::size_t size_class(std::size_t bytes)
    {
        const auto pages = (bytes + kPage - 1) / kPage;
        std::size_t step = 1;
        while (step * 16 < pages) step *= 2;
        return (pages + step - 1) / step * step * kPage;
    }

    int file_ = -1;
    char *device_ = nullptr, *host_ = nullptr;
    std::mutex mutex_, opening_;
    std::map<std::size_t, std::vector<std::size_t>> free_;
    std::unordered_map<std::size_t, std::size_t> sizes_;
    std::size_t end_ = 0, in_use_ = 0, peak_ = 0;
    int num_open_ = 0;
};

// Never freed: tensors may outlive static objects.
std::array<Arena*, kMaxDevices> arenas{};
std::mutex arenas_mutex;

Arena& arena(int device)
{
    const std::lock_guard lock(arenas_mutex);
    auto*& found = arenas.at(static_cast<std::size_t>(device));
    if (!found) found = new Arena;
    return *found;
}

struct sigaction before{};

void on_fault(int signal, siginfo_t* info, void* context)
{
    const int device = device_of(info->si_addr);
    if (device >= 0) {
        char text[200];
        const int length =
            std::snprintf(text, sizeof text, "standin: host code touched memory of the device standin:%d at %p\n",
                          device, info->si_addr);
        [[maybe_unused]] const auto written = write(STDERR_FILENO, text, static_cast<std::size_t>(length));
        void* frames[40];
        backtrace_symbols_fd(frames, backtrace(frames, 40), STDERR_FILENO);
        std::signal(SIGABRT, SIG_DFL);
        std::abort();
    }
    if ((before.sa_flags & SA_SIGINFO) && before.sa_sigaction) return before.sa_sigaction(signal, info, context);
    if (!(before.sa_flags & SA_SIGINFO) && before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        return before.sa_handler(signal);
    std::signal(signal, SIG_DFL);  // the instruction faults again
}

}  // namespace

void* take_memory(int device, std::size_t bytes)
{
    return bytes == 0 ? nullptr : arena(device).take(bytes);
}

void give_memory(void* address)
{
    if (address) arenas[static_cast<std::size_t>(device_of(address))]->give(address);
}

MemoryUse memory_use(int device)
{
    return arena(device).use();
}

void reset_peak(int device)
{
    arena(device).reset_peak();
}

std::vector<char> copy_of_memory(int device)
{
    return arena(device).copy();
}

void put_back_memory(int device, const std::vector<char>& before)
{
    arena(device).put_back(before);
}

void* host_view(const void* address)
{
    const int device = device_of(address);
    if (device < 0) return const_cast<void*>(address);
    const auto& memory = *arenas[static_cast<std::size_t>(device)];
    return memory.host() + (static_cast<const char*>(address) - memory.device());
}

// Without a lock, for the signal handler too: an address of a device exists after its arena.
int device_of(const void* address)
{
    for (std::size_t i = 0; i < arenas.size(); ++i) {
        if (arenas[i] && arenas[i]->holds(address)) return static_cast<int>(i);
    }
    return -1;
}

OpenMemory::OpenMemory(int device) : device_(device)
{
    arena(device_).open(1);
}

OpenMemory::~OpenMemory()
{
    arena(device_).open(-1);
}

void watch_memory()
{
    void* frame[1];
    backtrace(frame, 1);  // loads what it needs now, not in the handler
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &before);
}

}  // namespace meshard::standin
