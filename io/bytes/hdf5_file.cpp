// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/hdf5_file.h"

#include "partition/error.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <hdf5.h>
#include <memory>
#include <type_traits>

namespace meshard {

namespace {

// Largest ratio of deflate, and a margin for data sets that were never written.
constexpr std::uint64_t largest_hdf5_ratio = 1100;

class Handle {
public:
    Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
    ~Handle()
    {
        if (id_ >= 0) close_(id_);
    }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    operator hid_t() const { return id_; }

private:
    hid_t id_;
    herr_t (*close_)(hid_t);
};

void be_silent()
{
    H5dont_atexit();  // at exit the library would try again to write what has failed, and crash
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

hid_t memory_type(ScalarType type)
{
    switch (type) {
    case ScalarType::Int8:
        return H5T_NATIVE_INT8;
    case ScalarType::UInt8:
        return H5T_NATIVE_UINT8;
    case ScalarType::Int16:
        return H5T_NATIVE_INT16;
    case ScalarType::UInt16:
        return H5T_NATIVE_UINT16;
    case ScalarType::Int32:
        return H5T_NATIVE_INT32;
    case ScalarType::UInt32:
        return H5T_NATIVE_UINT32;
    case ScalarType::Int64:
        return H5T_NATIVE_INT64;
    case ScalarType::UInt64:
        return H5T_NATIVE_UINT64;
    case ScalarType::Float32:
        return H5T_NATIVE_FLOAT;
    default:
        return H5T_NATIVE_DOUBLE;
    }
}

std::optional<ScalarType> scalar_type(hid_t type)
{
    const std::size_t size = H5Tget_size(type);
    const H5T_class_t kind = H5Tget_class(type);
    if (kind == H5T_STRING) return ScalarType::String;
    if (kind == H5T_FLOAT && size == 4) return ScalarType::Float32;
    if (kind == H5T_FLOAT && size == 8) return ScalarType::Float64;
    if (kind != H5T_INTEGER) return std::nullopt;
    const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
    switch (size) {
    case 1:
        return is_signed ? ScalarType::Int8 : ScalarType::UInt8;
    case 2:
        return is_signed ? ScalarType::Int16 : ScalarType::UInt16;
    case 4:
        return is_signed ? ScalarType::Int32 : ScalarType::UInt32;
    case 8:
        return is_signed ? ScalarType::Int64 : ScalarType::UInt64;
    default:
        return std::nullopt;
    }
}

/// Reads `count` texts of an attribute or data set whose type is `type`; `read` fills memory of the type that it is
/// given.
template <class Read>
std::optional<std::vector<std::string>> read_texts(hid_t type, hid_t space, std::size_t count, Read&& read)
{
    std::vector<std::string> texts;
    if (H5Tis_variable_str(type) > 0) {
        const Handle memory(H5Tcopy(H5T_C_S1), H5Tclose);
        H5Tset_size(memory, H5T_VARIABLE);
        H5Tset_cset(memory, H5Tget_cset(type));
        std::vector<char*> pointers(count, nullptr);
        if (read(static_cast<hid_t>(memory), pointers.data()) < 0) return std::nullopt;
        for (const char* text : pointers) texts.emplace_back(text != nullptr ? text : "");
        H5Dvlen_reclaim(memory, space, H5P_DEFAULT, pointers.data());
        return texts;
    }
    const std::size_t size = H5Tget_size(type);
    std::vector<char> bytes(size * count);
    if (read(type, bytes.data()) < 0) return std::nullopt;
    for (std::size_t i = 0; i < count; ++i) {
        const char* begin = bytes.data() + i * size;
        texts.emplace_back(begin, std::find(begin, begin + size, '\0'));
    }
    return texts;
}

void set_text_attribute(hid_t object, const std::string& name, const std::string& text)
{
    const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type, std::max<std::size_t>(1, text.size()));
    H5Tset_strpad(type, H5T_STR_NULLPAD);
    const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    const Handle attribute(H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    const std::string padded = text.empty() ? std::string(1, '\0') : text;
    H5Awrite(attribute, type, padded.data());
}

/// The `count` texts of an attribute; none if it is absent, or has others.
std::optional<std::vector<std::string>> get_text_attributes(hid_t object, const char* name, std::size_t count)
{
    if (H5Aexists(object, name) <= 0) return std::nullopt;
    const Handle attribute(H5Aopen(object, name, H5P_DEFAULT), H5Aclose);
    const Handle type(H5Aget_type(attribute), H5Tclose);
    const Handle space(H5Aget_space(attribute), H5Sclose);
    if (H5Tget_class(type) != H5T_STRING || H5Sget_simple_extent_npoints(space) != static_cast<hssize_t>(count))
        return std::nullopt;
    return read_texts(type, space, count, [&](hid_t memory, void* to) { return H5Aread(attribute, memory, to); });
}

std::optional<std::string> get_text_attribute(hid_t object, const std::string& name)
{
    const auto texts = get_text_attributes(object, name.c_str(), 1);
    if (!texts) return std::nullopt;
    return texts->front();
}

/// The names of the first scale that is attached to each dimension of a data set: the last parts of their paths.
std::vector<std::string> names_of_scales(hid_t set, std::size_t num_dimensions)
{
    constexpr const char* kList = "DIMENSION_LIST";
    std::vector<std::string> names(num_dimensions);
    if (H5Aexists(set, kList) <= 0) return names;
    const Handle attribute(H5Aopen(set, kList, H5P_DEFAULT), H5Aclose);
    const Handle type(H5Aget_type(attribute), H5Tclose);
    const Handle space(H5Aget_space(attribute), H5Sclose);
    if (H5Tget_class(type) != H5T_VLEN || H5Sget_simple_extent_npoints(space) != static_cast<hssize_t>(num_dimensions))
        return names;
    const Handle of_one(H5Tget_super(type), H5Tclose);
    std::vector<hvl_t> lists(num_dimensions);
    if (H5Tequal(of_one, H5T_STD_REF_OBJ) <= 0 || H5Aread(attribute, type, lists.data()) < 0) return names;
    for (std::size_t i = 0; i < num_dimensions; ++i) {
        if (lists[i].len == 0) continue;
        const Handle scale(H5Rdereference2(set, H5P_DEFAULT, H5R_OBJECT, lists[i].p), H5Oclose);
        std::array<char, 1024> path{};
        if (scale < 0 || H5Iget_name(scale, path.data(), path.size()) <= 0) continue;
        names[i] = path.data();
        names[i].erase(0, names[i].rfind('/') + 1);
    }
    H5Dvlen_reclaim(type, space, H5P_DEFAULT, lists.data());
    return names;
}

/// The numbers of an attribute; empty if it is absent, has none, or has others than integers and `T` are.
template <class T>
std::vector<T> get_numbers(hid_t object, const std::string& name)
{
    if (H5Aexists(object, name.c_str()) <= 0) return {};
    const Handle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT), H5Aclose);
    const Handle space(H5Aget_space(attribute), H5Sclose);
    const Handle type(H5Aget_type(attribute), H5Tclose);
    const auto count = H5Sget_simple_extent_npoints(space);
    const auto kind = H5Tget_class(type);
    const bool is_read = kind == H5T_INTEGER || (kind == H5T_FLOAT && std::is_floating_point_v<T>);
    if (count < 0 || count > 1000 || !is_read) return {};
    std::vector<T> values(count);
    const auto memory = std::is_floating_point_v<T> ? H5T_NATIVE_DOUBLE : H5T_NATIVE_INT64;
    if (H5Aread(attribute, memory, values.data()) < 0) return {};
    return values;
}

Handle opened(const Hdf5Group& group, hid_t id, const std::string& name)
{
    const hid_t set = group.has(name) ? H5Dopen2(id, name.c_str(), H5P_DEFAULT) : -1;
    if (set < 0) group.fail("has no data set '" + name + "'");
    return {set, H5Dclose};
}

/// @param type   that of the data set `name`
ScalarType type_in(const Hdf5Group& group, hid_t type, const std::string& name)
{
    const auto kind = scalar_type(type);
    if (!kind)
        group.fail("the data set '" + name +
                   "' holds neither integers nor floating numbers of up to 64 bits nor texts");
    return *kind;
}

[[noreturn]] void fail_to_write(const Hdf5Group& group, const std::string& name)
{
    group.fail("the data set '" + name + "' cannot be written. Is the disk full?");
}

/// Stores a data set in chunks of at most 2^17 values. @param dims   rows, at least 1, and components
void set_chunks(hid_t plan, int rank, const std::array<hsize_t, 2>& dims)
{
    const std::array<hsize_t, 2> chunk{std::min(dims[0], std::max<hsize_t>(1, (hsize_t{1} << 17) / dims[1])), dims[1]};
    H5Pset_chunk(plan, rank, chunk.data());
}

/// Writes the rows of an array from row `start` of a data set on. @param space   of the data set
bool write_rows(hid_t set, hid_t type, hid_t space, int rank, hsize_t start, const DataArray& rows, const void* data)
{
    if (rows.num_values() == 0) return true;
    const std::array<hsize_t, 2> first{start, 0};
    const std::array<hsize_t, 2> count{static_cast<hsize_t>(rows.num_rows()),
                                       static_cast<hsize_t>(rows.num_components())};
    H5Sselect_hyperslab(space, H5S_SELECT_SET, first.data(), nullptr, count.data(), nullptr);
    const Handle memory(H5Screate_simple(rank, count.data(), nullptr), H5Sclose);
    return H5Dwrite(set, type, memory, space, H5P_DEFAULT, data) >= 0;
}

void set_description(hid_t set, const DataArray& array)
{
    if (!array.component_names.empty())
        set_text_attribute(set, "ComponentNames", fmt::format("{}", fmt::join(array.component_names, "\n")));
    if (!array.unit.empty()) set_text_attribute(set, "Units", array.unit);
}

}  // namespace

