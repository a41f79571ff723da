// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/error.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace meshard {

struct DataConfig;
struct FieldConfig;

/// Binds the keys of a JSON object to variables: a function that lists each key once both writes the object and reads
/// it. Structs of their own are listed by functions `describe(DescribedKeys&, T&)`. A number that is not finite is null
/// in JSON, and null leaves a number as it is.
/// Reading throws IoError that names the file and the key, and says what was expected and what was found.
class DescribedKeys {
public:
    explicit DescribedKeys(nlohmann::json& object) : to_(&object) {}
    /// @param where   the file  @param prefix   of the keys, for messages
    DescribedKeys(const nlohmann::json& object, std::string where, std::string prefix = "")
        : from_(object), where_(std::move(where)), prefix_(std::move(prefix))
    {
        if (!from_.is_object()) fail("", "an object", from_);
    }

    bool writes() const { return to_ != nullptr; }

    /// Binds a key that every file has.
    template <class T>
    void required(const std::string& key, T& value)
    {
        if (writes())
            write((*to_)[key], value);
        else if (from_.contains(key))
            read(key, from_[key], value);
        else
            fail(key, expected(value), "missing");
    }

    /// Binds a key that is always written. Files of earlier versions may lack it; the variable then stays as it is.
    template <class T>
    void added(const std::string& key, T& value)
    {
        if (writes() || from_.contains(key)) required(key, value);
    }

    /// Binds a key that is written where there is a value.
    template <class T>
    void optional(const std::string& key, std::optional<T>& value)
    {
        if (writes() ? value.has_value() : from_.contains(key)) required(key, writes() ? *value : value.emplace());
    }

    /// Binds a key that is written unless the value is that with which its type begins.
    template <class T>
    void optional(const std::string& key, T& value)
    {
        T initial{};
        nlohmann::json written, of_initial;
        write(written, value);
        write(of_initial, initial);
        if (!writes() || written != of_initial) added(key, value);
    }

    /// Binds a key whose value is one of several words. Files of earlier versions may lack it.
    template <class T>
    void choice(const std::string& key, T& value, const std::vector<std::pair<std::string, T>>& words)
    {
        std::string word, all;
        for (const auto& [name, meaning] : words) {
            all += (all.empty() ? "'" : " or '") + name + "'";
            if (meaning == value) word = name;
        }
        added(key, word);
        for (const auto& [name, meaning] : words) {
            if (name != word) continue;
            value = meaning;
            return;
        }
        fail(key, all, word);
    }

private:
    template <class T>
    static void write(nlohmann::json& to, T& value)
    {
        if constexpr (requires(DescribedKeys& keys) { describe(keys, value); }) {
            DescribedKeys keys(to = nlohmann::json::object());
            describe(keys, value);
        } else if constexpr (requires { value.to_json(); }) {
            to = value.to_json();
        } else {
            to = value;
        }
    }
    template <class T>
        requires requires(DescribedKeys& keys, T& one) { describe(keys, one); }
    static void write(nlohmann::json& to, std::vector<T>& values)
    {
        to = nlohmann::json::array();
        for (auto& one : values) write(to.emplace_back(), one);
    }

    template <class T>
    void read(const std::string& key, const nlohmann::json& from, T& value) const
    {
        if constexpr (requires(DescribedKeys& keys) { describe(keys, value); }) {
            DescribedKeys keys(from, where_, prefix_ + key + ".");
            describe(keys, value);
        } else {
            if (std::is_floating_point_v<T> && from.is_null()) return;
            try {
                if constexpr (requires { T::from_json(from); }) {
                    value = T::from_json(from);
                    return;
                } else {
                    from.get_to(value);
                    if (nlohmann::json(value) == from) return;  // numbers are converted without a word, 3.5 to 3
                }
            } catch (const nlohmann::json::exception&) {
            }
            T initial{};
            fail(key, expected(initial), from);
        }
    }
    template <class T>
        requires requires(DescribedKeys& keys, T& one) { describe(keys, one); }
    void read(const std::string& key, const nlohmann::json& from, std::vector<T>& values) const
    {
        if (!from.is_array()) fail(key, "an array", from);
        values.resize(from.size());
        for (std::size_t i = 0; i < values.size(); ++i) read(fmt::format("{}[{}]", key, i), from[i], values[i]);
    }

    template <class T>
    static std::string expected(T& value)
    {
        if (std::is_integral_v<T> && !std::is_same_v<T, bool>) return "an integer";
        nlohmann::json written;
        write(written, value);
        const std::string kind = written.is_null() ? "object" : written.type_name();
        return (kind.find_first_of("ao") == 0 ? "an " : "a ") + kind;
    }

    [[noreturn]] void fail(const std::string& key, const std::string& expected, const nlohmann::json& found) const
    {
        auto place = prefix_ + key;
        if (key.empty() && !place.empty()) place.pop_back();
        throw IoError(
            "{}: '{}' in the description of the run is {}, expected {}. The file is damaged, or of a later version.",
            where_, place, found == "missing" ? "missing" : found.dump().substr(0, 80), expected);
    }

    nlohmann::json* to_ = nullptr;
    const nlohmann::json from_ = {};
    std::string where_, prefix_;
};

/// Lists the keys of a field, or of what a program that only predicts must know of the data.
void describe(DescribedKeys& keys, FieldConfig& field);
void describe(DescribedKeys& keys, DataConfig& data);

}  // namespace meshard
