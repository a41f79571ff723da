// SPDX-License-Identifier: Apache-2.0
#include "sharding/transport/peer_memory.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <fcntl.h>
#include <iterator>
#include <random>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace meshard {
namespace {

constexpr std::int64_t kPage = 4096;

char* map_whole(int file, std::int64_t size)
{
    auto* memory =
        mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

std::int64_t& token_at(char* begin)
{
    return *reinterpret_cast<std::int64_t*>(begin);
}

}  // namespace

PeerMemory::PeerMemory(int file, char* begin, std::int64_t size)
    : file_(file), begin_(begin), size_(size), free_{{kPage, size - kPage}}
{
    std::random_device random;
    token_at(begin_) = static_cast<std::int64_t>(random()) << 31 ^ random();
}

PeerMemory::~PeerMemory()
{
    munmap(begin_, static_cast<std::size_t>(size_));
    close(file_);
}

#if defined(__linux__)

std::shared_ptr<PeerMemory> PeerMemory::create()
{
    const auto size = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / kPage * kPage;
    rlimit limit{};
    if (size <= kPage || getrlimit(RLIMIT_FSIZE, &limit) != 0 ||
        (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < static_cast<rlim_t>(size)))
        return nullptr;
    const int file = memfd_create("meshard", MFD_CLOEXEC);
    if (file < 0) return nullptr;
    auto* begin = ftruncate(file, size) == 0 ? map_whole(file, size) : nullptr;
    if (begin) return std::shared_ptr<PeerMemory>(new PeerMemory(file, begin, size));
    close(file);
    return nullptr;
}

#else

std::shared_ptr<PeerMemory> PeerMemory::create()
{
    return nullptr;
}

#endif

std::shared_ptr<PeerMemory> PeerMemory::of_process()
{
    static const auto memory = create();
    return memory;
}

PeerMemory::Address PeerMemory::address() const
{
    return {getpid(), file_, token_at(begin_)};
}

at::Tensor PeerMemory::empty(at::IntArrayRef sizes, const at::TensorOptions& options)
{
    const auto wanted = c10::multiply_integers(sizes) * static_cast<std::int64_t>(options.dtype().itemsize());
    const auto bytes = (wanted + kPage - 1) / kPage * kPage;
    const std::lock_guard lock(mutex_);
    for (auto range = free_.begin(); range != free_.end(); ++range) {
        const auto [offset, room] = *range;
        if (bytes == 0 || room < bytes) continue;
        free_.erase(range);
        if (room > bytes) free_.emplace(offset + bytes, room - bytes);
        return at::from_blob(
            begin_ + offset, sizes,
            [self = shared_from_this(), offset = offset, bytes](void*) { self->give_back(offset, bytes); }, options);
    }
    return {};
}

void PeerMemory::give_back(std::int64_t offset, std::int64_t bytes)
{
    const std::lock_guard lock(mutex_);
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && offset + bytes == next->first) {
        bytes += next->second;
        next = free_.erase(next);
    }
    if (next != free_.begin()) {
        const auto before = std::prev(next);
        if (before->first + before->second == offset) {
            before->second += bytes;
            return;
        }
    }
    free_.emplace(offset, bytes);
}

std::int64_t PeerMemory::offset_of(const at::Tensor& tensor) const
{
    const auto* data = static_cast<const char*>(tensor.const_data_ptr());
    return data >= begin_ && data < begin_ + size_ ? data - begin_ : -1;
}

at::Tensor empty_for_peers(const std::shared_ptr<PeerMemory>& memory, at::IntArrayRef sizes,
                           const at::TensorOptions& options)
{
    const auto bytes = c10::multiply_integers(sizes) * static_cast<std::int64_t>(options.dtype().itemsize());
    if (memory && options.device().is_cpu() && bytes >= PeerMemory::kWorthwhileBytes) {
        if (auto tensor = memory->empty(sizes, options); tensor.defined()) return tensor;
    }
    return at::empty(sizes, options);
}

std::unique_ptr<PeerView> PeerView::open(const PeerMemory::Address& address)
{
    const auto [process, number, token] = address;
    const auto path = fmt::format("/proc/{}/fd/{}", process, number);
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return nullptr;
    struct stat status{};
    char* begin = fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > kPage
                      ? map_whole(file, status.st_size)
                      : nullptr;
    close(file);
    if (!begin) return nullptr;
    auto view = std::unique_ptr<PeerView>(new PeerView(begin, status.st_size));
    if (token_at(begin) != token) return nullptr;  // the file belongs to a process with the same id elsewhere
    return view;
}

PeerView::~PeerView()
{
    munmap(begin_, static_cast<std::size_t>(size_));
}

}  // namespace meshard