Hdf5Group Hdf5Group::open_file(const std::filesystem::path& path, const std::string& where)
{
    be_silent();
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) throw IoError("{} does not exist. Check the path.", where);
    if (std::filesystem::is_directory(path, ignored)) throw IoError("{} is a folder, a file is expected.", where);
    const hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    if (id < 0) throw IoError("{} cannot be opened as HDF5. It is truncated, damaged, or another kind of file.", where);
    return {id, true, where};
}

Hdf5Group Hdf5Group::create_file(const std::filesystem::path& path, const std::string& where)
{
    be_silent();
    // Aligned, so that readers may map data sets instead of copying them.
    const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_alignment(access, 64, 8);
    const hid_t id = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
    if (id < 0) throw IoError("{} cannot be made. Is there such a folder, and may you write in it?", where);
    return {id, true, where};
}

Hdf5Group::~Hdf5Group()
{
    if (id_ >= 0) is_file_ ? H5Fclose(id_) : H5Gclose(id_);
}

void Hdf5Group::fail(const std::string& what) const
{
    throw IoError("{}: {}.", where_, what);
}

bool Hdf5Group::has(const std::string& name) const
{
    return H5Lexists(id_, name.c_str(), H5P_DEFAULT) > 0 && H5Oexists_by_name(id_, name.c_str(), H5P_DEFAULT) > 0;
}

