// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace meshard {

/// Type of one value of a DataArray, as in the file; values are not converted.
enum class ScalarType : std::uint8_t {
    Int8,
    UInt8,
    Int16,
    UInt16,
    Int32,
    UInt32,
    Int64,
    UInt64,
    Float32,
    Float64,
    String
};

/// Bytes of one value; 0 for String.
std::size_t size_of(ScalarType type);

/// VTK's name of the type: `Int8` ... `Float64`, `String`.
std::string_view to_string(ScalarType type);

template <class T>
constexpr ScalarType scalar_type_of();

/// A named array of rows: `num_rows` x `num_components` values of one type, or `num_rows` strings.
///
/// The values are shared and immutable until `mutable_values` is called (copy on write), so that copying a DataArray is
/// cheap and a view into a mapped file is an ordinary DataArray.
class DataArray {
public:
    DataArray() = default;

    /// Zero-filled.
    DataArray(std::string name, ScalarType type, std::int64_t num_rows, std::int32_t num_components = 1);

    template <class T>
    static DataArray from(std::string name, std::vector<T> values, std::int32_t num_components = 1);

    static DataArray from_strings(std::string name, std::vector<std::string> values, std::int32_t num_components = 1);

    /// An array without a copy of its values: `owner` keeps their memory alive (a mapped file, a VTK array). `data`
    /// must be aligned for the type.
    static DataArray view(std::string name, ScalarType type, std::int64_t num_rows, std::int32_t num_components,
                          const std::byte* data, std::shared_ptr<const void> owner);

    const std::string& name() const { return name_; }
    void rename(std::string name) { name_ = std::move(name); }
    ScalarType type() const { return type_; }
    std::int64_t num_rows() const { return num_rows_; }
    std::int32_t num_components() const { return num_components_; }
    std::int64_t num_values() const { return num_rows_ * num_components_; }

    /// The values, row by row. @throws InvalidInput if T is not the type of the array.
    template <class T>
    std::span<const T> values() const
    {
        require_type(scalar_type_of<T>());
        return {reinterpret_cast<const T*>(data_), static_cast<std::size_t>(num_values())};
    }

    /// As `values`, for writing; copies the values first if they are shared.
    template <class T>
    std::span<T> mutable_values()
    {
        require_type(scalar_type_of<T>());
        return {reinterpret_cast<T*>(own_bytes()), static_cast<std::size_t>(num_values())};
    }

    std::span<const std::byte> bytes() const;      ///< for a numeric array
    std::span<std::byte> mutable_bytes();          ///< as `mutable_values`, for any numeric type
    std::span<const std::string> strings() const;  ///< for a String array

    /// One value as double (64-bit integers beyond 2^53 are rounded). @throws InvalidInput for strings.
    double value(std::int64_t row, std::int32_t component = 0) const;

    /// All values as double, row by row.
    std::vector<double> to_doubles() const;

    /// New array of the rows `rows`, in that order, same name, type, components and attribute.
    DataArray gather(std::span<const std::int32_t> rows) const;

    /// Same type, shape and bits (NaN equals NaN of the same bits); names are not compared.
    bool same_bits(const DataArray& other) const;

    std::vector<std::string> component_names;  ///< empty or one per component (`X`, `Y`, `Z`)
    std::string unit;                          ///< as the file writes it, e.g. `m/s`; empty if the file has none
    std::string attribute;  ///< VTK's active-attribute role: `Scalars`, `Vectors`, `Normals`, `GlobalIds`, ... or empty

private:
    void require_type(ScalarType type) const;
    std::byte* own_bytes();

    std::string name_;
    ScalarType type_ = ScalarType::Float64;
    std::int64_t num_rows_ = 0;
    std::int32_t num_components_ = 1;
    const std::byte* data_ = nullptr;
    std::shared_ptr<const void> owner_;            // keeps data_ alive
    std::shared_ptr<std::vector<std::byte>> own_;  // set if this array owns the bytes, possibly shared with copies
    std::shared_ptr<const std::vector<std::string>> strings_;
};

template <class T>
constexpr ScalarType scalar_type_of()
{
    if constexpr (std::is_same_v<T, float>)
        return ScalarType::Float32;
    else if constexpr (std::is_same_v<T, double>)
        return ScalarType::Float64;
    else {
        static_assert(std::is_integral_v<T> && sizeof(T) <= 8, "not a type of array values");
        constexpr int log2 = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
        return static_cast<ScalarType>(2 * log2 + (std::is_unsigned_v<T> ? 1 : 0));
    }
}

template <class T>
DataArray DataArray::from(std::string name, std::vector<T> values, std::int32_t num_components)
{
    auto shared = std::make_shared<const std::vector<T>>(std::move(values));
    const auto num_rows = static_cast<std::int64_t>(shared->size()) / num_components;
    const auto* data = reinterpret_cast<const std::byte*>(shared->data());
    return view(std::move(name), scalar_type_of<T>(), num_rows, num_components, data, std::move(shared));
}

/// Calls `f.template operator()<T>()` with the C++ type of `type`, for example with `[&]<class T>() { ...
/// array.values<T>() ... }`. @throws InvalidInput for String.
template <class F>
decltype(auto) with_scalar_type(ScalarType type, F&& f);

[[noreturn]] void throw_no_number(ScalarType type);

template <class F>
decltype(auto) with_scalar_type(ScalarType type, F&& f)
{
    switch (type) {
    case ScalarType::Int8:
        return f.template operator()<std::int8_t>();
    case ScalarType::UInt8:
        return f.template operator()<std::uint8_t>();
    case ScalarType::Int16:
        return f.template operator()<std::int16_t>();
    case ScalarType::UInt16:
        return f.template operator()<std::uint16_t>();
    case ScalarType::Int32:
        return f.template operator()<std::int32_t>();
    case ScalarType::UInt32:
        return f.template operator()<std::uint32_t>();
    case ScalarType::Int64:
        return f.template operator()<std::int64_t>();
    case ScalarType::UInt64:
        return f.template operator()<std::uint64_t>();
    case ScalarType::Float32:
        return f.template operator()<float>();
    case ScalarType::Float64:
        return f.template operator()<double>();
    case ScalarType::String:
        break;
    }
    throw_no_number(type);
}

}  // namespace meshard
