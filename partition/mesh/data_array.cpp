// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/data_array.h"

#include "partition/error.h"

#include <cassert>
#include <cstring>

namespace meshard {

namespace {

// Rows of a size that is known at compile time: one or two move instructions each instead of a call of memcpy.
template <std::size_t row_bytes>
void gather_rows(const std::byte* from, std::span<const std::int32_t> rows, std::byte* to)
{
    for (std::size_t i = 0; i < rows.size(); ++i)
        std::memcpy(to + i * row_bytes, from + rows[i] * row_bytes, row_bytes);
}

void gather_rows(const std::byte* from, std::span<const std::int32_t> rows, std::size_t row_bytes, std::byte* to)
{
    switch (row_bytes) {
    case 1:
        return gather_rows<1>(from, rows, to);
    case 4:
        return gather_rows<4>(from, rows, to);
    case 8:
        return gather_rows<8>(from, rows, to);
    case 12:
        return gather_rows<12>(from, rows, to);
    case 24:
        return gather_rows<24>(from, rows, to);
    default:
        for (std::size_t i = 0; i < rows.size(); ++i)
            std::memcpy(to + i * row_bytes, from + rows[i] * row_bytes, row_bytes);
    }
}

void require_shape(const std::string& name, std::int64_t num_rows, std::int32_t num_components)
{
    if (num_rows < 0 || num_components < 1)
        throw InvalidInput("DataArray '{}': expected at least 0 rows and 1 component, got {} rows and {} components.",
                           name, num_rows, num_components);
}

}  // namespace

std::size_t size_of(ScalarType type)
{
    switch (type) {
    case ScalarType::Int8:
    case ScalarType::UInt8:
        return 1;
    case ScalarType::Int16:
    case ScalarType::UInt16:
        return 2;
    case ScalarType::Int32:
    case ScalarType::UInt32:
    case ScalarType::Float32:
        return 4;
    case ScalarType::Int64:
    case ScalarType::UInt64:
    case ScalarType::Float64:
        return 8;
    case ScalarType::String:
        break;
    }
    return 0;
}

std::string_view to_string(ScalarType type)
{
    constexpr std::string_view names[] = {"Int8",  "UInt8",  "Int16",   "UInt16",  "Int32", "UInt32",
                                          "Int64", "UInt64", "Float32", "Float64", "String"};
    return names[static_cast<std::size_t>(type)];
}

void throw_no_number(ScalarType type)
{
    throw InvalidInput("DataArray: values of type {} are not numbers; read them with strings().", to_string(type));
}

DataArray::DataArray(std::string name, ScalarType type, std::int64_t num_rows, std::int32_t num_components)
    : name_(std::move(name)), type_(type), num_rows_(num_rows), num_components_(num_components)
{
    require_shape(name_, num_rows, num_components);
    if (type == ScalarType::String) {
        strings_ = std::make_shared<const std::vector<std::string>>(num_values());
    } else {
        own_ = std::make_shared<std::vector<std::byte>>(num_values() * size_of(type));
        data_ = own_->data();
    }
}

DataArray DataArray::from_strings(std::string name, std::vector<std::string> values, std::int32_t num_components)
{
    if (num_components < 1 || values.size() % num_components != 0)
        throw InvalidInput("DataArray '{}': {} strings do not make rows of {}.", name, values.size(), num_components);
    DataArray array;
    array.name_ = std::move(name);
    array.type_ = ScalarType::String;
    array.num_rows_ = std::ssize(values) / num_components;
    array.num_components_ = num_components;
    array.strings_ = std::make_shared<const std::vector<std::string>>(std::move(values));
    return array;
}

DataArray DataArray::view(std::string name, ScalarType type, std::int64_t num_rows, std::int32_t num_components,
                          const std::byte* data, std::shared_ptr<const void> owner)
{
    if (type == ScalarType::String)
        throw InvalidInput("DataArray '{}': strings cannot be viewed; use from_strings.", name);
    require_shape(name, num_rows, num_components);
    if (num_rows > 0 && reinterpret_cast<std::uintptr_t>(data) % size_of(type) != 0)
        throw InvalidInput("DataArray '{}': the memory to view is not aligned for {}; copy it first.", name,
                           to_string(type));
    DataArray array;
    array.name_ = std::move(name);
    array.type_ = type;
    array.num_rows_ = num_rows;
    array.num_components_ = num_components;
    array.data_ = data;
    array.owner_ = std::move(owner);
    return array;
}

std::span<const std::byte> DataArray::bytes() const
{
    if (type_ == ScalarType::String) throw_no_number(type_);
    return {data_, static_cast<std::size_t>(num_values()) * size_of(type_)};
}

std::span<std::byte> DataArray::mutable_bytes()
{
    const auto size = bytes().size();
    return {own_bytes(), size};
}

std::span<const std::string> DataArray::strings() const
{
    require_type(ScalarType::String);
    if (!strings_) return {};
    return *strings_;
}

double DataArray::value(std::int64_t row, std::int32_t component) const
{
    assert(row >= 0 && row < num_rows_ && component >= 0 && component < num_components_);
    return with_scalar_type(type_, [&]<class T>() {
        return static_cast<double>(reinterpret_cast<const T*>(data_)[row * num_components_ + component]);
    });
}

std::vector<double> DataArray::to_doubles() const
{
    return with_scalar_type(type_, [&]<class T>() {
        const auto from = values<T>();
        return std::vector<double>(from.begin(), from.end());
    });
}

DataArray DataArray::gather(std::span<const std::int32_t> rows) const
{
    DataArray result;
    if (type_ == ScalarType::String) {
        std::vector<std::string> taken;
        taken.reserve(rows.size() * num_components_);
        for (const auto row : rows)
            for (std::int32_t c = 0; c < num_components_; ++c)
                taken.push_back((*strings_)[static_cast<std::size_t>(row) * num_components_ + c]);
        result = from_strings(name_, std::move(taken), num_components_);
    } else {
        result = DataArray(name_, type_, std::ssize(rows), num_components_);
        gather_rows(data_, rows, num_components_ * size_of(type_), result.own_->data());
    }
    result.component_names = component_names;
    result.unit = unit;
    result.attribute = attribute;
    return result;
}

bool DataArray::same_bits(const DataArray& other) const
{
    if (type_ != other.type_ || num_rows_ != other.num_rows_ || num_components_ != other.num_components_) return false;
    if (num_values() == 0) return true;
    if (type_ == ScalarType::String) return *strings_ == *other.strings_;
    return std::memcmp(data_, other.data_, bytes().size()) == 0;
}

void DataArray::require_type(ScalarType type) const
{
    if (type_ != type)
        throw InvalidInput("DataArray '{}' holds {}, asked for as {}.", name_, to_string(type_), to_string(type));
}

std::byte* DataArray::own_bytes()
{
    if (!own_ || own_.use_count() > 1) {
        const auto current = bytes();
        own_ = std::make_shared<std::vector<std::byte>>(current.begin(), current.end());
        owner_.reset();
        data_ = own_->data();
    }
    return own_->data();
}

}  // namespace meshard