bool Hdf5Group::is_group(const std::string& name) const
{
    if (!has(name)) return false;
    const Handle object(H5Oopen(id_, name.c_str(), H5P_DEFAULT), H5Oclose);
    return H5Iget_type(object) == H5I_GROUP;
}

std::vector<std::string> Hdf5Group::names() const
{
    std::vector<std::string> names;
    const auto add = [](hid_t, const char* name, const H5L_info_t*, void* to) -> herr_t {
        static_cast<std::vector<std::string>*>(to)->emplace_back(name);
        return 0;
    };
    // In the order of the file: the library sorts the links of damaged groups in memory that it has not filled.
    if (H5Literate(id_, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, add, &names) < 0)
        fail("a group cannot be listed. It is damaged");
    std::ranges::sort(names);
    return names;
}

Hdf5Group Hdf5Group::group(const std::string& name) const
{
    const hid_t id = has(name) ? H5Gopen2(id_, name.c_str(), H5P_DEFAULT) : -1;
    if (id < 0) fail("has no group '" + name + "'");
    return {id, false, where_};
}

Hdf5Group Hdf5Group::create_group(const std::string& name) const
{
    const hid_t id = H5Gcreate2(id_, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (id < 0) fail("the group '" + name + "' cannot be written");
    return {id, false, where_};
}

std::optional<std::string> Hdf5Group::text_attribute(const std::string& name) const
{
    return get_text_attribute(id_, name);
}

std::vector<std::int64_t> Hdf5Group::integer_attribute(const std::string& name) const
{
    return get_numbers<std::int64_t>(id_, name);
}

std::vector<double> Hdf5Group::real_attribute(const std::string& name) const
{
    return get_numbers<double>(id_, name);
}

void Hdf5Group::set_attribute(const std::string& name, const std::string& text) const
{
    set_text_attribute(id_, name, text);
}

void Hdf5Group::set_attribute(const std::string& name, std::vector<std::int64_t> values) const
{
    const hsize_t size = values.size();
    const Handle space(values.size() == 1 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &size, nullptr), H5Sclose);
    const Handle attribute(H5Acreate2(id_, name.c_str(), H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    if (H5Awrite(attribute, H5T_NATIVE_INT64, values.data()) < 0)
        fail("the attribute '" + name + "' cannot be written");
}

std::pair<std::int64_t, std::int32_t> Hdf5Group::shape(const std::string& name) const
{
    const Handle set = opened(*this, id_, name);
    const Handle space(H5Dget_space(set), H5Sclose);
    const int rank = H5Sget_simple_extent_ndims(space);
    if (rank == 0 && H5Sget_simple_extent_type(space) == H5S_SCALAR) return {1, 1};
    if (rank < 1 || rank > 3) fail(fmt::format("the data set '{}' has {} dimensions, expected 1 or 2", name, rank));
    std::array<hsize_t, 3> dims{1, 1, 1};
    H5Sget_simple_extent_dims(space, dims.data(), nullptr);
    const hsize_t components = dims[1] * dims[2];
    if (dims[0] > INT32_MAX || components > 65536 || components < 1)
        fail(fmt::format("the data set '{}' has {} x {} values, more than can be read", name, dims[0], components));
    return {static_cast<std::int64_t>(dims[0]), static_cast<std::int32_t>(components)};
}

std::vector<std::int64_t> Hdf5Group::dimensions(const std::string& name) const
{
    const Handle set = opened(*this, id_, name);
    const Handle space(H5Dget_space(set), H5Sclose);
    std::vector<hsize_t> found(std::max(0, H5Sget_simple_extent_ndims(space)));
    if (!found.empty()) H5Sget_simple_extent_dims(space, found.data(), nullptr);
    return {found.begin(), found.end()};
}

ScalarType Hdf5Group::type_of(const std::string& name) const
{
    const Handle set = opened(*this, id_, name);
    const Handle type(H5Dget_type(set), H5Tclose);
    return type_in(*this, type, name);
}

Hdf5Group::Description Hdf5Group::description(const std::string& name) const
{
    const Handle set = opened(*this, id_, name);
    const auto num_dimensions = dimensions(name).size();
    Description found;
    found.unit = get_text_attribute(set, "units").value_or("");
    if (get_text_attribute(set, "_Unsigned") == "true") found.unread_attribute = "_Unsigned";
    const auto take = [&](const char* name, double& to) {
        const auto numbers = get_numbers<double>(set, name);
        if (numbers.size() == 1) to = numbers.front();
        if (numbers.size() != 1 && H5Aexists(set, name) > 0) found.unread_attribute = name;
    };
    take("scale_factor", found.packing.scale);
    take("add_offset", found.packing.offset);
    for (const char* missing : {"_FillValue", "missing_value"})
        for (const auto value : get_numbers<double>(set, missing))
            if (!std::isnan(value)) found.packing.missing.push_back(value);
    for (const char* list : {"_ARRAY_DIMENSIONS", "DIMENSION_LABELS"})
        if (auto names = get_text_attributes(set, list, num_dimensions)) found.dimension_names = std::move(*names);
    found.dimension_names.resize(num_dimensions);
    const auto of_scales = names_of_scales(set, num_dimensions);
    for (std::size_t i = 0; i < num_dimensions; ++i)
        if (found.dimension_names[i].empty()) found.dimension_names[i] = of_scales[i];
    if (std::ranges::all_of(found.dimension_names, &std::string::empty)) found.dimension_names.clear();
    return found;
}

void Hdf5Group::read_box(const std::string& name, const std::vector<std::int64_t>& first,
                         const std::vector<std::int64_t>& count, DataArray& values) const
{
    const Handle set = opened(*this, id_, name);
    const Handle space(H5Dget_space(set), H5Sclose);
    const std::vector<hsize_t> start(first.begin(), first.end()), sizes(count.begin(), count.end());
    if (H5Sget_simple_extent_ndims(space) != static_cast<int>(start.size()) ||
        H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, sizes.data(), nullptr) < 0 ||
        H5Sselect_valid(space) <= 0 || H5Sget_select_npoints(space) != values.num_values())
        fail("the data set '" + name + "' has other dimensions than expected");
    const Handle memory(H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr), H5Sclose);
    if (H5Dread(set, memory_type(values.type()), memory, space, H5P_DEFAULT, values.mutable_bytes().data()) < 0)
        fail("the data set '" + name + "' cannot be read. It is truncated or damaged");
}

