// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/array_grid.h"

#include "io/zarr/zarr_array.h"
#include "partition/error.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <ranges>
#include <string_view>
#include <utility>

namespace meshard {
namespace {

constexpr std::size_t kLeastDirections = 2, kMostDirections = 3;

bool is_of_components(const std::string& name)
{
    constexpr std::array<std::string_view, 5> kNames{"component", "components", "channel", "channels", "c"};
    return std::ranges::find(kNames, name) != kNames.end();
}

bool is_of_time(const std::string& name)
{
    constexpr std::array<std::string_view, 4> kNames{"time", "times", "t", "step"};
    return std::ranges::find(kNames, name) != kNames.end();
}

template <class T>
std::vector<T> without(const std::vector<T>& values, std::size_t dim)
{
    auto others = values;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(dim));
    return others;
}

}  // namespace

/// The grids that an array may have by itself, the likeliest first.
std::vector<ArrayGridFile::Directions> ArrayGridFile::possible_directions(const ShapedArray& array)
{
    std::vector<Directions> possible;
    const auto add = [&](std::vector<std::int64_t> counts, std::vector<std::string> names) {
        if (counts.size() >= kLeastDirections && counts.size() <= kMostDirections && std::ranges::min(counts) > 0)
            possible.push_back({std::move(counts), std::move(names)});
    };
    const auto& names = array.dimension_names;
    if (std::ranges::any_of(names, is_of_time)) return {};
    if (const auto found = std::ranges::find_if(names, is_of_components); found != names.end()) {
        const auto dim = static_cast<std::size_t>(found - names.begin());
        add(without(array.shape, dim), without(names, dim));
        return possible;
    }
    add(array.shape, names);
    if (array.shape.size() > kMostDirections && names.empty()) add(without(array.shape, array.shape.size() - 1), {});
    return possible;
}

bool ArrayGridFile::fits(const ShapedArray& array, const Directions& directions, Components& components)
{
    const auto& names = array.dimension_names;
    const auto are_those = [&](const std::vector<std::int64_t>& counts, const std::vector<std::string>& of_counts) {
        return counts == directions.counts &&
               (of_counts.empty() || directions.names.empty() || of_counts == directions.names);
    };
    components = Components::None;
    if (are_those(array.shape, names)) return std::ranges::none_of(names, is_of_components);
    if (array.shape.size() != directions.counts.size() + 1) return false;
    for (const auto& [place, dim] :
         {std::pair(Components::Last, array.shape.size() - 1), std::pair(Components::First, std::size_t{0})}) {
        const bool may_be = names.empty() || is_of_components(names[dim]);
        if (!may_be || !are_those(without(array.shape, dim), names.empty() ? names : without(names, dim))) continue;
        components = place;
        return array.shape[dim] > 0 && array.shape[dim] <= kMostComponents;
    }
    return false;
}

void ArrayGridFile::declare(const std::map<std::string, ShapedArray>& arrays, bool of_cells)
{
    std::optional<Directions> best;
    std::ptrdiff_t most = 0;
    Components components{};
    for (const auto& array : arrays | std::views::values) {
        for (auto& directions : possible_directions(array)) {
            const auto count = std::ranges::count_if(
                arrays | std::views::values, [&](const auto& other) { return fits(other, directions, components); });
            if (count <= most) continue;
            most = count;
            best = std::move(directions);
        }
    }
    if (!best)
        throw IoError(fmt::format("{} has no array of two or three dimensions without time, which would be a grid; it "
                                  "has {} arrays{}{}. Write the arrays as (y, x) or (z, y, x).",
                                  where_, arrays.size() + grid_.left_out.size(),
                                  grid_.left_out.empty() ? "" : ", of which '" + grid_.left_out.begin()->first + "' ",
                                  grid_.left_out.empty() ? "" : grid_.left_out.begin()->second));
    num_directions_ = best->counts.size();
    for (std::size_t i = 0; i < num_directions_; ++i) {
        const auto count = best->counts[num_directions_ - 1 - i];
        grid_.num_points[i] = of_cells && count > 1 ? count + 1 : count;
    }
    for (const auto& [name, array] : arrays) {
        if (fits(array, *best, components)) {
            components_[name] = components;
            const auto num_components = components == Components::None   ? 1
                                        : components == Components::Last ? array.shape.back()
                                                                         : array.shape.front();
            (of_cells ? grid_.cell_data : grid_.point_data)
                .emplace_back(name, array.type, 0, static_cast<std::int32_t>(num_components));
            continue;
        }
        const auto shape_text = [](const std::vector<std::int64_t>& shape, const std::vector<std::string>& names) {
            return fmt::format("[{}]{}", fmt::join(shape, ", "),
                               names.empty() ? "" : fmt::format(" ({})", fmt::join(names, ", ")));
        };
        grid_.left_out[name] =
            fmt::format("has the shape {}, and the grid, that of {} arrays, is {}, slowest direction first. Write it "
                        "with these dimensions, and those of components last in a dimension 'component'.",
                        shape_text(array.shape, array.dimension_names), most, shape_text(best->counts, best->names));
    }
    set_spacing(arrays, *best, of_cells);
}

