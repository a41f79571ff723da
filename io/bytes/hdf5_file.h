// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/block_codec.h"
#include "io/bytes/mapped_file.h"
#include "io/bytes/packed_numbers.h"
#include "partition/mesh/data_array.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// A file or group of HDF5. Errors of the library are thrown as IoError with a message that begins with `where`.
class Hdf5Group {
public:
    /// @throws IoError if it is missing or no HDF5 file.
    static Hdf5Group open_file(const std::filesystem::path& path, const std::string& where);
    static Hdf5Group create_file(const std::filesystem::path& path, const std::string& where);

    Hdf5Group(Hdf5Group&& other) noexcept
        : id_(std::exchange(other.id_, -1)), is_file_(other.is_file_), where_(std::move(other.where_))
    {
    }
    Hdf5Group& operator=(Hdf5Group&&) = delete;
    ~Hdf5Group();

    bool has(const std::string& name) const;
    bool is_group(const std::string& name) const;
    std::vector<std::string> names() const;  ///< names of all members, sorted
    Hdf5Group group(const std::string& name) const;
    Hdf5Group create_group(const std::string& name) const;

    std::optional<std::string> text_attribute(const std::string& name) const;
    std::vector<std::int64_t> integer_attribute(const std::string& name) const;  ///< empty if absent
    std::vector<double> real_attribute(const std::string& name) const;           ///< numbers; empty if absent
    void set_attribute(const std::string& name, const std::string& text) const;
    void set_attribute(const std::string& name, std::vector<std::int64_t> values) const;

    /// (rows, components) of a data set; one component if it has one dimension.
    std::pair<std::int64_t, std::int32_t> shape(const std::string& name) const;

    std::vector<std::int64_t> dimensions(const std::string& name) const;  ///< a data set has these
    ScalarType type_of(const std::string& name) const;                    ///< its values have this

    /// What netCDF, xarray and h5py write beside the values of a data set.
    struct Description {
        /// By the list `_ARRAY_DIMENSIONS`, labels, or the scales that are attached; empty: none of the dimensions has
        /// a name.
        std::vector<std::string> dimension_names;
        std::string unit;  ///< `units`
        PackedNumbers packing;
        std::string unread_attribute;  ///< one that changes what the numbers mean and is not understood; empty: none
    };
    Description description(const std::string& name) const;

    /// Fills an array with the values of a data set of numbers from `first` on, `count` along each dimension.
    void read_box(const std::string& name, const std::vector<std::int64_t>& first,
                  const std::vector<std::int64_t>& count, DataArray& values) const;

    /// Reads the rows `first` ... `first + count - 1` of numbers or texts in the file's type, with the attributes
    /// `ComponentNames` and `Units`.
    DataArray read(const std::string& name, std::int64_t first, std::int64_t count) const;
    DataArray read(const std::string& name) const { return read(name, 0, shape(name).first); }
    /// All rows of numbers as a view into `file`, the mapping of this file.
    /// @throws IoError if they are in chunks, compressed, texts, or not in this machine's byte order or alignment.
    DataArray map(const std::string& name, const std::shared_ptr<const MappedFile>& file) const;

    std::vector<std::int64_t> read_integers(const std::string& name, std::int64_t first, std::int64_t count) const;
    std::vector<std::int64_t> read_integers(const std::string& name) const
    {
        return read_integers(name, 0, shape(name).first);
    }

    /// Writes arrays of one type and one number of components one after another as one data set.
    void write(const std::string& name, const std::vector<const DataArray*>& parts, Compression compression) const;

    /// Writes numbers behind the rows of a data set that `append` began, in the type of the first ones.
    /// @returns the first of the new rows
    std::int64_t append(const std::string& name, const DataArray& rows) const;

    void close();  ///< closes a file that was written. @throws IoError if the disk is full
    [[noreturn]] void fail(const std::string& what) const;

private:
    Hdf5Group(std::int64_t id, bool is_file, std::string where) : id_(id), is_file_(is_file), where_(std::move(where))
    {
    }

    std::int64_t id_ = -1;
    bool is_file_ = false;
    std::string where_;
};

}  // namespace meshard