DataArray Hdf5Group::read(const std::string& name, std::int64_t first, std::int64_t count) const
{
    const auto [num_rows, num_components] = shape(name);
    if (first < 0 || count < 0 || first > num_rows || count > num_rows - first)
        fail(fmt::format("the data set '{}' has {} rows, the rows {} to {} are asked for. It is damaged", name,
                         num_rows, first, first + count - 1));
    const Handle set(H5Dopen2(id_, name.c_str(), H5P_DEFAULT), H5Dclose);
    const Handle type(H5Dget_type(set), H5Tclose);
    const auto kind = type_in(*this, type, name);
    if (static_cast<std::uint64_t>(count) * static_cast<std::uint64_t>(num_components) *
            std::max<std::size_t>(1, size_of(kind)) / largest_hdf5_ratio >
        H5Dget_storage_size(set) + 1024)
        fail("the data set '" + name + "' announces more rows than its bytes can hold. It is damaged");

    const Handle space(H5Dget_space(set), H5Sclose);
    const int rank = H5Sget_simple_extent_ndims(space);
    std::array<hsize_t, 3> start{static_cast<hsize_t>(first), 0, 0}, dims{1, 1, 1};
    if (rank > 0) {
        H5Sget_simple_extent_dims(space, dims.data(), nullptr);
        dims[0] = static_cast<hsize_t>(count);
        if (count > 0) H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, dims.data(), nullptr);
    }
    DataArray array(name, kind, count, num_components);
    if (count > 0) {
        const Handle memory(rank > 0 ? H5Screate_simple(rank, dims.data(), nullptr) : H5Screate(H5S_SCALAR), H5Sclose);
        if (kind == ScalarType::String) {
            auto texts =
                read_texts(type, memory, static_cast<std::size_t>(count) * static_cast<std::size_t>(num_components),
                           [&](hid_t as, void* to) { return H5Dread(set, as, memory, space, H5P_DEFAULT, to); });
            if (!texts) fail("the data set '" + name + "' cannot be read. It is truncated or damaged");
            array = DataArray::from_strings(name, std::move(*texts), num_components);
        } else if (H5Dread(set, memory_type(kind), memory, space, H5P_DEFAULT, array.mutable_bytes().data()) < 0) {
            fail("the data set '" + name + "' cannot be read. It is truncated or damaged");
        }
    }
    if (const auto names = get_text_attribute(set, "ComponentNames")) {
        std::vector<std::string> parts(1);
        for (const char c : *names) {
            if (c == '\n')
                parts.emplace_back();
            else
                parts.back().push_back(c);
        }
        if (parts.size() == static_cast<std::size_t>(num_components)) array.component_names = std::move(parts);
    }
    if (auto unit = get_text_attribute(set, "Units")) array.unit = std::move(*unit);
    return array;
}

