// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// The allowed values of an option, or of each entry of a list.
struct OptionBounds {
    double least = -std::numeric_limits<double>::infinity();
    double most = std::numeric_limits<double>::infinity();
    bool above = false;                   ///< whether `least` itself is excluded
    std::vector<std::string> words = {};  ///< allowed texts; empty: any text
};

/// Documentation and bounds of a model's argument, for programs.
struct OptionInfo {
    std::string name;
    std::string meaning;  ///< one line for help texts, without a full stop
    OptionBounds bounds = {};
    /// It counts only if this other argument is true, beside which alone its bounds are checked, or if
    /// `argument=word` or one of `argument=word|other` has this value; empty: always.
    std::string only_with = {};
};

/// Checks of a model's options. All throw InvalidInput naming the model, the option, its value and what is allowed.
class OptionChecks {
public:
    explicit OptionChecks(std::string model) : model_(std::move(model)) {}

    [[noreturn]] void refuse(const std::string& what) const;
    template <class... Values>
        requires(sizeof...(Values) > 0)
    [[noreturn]] void refuse(fmt::format_string<Values...> what, Values&&... values) const
    {
        refuse(fmt::format(what, std::forward<Values>(values)...));
    }
    void at_least(std::int64_t least, std::initializer_list<std::pair<const char*, std::int64_t>> options) const;
    void one_of(const std::string& name, const std::string& value, const std::vector<std::string>& allowed) const;
    void multiple(const char* name, std::int64_t value, const char* of_name, std::int64_t of) const;

    void within(const OptionBounds& /*bounds*/, const std::string& /*name*/, bool /*value*/) const {}
    void within(const OptionBounds& bounds, const std::string& name, std::int64_t value) const;
    /// With bounds the value must also be finite.
    void within(const OptionBounds& bounds, const std::string& name, double value) const;
    void within(const OptionBounds& bounds, const std::string& name, const std::string& value) const;
    template <class Value>
    void within(const OptionBounds& bounds, const std::string& name, const std::vector<Value>& values) const
    {
        for (const Value& value : values) within(bounds, "an entry of " + name, value);
    }

private:
    std::string model_;
};

}  // namespace meshard
