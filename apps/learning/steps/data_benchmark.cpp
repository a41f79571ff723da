// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/steps/data_benchmark.h"

#include "apps/console/repeated_times.h"
#include "apps/learning/steps/step_order.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <string>
#include <unistd.h>
#include <vector>

namespace meshard {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

/// A file open for reading.
class OpenFile {
public:
    explicit OpenFile(const std::filesystem::path& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC))
    {
        if (descriptor_ < 0) throw IoError("bench data: {} cannot be opened: {}.", path.string(), std::strerror(errno));
    }
    ~OpenFile() { ::close(descriptor_); }
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;

    /// Makes the system drop the file's pages from its cache.
    void drop() const
    {
        ::fdatasync(descriptor_);  // pages that are not yet written are not dropped
        ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
    }
    std::int64_t read_all(std::vector<char>& piece) const
    {
        std::int64_t bytes = 0;
        for (ssize_t n = 0; (n = ::read(descriptor_, piece.data(), piece.size())) > 0;) bytes += n;
        return bytes;
    }

private:
    int descriptor_;
};

}  // namespace

DataRates measure_data(const RunCases& cases, const TrainingRunConfig& config, const CaseLists& lists,
                       std::int64_t most, int num_repeats, const std::shared_ptr<const DeviceMesh>& device_mesh)
{
    const auto data_axis = device_mesh->axis("data");
    const StepOrder order(CaseOrder(config.training, config.seed, lists.train, config.data.sets), cases.train.size(),
                          device_mesh->size(data_axis), device_mesh->coordinate(data_axis), 1);
    const auto num_steps = most > 0 ? std::min(most, order.steps_per_epoch()) : order.steps_per_epoch();
    std::vector<std::filesystem::path> files;
    auto turns = order.turns(0, num_steps);
    while (const auto turn = turns()) {
        for (const auto& file : cases.train.files_of(turn->index)) files.push_back(file);
    }
    const auto& all = device_mesh->all();
    const auto seconds_of_slowest = [&](const std::function<void()>& work) {
        all.barrier();
        const auto begin = std::chrono::steady_clock::now();
        work();
        auto seconds = at::full({1}, seconds_since(begin), at::kDouble);
        all.all_reduce(seconds, Reduction::Max);
        return seconds.item<double>();
    };
    const auto drop = [&] {
        for (const auto& file : files) OpenFile(file).drop();
    };
    std::int64_t num_points = 0, row_bytes = 0, file_bytes = 0;
    const auto load = [&] {
        num_points = row_bytes = 0;
        CaseSequence sequence(cases.train, order.turns(0, num_steps));
        for (std::int64_t i = 0; i < num_steps; ++i) {
            const auto example = sequence.next();
            num_points += to_local(example.target).size(1);
            row_bytes += static_cast<std::int64_t>(to_local(example.inputs.embedding).nbytes() +
                                                   to_local(example.target).nbytes());
        }
    };
    std::vector<char> piece(kPieceBytes);
    const auto read_files = [&] {
        file_bytes = 0;
        for (const auto& file : files) file_bytes += OpenFile(file).read_all(piece);
    };

    std::vector<double> loader, cached, disk;
    for (int i = 0; i < num_repeats; ++i) {
        drop();
        loader.push_back(seconds_of_slowest(load));
        cached.push_back(seconds_of_slowest(load));
        drop();
        disk.push_back(seconds_of_slowest(read_files));
    }
    auto sums = at::tensor({num_points, row_bytes, file_bytes}, at::kLong);
    all.all_reduce(sums);
    return {.num_cases = num_steps * device_mesh->size(data_axis),
            .num_points = sums[0].item<std::int64_t>(),
            .row_bytes = sums[1].item<std::int64_t>(),
            .file_bytes = sums[2].item<std::int64_t>(),
            .loader_seconds = median(loader),
            .cached_loader_seconds = median(cached),
            .disk_seconds = median(disk)};
}

}  // namespace meshard
