// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/option_checks.h"
#include "partition/error.h"
#include "partition/nearest_name.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace meshard {

/// A member of a struct of options.
template <class Options>
using OptionMember = std::variant<bool Options::*, std::int64_t Options::*, double Options::*, std::string Options::*,
                                  std::vector<std::int64_t> Options::*, std::vector<double> Options::*,
                                  std::vector<std::string> Options::*>;

/// Less common properties of an option.
template <class Options>
struct OptionTraits {
    bool Options::* only_with = nullptr;  ///< the bounds are checked only if this other option is set; null: always
    std::string none = {};      ///< the value, as JSON, that checkpoints write as null; not checked against the bounds
    bool one_or_more = false;   ///< a list with one entry is written as that entry
    bool is_extension = false;  ///< unknown to other programs: written only if it is not the default
    bool is_for_programs = false;  ///< cannot be set in a configuration
    std::string with = {};         ///< in place of `only_with`: `option=word`, without which it does nothing
};

/// Declares an argument of a model's constructor. Its type is the member's, its default the member's initial value.
template <class Options>
struct Option {
    std::string name;  ///< in checkpoints and configurations
    OptionMember<Options> member;
    std::string meaning;  ///< one line for help texts, without a full stop
    OptionBounds bounds = {};
    OptionTraits<Options> traits = {};
};

namespace detail {

template <class Value>
bool is_value(const nlohmann::json& json, const Value* /*type*/)
{
    if constexpr (std::is_same_v<Value, bool>)
        return json.is_boolean();
    else if constexpr (std::is_same_v<Value, std::int64_t>)
        return json.is_number() && std::floor(json.get<double>()) == json.get<double>();
    else if constexpr (std::is_same_v<Value, double>)
        return json.is_number();
    else
        return json.is_string();
}

template <class Value>
bool is_value(const nlohmann::json& json, const std::vector<Value>* /*type*/)
{
    if (!json.is_array()) return false;
    for (const auto& entry : json) {
        if (!is_value(entry, static_cast<const Value*>(nullptr))) return false;
    }
    return true;
}

inline const char* type_text(const bool*)
{
    return "true or false";
}
inline const char* type_text(const std::int64_t*)
{
    return "a whole number";
}
inline const char* type_text(const double*)
{
    return "a number";
}
inline const char* type_text(const std::string*)
{
    return "a text";
}
inline const char* type_text(const std::vector<std::int64_t>*)
{
    return "whole numbers";
}
inline const char* type_text(const std::vector<double>*)
{
    return "numbers";
}
inline const char* type_text(const std::vector<std::string>*)
{
    return "texts";
}

}  // namespace detail

/// All arguments of a model's constructor: reads, writes and checks them, and describes them to programs and
/// documentation.
template <class Options>
class OptionTable {
public:
    /// @param model   begins error messages
    OptionTable(std::string model, std::vector<Option<Options>> options)
        : model_(std::move(model)), options_(std::move(options))
    {
    }

    /// Reads options from the arguments of a checkpoint; absent and null ones keep their defaults, and a value is taken
    /// as a list of one.
    /// @throws InvalidInput for a name that is no option (the message has the nearest one), or a value of the wrong
    /// type.
    Options read(const nlohmann::json& arguments) const
    {
        for (const auto& [name, value] : arguments.items()) refuse_unknown(name);
        Options options;
        for (const auto& option : options_) {
            const auto found = arguments.find(option.name);
            if (found == arguments.end() || found->is_null()) continue;
            std::visit([&](auto member) { options.*member = value_of(option.name, *found, options.*member); },
                       option.member);
        }
        return options;
    }

    /// The arguments for a checkpoint, as `read` reads them.
    nlohmann::json write(const Options& options) const
    {
        auto arguments = write_all(options);
        const auto defaults = write_all(Options());
        for (const auto& option : options_) {
            if (option.traits.is_extension && arguments[option.name] == defaults[option.name])
                arguments.erase(option.name);
        }
        return arguments;
    }

    /// The default of every argument, extensions included.
    nlohmann::json defaults() const { return write_all(Options()); }

    /// @throws InvalidInput naming the option that is out of its bounds, its value and what is allowed.
    void check(const Options& options) const
    {
        const OptionChecks checks(model_);
        for (const auto& option : options_) {
            if (option.traits.only_with && !(options.*option.traits.only_with)) continue;
            std::visit(
                [&](auto member) {
                    const auto& value = options.*member;
                    if (nlohmann::json(value).dump() != option.traits.none)
                        checks.within(option.bounds, option.name, value);
                },
                option.member);
        }
    }

    /// Describes the options that a configuration can set, in the order of declaration.
    std::vector<OptionInfo> infos() const
    {
        std::vector<OptionInfo> infos;
        for (const auto& option : options_) {
            const auto& traits = option.traits;
            if (!traits.is_for_programs)
                infos.push_back({option.name, option.meaning, option.bounds,
                                 traits.only_with ? name_of(traits.only_with) : traits.with});
        }
        return infos;
    }

    /// Names of the extensions.
    std::vector<std::string> extensions() const
    {
        std::vector<std::string> names;
        for (const auto& option : options_) {
            if (option.traits.is_extension) names.push_back(option.name);
        }
        return names;
    }

private:
    void refuse_unknown(const std::string& name) const
    {
        std::vector<std::string> names;
        for (const auto& option : options_) {
            if (option.name == name) return;
            names.push_back(option.name);
        }
        throw InvalidInput("{}: there is no argument '{}'.{}", model_, name, suggestion(name, names));
    }

    template <class Value>
    Value value_of(const std::string& name, const nlohmann::json& given, const Value& like) const
    {
        const bool is_list = nlohmann::json(like).is_array();
        const auto whole = is_list && given.is_primitive() ? nlohmann::json::array({given}) : given;
        if (!detail::is_value(whole, &like)) {
            throw InvalidInput("{}: {} cannot be {}; expected {}.", model_, name, given.dump(),
                               detail::type_text(&like));
        }
        return whole.template get<Value>();
    }

    nlohmann::json write_all(const Options& options) const
    {
        nlohmann::json arguments;
        for (const auto& option : options_) {
            auto& value = arguments[option.name];
            std::visit([&](auto member) { value = options.*member; }, option.member);
            if (value.dump() == option.traits.none)
                value = nullptr;
            else if (option.traits.one_or_more && value.size() == 1)
                value = nlohmann::json(value[0]);
        }
        return arguments;
    }

    std::string name_of(bool Options::* member) const
    {
        for (const auto& option : options_) {
            if (option.member == OptionMember<Options>(member)) return option.name;
        }
        return {};
    }

    std::string model_;
    std::vector<Option<Options>> options_;
};

/// Converts the options of a base struct to options of a derived struct, and appends `more`.
template <class Options, class Base>
std::vector<Option<Options>> inherited_options(const std::vector<Option<Base>>& options,
                                               std::vector<Option<Options>> more)
{
    std::vector<Option<Options>> all;
    for (const auto& option : options) {
        const auto member = std::visit([](auto of_base) { return OptionMember<Options>(of_base); }, option.member);
        const auto& traits = option.traits;
        all.push_back({option.name,
                       member,
                       option.meaning,
                       option.bounds,
                       {traits.only_with, traits.none, traits.one_or_more, traits.is_extension, traits.is_for_programs,
                        traits.with}});
    }
    std::move(more.begin(), more.end(), std::back_inserter(all));
    return all;
}

}  // namespace meshard