DataArray Hdf5Group::map(const std::string& name, const std::shared_ptr<const MappedFile>& file) const
{
    const DataArray like = read(name, 0, 0);
    const auto num_rows = shape(name).first;
    if (num_rows == 0) return like;
    const Handle set(H5Dopen2(id_, name.c_str(), H5P_DEFAULT), H5Dclose);
    const Handle type(H5Dget_type(set), H5Tclose);
    const auto offset = H5Dget_offset(set);
    const auto size = static_cast<std::size_t>(num_rows * like.num_components()) * size_of(like.type());
    const bool is_machine_order = like.type() != ScalarType::String && H5Tequal(type, memory_type(like.type())) > 0;
    if (!is_machine_order || offset == HADDR_UNDEF || offset % 8 != 0 || offset > file->bytes().size() ||
        size > file->bytes().size() - offset)
        fail("the data set '" + name +
             "' does not lie in one aligned run of little-endian numbers and cannot be mapped; write the file with "
             "`meshard convert FILE whole.vtkhdf` and cut "
             "that");
    DataArray array =
        DataArray::view(name, like.type(), num_rows, like.num_components(), file->bytes().data() + offset, file);
    array.component_names = like.component_names;
    array.unit = like.unit;
    return array;
}

std::vector<std::int64_t> Hdf5Group::read_integers(const std::string& name, std::int64_t first,
                                                   std::int64_t count) const
{
    const DataArray array = read(name, first, count);
    if (array.type() == ScalarType::String || array.type() == ScalarType::Float32 ||
        array.type() == ScalarType::Float64)
        fail("the data set '" + name + "' holds " + std::string(to_string(array.type())) + ", integers are expected");
    return with_scalar_type(array.type(), [&]<class T>() {
        const auto values = array.values<T>();
        return std::vector<std::int64_t>(values.begin(), values.end());
    });
}

