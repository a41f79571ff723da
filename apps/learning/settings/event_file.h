// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Writes numbers over steps for TensorBoard: a file `events.out.tfevents...` of records (length, its masked checksum,
/// an Event in protocol buffers' encoding, its masked checksum). Each record is complete when `add` returns.
class EventFile {
public:
    /// Creates a new file in `folder`, and the folder if needed. @throws IoError
    explicit EventFile(const std::filesystem::path& folder);

    /// @throws IoError if it cannot be written.
    void add(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

private:
    void write(const std::string& event);

    std::filesystem::path path_;
    std::ofstream file_;
};

}  // namespace meshard
