// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace meshard {

/// The text of a legacy .vtk file whose NaN and infinities are replaced by stand-ins, finite numbers that it has nowhere else, because VTK before
/// 9.3 stops at the words. Array names, types and texts stay as they are.
class LegacyText {
public:
    /// `attempt` chooses the stand-ins: if those of 0 are numbers of the file (`restore` says so), those of 1 are tried, and so on.
    LegacyText(std::string_view file, int attempt);

    static constexpr int most_attempts = 3;

    const std::string& text() const { return text_; }
    bool has_stand_ins() const { return num_replaced_ > 0; }

    /// Puts NaN and infinities in place of the stand-ins in points and arrays; false if those are more than there were words.
    bool restore(Mesh& mesh) const;

private:
    void replace_in_line(std::string_view line);

    double nan_stand_in_, infinity_stand_in_;  // the latter with either sign
    std::string text_;
    std::int64_t num_replaced_ = 0;
};

}  // namespace meshard