void Hdf5Group::write(const std::string& name, const std::vector<const DataArray*>& parts,
                      Compression compression) const
{
    const DataArray& first = *parts.front();
    const bool is_text = first.type() == ScalarType::String;
    hsize_t total = 0;
    for (const DataArray* part : parts) total += static_cast<hsize_t>(part->num_rows());
    const int rank = first.num_components() == 1 ? 1 : 2;
    std::array<hsize_t, 2> dims{total, static_cast<hsize_t>(first.num_components())};
    const Handle space(H5Screate_simple(rank, dims.data(), nullptr), H5Sclose);
    const Handle text_type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(text_type, H5T_VARIABLE);
    H5Tset_cset(text_type, H5T_CSET_UTF8);
    const hid_t type = is_text ? static_cast<hid_t>(text_type) : memory_type(first.type());
    const Handle plan(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    if (compression == Compression::Zlib && total > 0 && !is_text) {
        set_chunks(plan, rank, dims);
        H5Pset_deflate(plan, 4);
    }
    const Handle set(H5Dcreate2(id_, name.c_str(), type, space, H5P_DEFAULT, plan, H5P_DEFAULT), H5Dclose);
    if (set < 0) fail_to_write(*this, name);
    hsize_t start = 0;
    for (const DataArray* part : parts) {
        std::vector<const char*> texts;
        if (is_text)
            for (const std::string& text : part->strings()) texts.push_back(text.c_str());
        const void* data = is_text ? static_cast<const void*>(texts.data()) : part->bytes().data();
        if (!write_rows(set, type, space, rank, start, *part, data)) fail_to_write(*this, name);
        start += static_cast<hsize_t>(part->num_rows());
    }
    set_description(set, first);
}

std::int64_t Hdf5Group::append(const std::string& name, const DataArray& rows) const
{
    const int rank = rows.num_components() == 1 ? 1 : 2;
    std::array<hsize_t, 2> dims{0, static_cast<hsize_t>(rows.num_components())};
    if (!has(name)) {
        const std::array<hsize_t, 2> most{H5S_UNLIMITED, dims[1]};
        const Handle space(H5Screate_simple(rank, dims.data(), most.data()), H5Sclose);
        const Handle plan(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
        set_chunks(plan, rank, {static_cast<hsize_t>(std::max<std::int64_t>(1, rows.num_rows())), dims[1]});
        const Handle made(
            H5Dcreate2(id_, name.c_str(), memory_type(rows.type()), space, H5P_DEFAULT, plan, H5P_DEFAULT), H5Dclose);
        if (made < 0) fail_to_write(*this, name);
        set_description(made, rows);
    }
    const Handle set(H5Dopen2(id_, name.c_str(), H5P_DEFAULT), H5Dclose);
    const auto first = shape(name).first;
    dims[0] = static_cast<hsize_t>(first + rows.num_rows());
    if (H5Dset_extent(set, dims.data()) < 0) fail_to_write(*this, name);
    const Handle space(H5Dget_space(set), H5Sclose);
    if (!write_rows(set, memory_type(rows.type()), space, rank, static_cast<hsize_t>(first), rows, rows.bytes().data()))
        fail_to_write(*this, name);
    return first;
}

void Hdf5Group::close()
{
    const hid_t id = std::exchange(id_, -1);
    if (H5Fflush(id, H5F_SCOPE_LOCAL) < 0 || H5Fclose(id) < 0) fail("cannot be written to the end. Is the disk full?");
}

}  // namespace meshard
