// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// Keeps the texts of `warn` of this thread while it lives, in place of printing them or beside it. Of several the
/// newest does.
class KeptWarnings {
public:
    explicit KeptWarnings(bool also_prints = false);
    ~KeptWarnings();
    KeptWarnings(const KeptWarnings&) = delete;
    KeptWarnings& operator=(const KeptWarnings&) = delete;

    const std::vector<std::string>& texts() const { return texts_; }

private:
    friend void warn(std::string_view verb, std::string_view text);
    bool also_prints_;
    std::vector<std::string> texts_;
    KeptWarnings* before_;
};

}  // namespace meshard