void ArrayGridFile::set_spacing(const std::map<std::string, ShapedArray>& arrays, const Directions& directions,
                                bool of_cells)
{
    constexpr double kTolerance = 1e-3;  // coordinates may be in single precision
    for (std::size_t i = 0; i < num_directions_; ++i) {
        const auto dim = num_directions_ - 1 - i;
        const auto name = directions.names.empty() ? std::string(1, "xyz"[i]) : directions.names[dim];
        const auto found = arrays.find(name);
        const auto count = directions.counts[dim];
        if (found == arrays.end() || found->second.shape != std::vector{count} || count < 2) continue;
        DataArray values(name, found->second.type, count);
        read_box(name, {0}, {count}, values);
        const auto places = values.to_doubles();
        const auto spacing = (places.back() - places.front()) / static_cast<double>(count - 1);
        bool is_even = std::isfinite(spacing) && spacing > 0;
        for (std::size_t k = 1; k < places.size(); ++k)
            is_even = is_even && std::abs(places[k] - places[k - 1] - spacing) < kTolerance * spacing;
        if (!is_even) continue;
        grid_.spacing[i] = spacing;
        grid_.origin[i] = places.front() - (of_cells ? spacing / 2 : 0);
    }
}

DataArray ArrayGridFile::read(const std::string& name, bool of_cells, const GridBox& box) const
{
    auto values = values_for(name, of_cells, box);
    if (values.num_rows() == 0) return values;
    std::vector<std::int64_t> first, count;
    for (std::size_t i = num_directions_; i-- > 0;) {
        first.push_back(box.first[i]);
        count.push_back(box.count[i]);
    }
    const auto num_components = values.num_components();
    switch (components_.at(name)) {
    case Components::None:
        break;
    case Components::Last:
        first.push_back(0);
        count.push_back(num_components);
        break;
    case Components::First: {
        first.insert(first.begin(), 0);
        count.insert(count.begin(), num_components);
        DataArray apart(name, values.type(), values.num_values());
        read_box(name, first, count, apart);
        const auto width = size_of(values.type());
        const auto num_rows = static_cast<std::size_t>(values.num_rows());
        const auto* from = apart.bytes().data();
        const auto to = values.mutable_bytes();
        for (std::size_t c = 0; c < static_cast<std::size_t>(num_components); ++c)
            for (std::size_t row = 0; row < num_rows; ++row, from += width)
                std::memcpy(to.data() + (row * static_cast<std::size_t>(num_components) + c) * width, from, width);
        return values;
    }
    }
    read_box(name, first, count, values);
    return values;
}

namespace {

constexpr const char* kGridAttribute = "image_grid";  // of a group: what its arrays do not say

/// A group of Zarr arrays in a folder.
class ZarrGridFile : public ArrayGridFile {
public:
    explicit ZarrGridFile(const std::filesystem::path& path)
    {
        where_ = "read_mesh: " + path.string();
        group_ = open_zarr_group(path, where_);
        grid_.left_out = group_.left_out;
        std::map<std::string, ShapedArray> arrays;
        for (const auto& [name, array] : group_.arrays)
            arrays[name] = {array.type(), array.shape(), array.dimension_names()};
        const auto& attributes = group_.attributes;
        if (!attributes.is_object() || !attributes.contains(kGridAttribute)) {
            declare(arrays, true);
            return;
        }
        try {
            const auto& head = attributes.at(kGridAttribute);
            const bool of_cells = head.at("association") == "cell";
            declare(arrays, of_cells);
            read_head(head, of_cells);
        } catch (const nlohmann::json::exception& wrong) {
            throw IoError(fmt::format("{}: zarr.json has a damaged attribute {} ({}). Copy or write it again.", where_,
                                      kGridAttribute, wrong.what()));
        }
    }

private:
    void read_head(const nlohmann::json& head, bool of_cells)
    {
        const auto extents = whole_box(grid_, of_cells).count;
        head.at("first_point").get_to(grid_.first);
        head.at("num_points").get_to(grid_.num_points);
        head.at("origin").get_to(grid_.origin);
        head.at("spacing").get_to(grid_.spacing);
        head.at("direction").get_to(grid_.direction);
        if (const auto expected = whole_box(grid_, of_cells).count; extents != expected)
            throw IoError(fmt::format("{}: zarr.json has a grid of {}, and its arrays have {}, x first. Copy or write "
                                      "it again.",
                                      where_, fmt::join(expected, " x "), fmt::join(extents, " x ")));
    }

    void read_box(const std::string& name, const std::vector<std::int64_t>& first,
                  const std::vector<std::int64_t>& count, DataArray& values) const override
    {
        group_.arrays.at(name).read_box(first, count, values.mutable_bytes());
    }

    ZarrGroup group_;
};

}  // namespace

nlohmann::ordered_json attributes_of_grid(const ImageGrid& grid, bool of_cells)
{
    return {{kGridAttribute,
             {{"association", of_cells ? "cell" : "point"},
              {"first_point", grid.first},
              {"num_points", grid.num_points},
              {"origin", grid.origin},
              {"spacing", grid.spacing},
              {"direction", grid.direction}}}};
}

std::unique_ptr<GridFile> open_zarr_grid(const std::filesystem::path& path)
{
    return std::make_unique<ZarrGridFile>(path);
}

}  // namespace meshard
