// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Checks of a model's options that several models share. All throw InvalidInput naming the model, the option, its value and what is allowed.
class OptionChecks {
public:
    explicit OptionChecks(std::string model) : model_(std::move(model)) {}

    [[noreturn]] void refuse(const std::string& what) const;
    void at_least(std::int64_t least, std::initializer_list<std::pair<const char*, std::int64_t>> options) const;
    void one_of(const char* name, const std::string& value, const std::vector<std::string>& allowed) const;
    void rate(const char* name, double value) const;                                  ///< in [0, 1]
    void multiple(const char* name, std::int64_t value, const char* of_name, std::int64_t of) const;
    void grid(const std::vector<std::int64_t>& extents) const;                        ///< of structured_shape: none, or 2 or 3
    void no_transformer_engine(bool use_te) const;

private:
    std::string model_;
};

}  // namespace meshard
