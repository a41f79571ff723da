// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace meshard {

/// The text of a legacy .vtk file with NaN and infinities replaced by stand-ins, finite numbers that do not occur in
/// it, because VTK before 9.3 stops at these words. Array names, types and texts are not changed.
class LegacyText {
public:
    /// Whether a file is ASCII, small enough to be read from memory, and has the letters of such a word.
    static bool may_be_needed(std::string_view file);

    /// @param attempt   selects the stand-ins: if those of 0 occur in the file (then `restore` returns false), try 1,
    ///                  and so on
    LegacyText(std::string_view file, int attempt);

    static constexpr int most_attempts = 3;

    const std::string& text() const { return text_; }
    bool has_stand_ins() const { return num_replaced_ > 0; }

    /// Replaces the stand-ins in points and arrays by NaN and infinities; returns false if there are more of them than
    /// there were words.
    bool restore(Mesh& mesh) const;

private:
    void replace_in_line(std::string_view line);

    double nan_stand_in_, infinity_stand_in_;  // the infinity has either sign
    std::string text_;
    std::int64_t num_replaced_ = 0;
};

}  // namespace meshard
