// SPDX-License-Identifier: Apache-2.0
// open_vtkhdf_grid of vtkhdf.h, and open_hdf5_grid of array_grid.h.
#include "io/bytes/hdf5_file.h"
#include "io/vtk/array_grid.h"
#include "io/vtk/vtkhdf.h"
#include "partition/error.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace meshard {
namespace {

using Sizes = std::vector<std::int64_t>;

/// The library is not made for threads, and cases are read ahead in some.
std::mutex& mutex_of_library()
{
    static std::mutex mutex;
    return mutex;
}

/// Image data in a VTKHDF file.
class HdfGridFile : public GridFile {
public:
    explicit HdfGridFile(const std::filesystem::path& path)
    {
        where_ = "read_mesh: " + path.string();
        const std::lock_guard lock(mutex_of_library());
        const auto file = Hdf5Group::open_file(path, where_);
        root_.emplace(file.group("VTKHDF"));
        const auto type = root_->text_attribute("Type");
        if (!type || *type != "ImageData")
            root_->fail("holds '" + type.value_or("nothing with a Type") + "', image data are expected");
        const auto extent = root_->integer_attribute("WholeExtent");
        if (extent.size() != 6) root_->fail(fmt::format("WholeExtent has {} numbers, 6 are expected", extent.size()));
        for (const auto index : extent)
            if (index < -kFarthestPoint || index > kFarthestPoint)
                root_->fail(
                    fmt::format("WholeExtent is {}, which is no grid that fits memory", fmt::join(extent, " ")));
        const auto numbers = [&](const char* name, std::array<double, 3>& to) {
            const auto found = root_->real_attribute(name);
            if (found.size() == 3) std::ranges::copy(found, to.begin());
        };
        numbers("Origin", grid_.origin);
        numbers("Spacing", grid_.spacing);
        if (auto direction = root_->real_attribute("Direction"); direction.size() == 9)
            grid_.direction = std::move(direction);
        for (int axis = 0; axis < 3; ++axis) {
            grid_.first[axis] = extent[2 * axis];
            grid_.num_points[axis] = extent[2 * axis + 1] - extent[2 * axis] + 1;
            if (grid_.num_points[axis] < 1)
                root_->fail(fmt::format("WholeExtent is {}, which is no grid", fmt::join(extent, " ")));
        }
        declare("PointData", false, grid_.point_data);
        declare("CellData", true, grid_.cell_data);
        if (!root_->is_group("FieldData")) return;
        const auto fields = root_->group("FieldData");
        for (const auto& name : fields.names())
            if (auto array = fields.read(name); array.type() != ScalarType::String)
                grid_.field_data.push_back(std::move(array));
    }

    ~HdfGridFile() override
    {
        const std::lock_guard lock(mutex_of_library());
        root_.reset();
    }

    DataArray read(const std::string& name, bool of_cells, const GridBox& box) const override
    {
        auto values = values_for(name, of_cells, box);
        if (values.num_rows() == 0) return values;
        const std::lock_guard lock(mutex_of_library());
        const auto group = root_->group(of_cells ? "CellData" : "PointData");
        const auto num_dimensions = group.dimensions(name).size();
        const auto whole = whole_box(grid_, of_cells);
        Sizes first, count;
        for (const int axis : {2, 1, 0}) {
            if (is_reduced_.contains({of_cells, name}) && whole.count[axis] == 1) continue;
            first.push_back(box.first[axis]);
            count.push_back(box.count[axis]);
        }
        if (count.size() < num_dimensions) {
            first.push_back(0);
            count.push_back(values.num_components());
        }
        group.read_box(name, first, count, values);
        return values;
    }

private:
    /// Lists the arrays of a group. Each has the dimensions of the grid, z first, maybe without those that have one
    /// place; then its components.
    void declare(const char* name_of_group, bool of_cells, std::vector<DataArray>& arrays)
    {
        if (!root_->is_group(name_of_group)) return;
        const auto group = root_->group(name_of_group);
        const auto whole = whole_box(grid_, of_cells);
        for (const auto& name : group.names()) {
            const auto found = group.dimensions(name);
            std::int64_t num_components = 0;
            for (const bool is_reduced : {true, false}) {
                Sizes expected;
                for (const int axis : {2, 1, 0})
                    if (!is_reduced || whole.count[axis] > 1) expected.push_back(whole.count[axis]);
                const bool has_components = found.size() == expected.size() + 1;
                if (has_components) expected.push_back(found.back());
                if (found != expected) continue;
                num_components = has_components ? found.back() : 1;
                is_reduced ? void(is_reduced_.insert({of_cells, name})) : void(is_reduced_.erase({of_cells, name}));
            }
            if (num_components < 1)
                group.fail(fmt::format("the data set '{}/{}' has {} values, and the grid {} {}s, z first",
                                       name_of_group, name, fmt::join(found, " x "),
                                       fmt::join(whole.count.rbegin(), whole.count.rend(), " x "),
                                       of_cells ? "cell" : "point"));
            arrays.emplace_back(name, group.type_of(name), 0, static_cast<std::int32_t>(num_components));
        }
    }

