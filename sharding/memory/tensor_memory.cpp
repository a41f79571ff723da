// SPDX-License-Identifier: Apache-2.0
#include "sharding/memory/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/core.h>

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unordered_map>

namespace meshard {
namespace {

constexpr std::size_t kLarge = std::size_t(1) << 17, kPage = 4096, kHugePage = std::size_t(1) << 21;
constexpr std::size_t kSlack = 8;  // a block may exceed the request by 1/8, and the mapped memory the peak by 1/8

class KeptMemory final : public c10::Allocator {
public:
    c10::DataPtr allocate(std::size_t size) override
    {
        if (size < kLarge) return c10::GetDefaultCPUAllocator()->allocate(size);
        void* block = take((size + kPage - 1) / kPage * kPage);
        return {block, block, &release, c10::DeviceType::CPU};
    }

    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void* to, const void* from, std::size_t size) const override { default_copy_data(to, from, size); }

    TensorMemory counts()
    {
        const std::lock_guard lock(mutex_);
        return {static_cast<std::int64_t>(in_use_), static_cast<std::int64_t>(kept_), static_cast<std::int64_t>(peak_)};
    }

private:
    void* take(std::size_t size)
    {
        const std::lock_guard lock(mutex_);
        void* block = nullptr;
        if (const auto found = free_.lower_bound(size); found != free_.end() && found->first <= size + size / kSlack) {
            block = *found->second;
            size = found->first;
            kept_ -= size;
            order_.erase(found->second);
            free_.erase(found);
        }
        in_use_ += size;
        peak_ = std::max(peak_, in_use_);
        if (!block) {
            while (kept_ > 0 && in_use_ + kept_ > peak_ + peak_ / kSlack) unmap_oldest();
            block = map(size);
        }
        sizes_[block] = size;
        return block;
    }

    void* map(std::size_t size)
    {
        void* block = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED) {
            in_use_ -= size;
            throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
                                        fmt::format("no memory for a tensor of {} bytes", size));
        }
        // The system uses ordinary pages if it has no huge ones.
        if (size >= kHugePage) madvise(block, size, MADV_HUGEPAGE);
        return block;
    }

    void unmap_oldest()
    {
        void* block = order_.front();
        const auto size = sizes_[block];
        const auto [begin, end] = free_.equal_range(size);
        free_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == order_.begin(); }));
        order_.pop_front();
        sizes_.erase(block);
        kept_ -= size;
        munmap(block, size);
    }

    static void release(void* block);
    bool put_back(void* block)
    {
        const std::lock_guard lock(mutex_);
        const auto found = sizes_.find(block);
        if (found == sizes_.end()) return false;
        in_use_ -= found->second;
        kept_ += found->second;
        free_.emplace(found->second, order_.insert(order_.end(), block));
        return true;
    }

    std::mutex mutex_;
    std::unordered_map<void*, std::size_t> sizes_;  // size of every block
    std::list<void*> order_;                        // free blocks, in the order in which they were freed
    std::multimap<std::size_t, std::list<void*>::iterator> free_;
    std::size_t in_use_ = 0, kept_ = 0, peak_ = 0;
};

/// Never destroyed: tensors may be freed after `main`.
KeptMemory& kept_memory()
{
    static auto* memory = new KeptMemory;
    return *memory;
}

void KeptMemory::release(void* block)
{
    if (block && !kept_memory().put_back(block)) c10::GetDefaultCPUAllocator()->raw_deallocate(block);
}

}  // namespace

void keep_tensor_memory()
{
    c10::SetCPUAllocator(&kept_memory(), /*priority=*/1);
}

TensorMemory tensor_memory()
{
    return kept_memory().counts();
}

}  // namespace meshard
