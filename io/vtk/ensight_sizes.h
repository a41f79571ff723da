// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// How many numbers each file of an EnSight Gold case must hold. VTK's readers of it take what memory holds for numbers
/// that a file lacks, and stop without a word where it goes on otherwise than they expect. The checks read counts and
/// skip numbers; they follow VTK's readers, and are called in their order: the geometry first.
///
/// `step` is the step in a file of several (BEGIN TIME STEP), from 1; 0 in a file without.
/// @throws IoError where a file is shorter or longer than its counts, or does not fit the geometry
class EnSightSizes {
public:
    explicit EnSightSizes(bool is_binary) : is_binary_(is_binary) {}

    void check_geometry(const std::filesystem::path& path, int step);
    void check_measured_points(const std::filesystem::path& path, int step);
    void check_variable(const std::filesystem::path& path, int step, bool per_element, int num_components);
    void check_measured_variable(const std::filesystem::path& path, int step, int num_components);

    /// Those of the last check: variables that some parts lack.
    std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }

private:
    class Cursor;
    struct Part {
        std::int64_t num_points = 0, num_cells = 0;
        std::map<std::string, std::int64_t, std::less<>> elements;  // their number by type
    };

    void check_block(Cursor& file, Part& part);
    void check_elements(Cursor& file, Part& part, bool has_node_ids, bool has_element_ids);

    bool is_binary_;
    std::optional<bool> big_endian_;  // as the first file tells
    std::map<std::int64_t, Part> parts_;
    std::int64_t num_measured_ = 0;
    std::vector<std::string> warnings_;
};

}  // namespace meshard