    std::set<std::pair<bool, std::string>> is_reduced_;  // arrays, of cells or not, without directions of one place
    std::optional<Hdf5Group> root_;
};

/// Data sets of an HDF5 file.
class HdfArraysFile : public ArrayGridFile {
public:
    HdfArraysFile(const std::filesystem::path& path, std::optional<double> time)
    {
        where_ = "read_mesh: " + path.string();
        std::map<std::string, ShapedArray> arrays;
        {
            const std::lock_guard lock(mutex_of_library());
            root_.emplace(Hdf5Group::open_file(path, where_));
            add_arrays(*root_, "", 0, arrays);
        }
        declare(std::move(arrays), true, time);
    }

    ~HdfArraysFile() override
    {
        const std::lock_guard lock(mutex_of_library());
        root_.reset();
    }

private:
    void add_arrays(const Hdf5Group& group, const std::string& prefix, int depth,
                    std::map<std::string, ShapedArray>& arrays)
    {
        constexpr int kDeepest = 16;  // links may lead back up
        for (const auto& name : group.names()) {
            if (group.is_group(name)) {
                if (depth < kDeepest) add_arrays(group.group(name), prefix + name + "/", depth + 1, arrays);
                continue;
            }
            auto description = group.description(name);
            ShapedArray array{.shape = group.dimensions(name),
                              .dimension_names = std::move(description.dimension_names),
                              .unit = std::move(description.unit),
                              .packing = std::move(description.packing)};
            try {
                array.type = group.type_of(name);
            } catch (const IoError&) {
                array.type = ScalarType::String;
            }
            if (array.type == ScalarType::String)
                grid_.left_out[prefix + name] = "holds no numbers of up to 64 bits. Write it as float32.";
            else if (!description.unread_attribute.empty())
                grid_.left_out[prefix + name] =
                    fmt::format("has the attribute {}, which is not read. Write it unpacked, as float32.",
                                description.unread_attribute);
            else
                arrays[prefix + name] = std::move(array);
        }
    }

    void read_box(const std::string& name, const std::vector<std::int64_t>& first,
                  const std::vector<std::int64_t>& count, DataArray& values) const override
    {
        const std::lock_guard lock(mutex_of_library());
        root_->read_box(name, first, count, values);
    }

    std::optional<Hdf5Group> root_;
};

}  // namespace

std::unique_ptr<GridFile> open_hdf5_grid(const std::filesystem::path& path, std::optional<double> time)
{
    const auto where = "read_mesh: " + path.string();
    if (std::filesystem::is_regular_file(path) && RandomAccessFile::open(path, "read_mesh")->text(0, 3) == "CDF")
        throw IoError("{} is a file of classic netCDF, netCDF-4 is expected. Convert it: nccopy -k nc4 OLD NEW", where);
    bool is_of_vtk = false;
    {
        const std::lock_guard lock(mutex_of_library());
        is_of_vtk = Hdf5Group::open_file(path, where).is_group("VTKHDF");
    }
    if (is_of_vtk) return open_vtkhdf_grid(path);
    return std::make_unique<HdfArraysFile>(path, time);
}

std::unique_ptr<GridFile> open_vtkhdf_grid(const std::filesystem::path& path)
{
    return std::make_unique<HdfGridFile>(path);
}

}  // namespace meshard
