// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/array_grid.h"

#include "io/bytes/time_choice.h"
#include "io/zarr/zarr_array.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <ranges>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

namespace meshard {
namespace {

constexpr std::size_t kLeastDirections = 2, kMostDirections = 3;

bool is_of_components(const std::string& name)
{
    constexpr std::array<std::string_view, 5> kNames{"component", "components", "channel", "channels", "c"};
    return contains(kNames, name);
}

constexpr std::array<std::string_view, 5> kTimes{"time", "times", "t", "step", "valid_time"};

bool is_of_time(const std::string& name)
{
    return contains(kTimes, name);
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

/// Takes the dimension of time out of the arrays that have one. Arrays whose times are not those of the others, or are
/// not there, are left out.
void ArrayGridFile::take_time(std::map<std::string, ShapedArray>& arrays)
{
    const auto find_times = [&](const std::string& name, std::string_view dimension) {
        const auto beside = arrays.find(name.substr(0, name.rfind('/') + 1).append(dimension));
        return beside != arrays.end() ? beside : arrays.find(std::string(dimension));
    };
    for (auto& [name, array] : arrays) {
        auto& shape = array.shape;
        auto& names = array.dimension_names;
        if (shape.size() <= kLeastDirections) continue;
        std::vector<std::size_t> dims;
        std::string dimension;
        for (std::size_t dim = 0; dim < names.size(); ++dim)
            if (is_of_time(names[dim])) {
                dims.push_back(dim);
                dimension += (dimension.empty() ? "" : ", ") + names[dim];
            }
        for (const auto times : kTimes) {
            const auto found = find_times(name, times);
            if (!names.empty() || found == arrays.end() || found->second.shape != std::vector{shape.front()}) continue;
            dims = {0};
            dimension = times;
        }
        if (dims.empty()) continue;
        const auto found = find_times(name, dimension);
        std::string why;
        if (dims.size() > 1)
            why = fmt::format("has several dimensions of time ({}). Write it with one of them.", dimension);
        else if (found == arrays.end() || found->second.shape.size() != 1)
            why = fmt::format("has the dimension '{0}', and there is no array '{0}' of numbers with the times. Write "
                              "one, of one dimension and ascending.",
                              dimension);
        else if (const auto count = shape[dims.front()]; count != found->second.shape.front() || count == 0)
            why = fmt::format("has {} steps along '{}', and the array '{}' has {} times. Write both for each step.",
                              count, dimension, found->first, found->second.shape.front());
        else if (times_ && times_->first != found->first)
            why = fmt::format("has the times '{}', and others have '{}'. Write it into a file of its own.",
                              found->first, times_->first);
        else
            times_ = *found;
        if (!why.empty()) {
            without_times_ = fmt::format("the array '{}' {}", name, why);
            grid_.left_out[name] = why;
            continue;
        }
        time_dimensions_[name] = dims.front();
        shape = without(shape, dims.front());
        if (!names.empty()) names = without(names, dims.front());
        if (std::ranges::all_of(names, &std::string::empty)) names.clear();
    }
    std::erase_if(arrays, [&](const auto& one) { return grid_.left_out.contains(one.first); });
}

/// Reads a box as `read_box` does, and unpacks its numbers.
void ArrayGridFile::read_values(const std::string& name, const std::vector<std::int64_t>& first,
                                const std::vector<std::int64_t>& count, DataArray& values) const
{
    const auto found = packed_.find(name);
    if (found == packed_.end()) {
        read_box(name, first, count, values);
        return;
    }
    const auto& [type, packing] = found->second;
    DataArray numbers(name, type, values.num_values());
    read_box(name, first, count, numbers);
    const auto unpack = [&]<class From, class To>(std::span<const From> from, std::span<To> to) {
        auto missing = packing.missing;
        if (std::is_same_v<From, float>)  // the attribute may be in double precision
            for (auto& value : missing) value = static_cast<float>(value);
        std::ranges::transform(from, to.begin(), [&](From number) {
            const auto value = static_cast<double>(number);
            return contains(missing, value) ? std::numeric_limits<To>::quiet_NaN()
                                            : static_cast<To>(packing.scale * value + packing.offset);
        });
    };
    with_scalar_type(type, [&]<class From>() {
        if (values.type() == ScalarType::Float32)
            unpack(numbers.values<From>(), values.mutable_values<float>());
        else
            unpack(numbers.values<From>(), values.mutable_values<double>());
    });
}

double ArrayGridFile::time_of(std::int64_t step) const
{
    DataArray time(times_->first, times_->second.type, 1);
    read_values(time.name(), {step}, {1}, time);
    return time.value(0);
}

/// Chooses the step that is read. Looks at few times, since each may lie in a chunk of its own.
void ArrayGridFile::choose_step(std::optional<double> time)
{
    const auto last = times_->second.shape.front() - 1;
    step_ = last;
    if (time) {
        const auto steps = std::views::iota(std::int64_t{0}, last);
        const auto next =
            std::ranges::partition_point(steps, [&](std::int64_t step) { return time_of(step) < *time; }) -
            steps.begin();
        const auto before = std::max<std::int64_t>(next - 1, 0);
        const auto found = index_of_time(std::array{time_of(before), time_of(next)}, *time);
        if (!found)
            throw IoError("{}: it has no step at that time; its times are {} to {}.", where_, time_of(0),
                          time_of(last));
        step_ = found == 0 ? before : next;
    }
    auto& value = grid_.field_data.emplace_back(DataArray::from("TimeValue", std::vector{time_of(step_)}));
    value.unit = times_->second.unit;
}

std::vector<double> ArrayGridFile::times() const
{
    if (!times_ && !without_times_.empty()) throw IoError("{}: {}", where_, without_times_);
    if (!times_) return {};
    const auto& [name, array] = *times_;
    DataArray values(name, array.type, array.shape.front());
    read_values(name, {0}, array.shape, values);
    auto times = values.to_doubles();
    for (std::size_t i = 0; i < times.size(); ++i)
        if (!std::isfinite(times[i]) || (i > 0 && times[i] <= times[i - 1]))
            throw IoError("{}: the array '{}' has the time {} at step {}, counted from 0{}. Sort the steps "
                          "by finite times, each later than the one before it.",
                          where_, name, times[i], i, i > 0 ? fmt::format(", and {} before it", times[i - 1]) : "");
    return times;
}

void ArrayGridFile::declare(std::map<std::string, ShapedArray> arrays, bool of_cells, std::optional<double> time)
{
    for (auto& [name, array] : arrays) {
        if (array.packing.are_values()) continue;
        packed_[name] = {array.type, array.packing};
        const bool is_narrow = size_of(array.type) <= 2 || array.type == ScalarType::Float32;
        array.type = is_narrow ? ScalarType::Float32 : ScalarType::Float64;
    }
    take_time(arrays);
    if (times_) choose_step(time);
    std::optional<Directions> best;
    std::ptrdiff_t most = 0;
    std::int64_t most_rows = 0;  // where shapes have as many arrays, the largest: others are bounds and the like
    Components components{};
    for (const auto& array : arrays | std::views::values) {
        for (auto& directions : possible_directions(array)) {
            const auto count = std::ranges::count_if(
                arrays | std::views::values, [&](const auto& other) { return fits(other, directions, components); });
            const auto num_rows =
                std::accumulate(directions.counts.begin(), directions.counts.end(), std::int64_t{1}, std::multiplies());
            if (std::pair(count, num_rows) <= std::pair(most, most_rows)) continue;
            most = count;
            most_rows = num_rows;
            best = std::move(directions);
        }
    }
    if (!best)
        throw IoError("{} has no array of two or three dimensions beside time, which would be a grid. {}", where_,
                      grid_.left_out.empty()
                          ? "Write the arrays as (y, x), (z, y, x) or (time, y, x)."
                          : fmt::format("Of its {} arrays '{}' {}", arrays.size() + grid_.left_out.size(),
                                        grid_.left_out.begin()->first, grid_.left_out.begin()->second));
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
            arrays_at(grid_, of_cells).emplace_back(name, array.type, 0, static_cast<std::int32_t>(num_components));
            continue;
        }
        if (array.shape.size() == 1 && is_coordinate(name, *best)) continue;
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

std::string ArrayGridFile::name_of_direction(const Directions& directions, std::size_t dim)
{
    return directions.names.empty() ? std::string(1, "xyz"[directions.counts.size() - 1 - dim]) : directions.names[dim];
}

bool ArrayGridFile::is_coordinate(const std::string& name, const Directions& directions) const
{
    for (std::size_t dim = 0; dim < directions.counts.size(); ++dim)
        if (name == name_of_direction(directions, dim)) return true;
    return times_ && name == times_->first;
}

void ArrayGridFile::set_spacing(const std::map<std::string, ShapedArray>& arrays, const Directions& directions,
                                bool of_cells)
{
    constexpr double kTolerance = 1e-3;  // coordinates may be in single precision
    for (std::size_t i = 0; i < num_directions_; ++i) {
        const auto dim = num_directions_ - 1 - i;
        const auto name = name_of_direction(directions, dim);
        const auto found = arrays.find(name);
        const auto count = directions.counts[dim];
        if (found == arrays.end() || found->second.shape != std::vector{count} || count < 2) continue;
        DataArray values(name, found->second.type, count);
        read_values(name, {0}, {count}, values);
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
    const auto read_step = [&](DataArray& to) {
        if (const auto found = time_dimensions_.find(name); found != time_dimensions_.end()) {
            const auto dim = static_cast<std::ptrdiff_t>(found->second);
            first.insert(first.begin() + dim, step_);
            count.insert(count.begin() + dim, 1);
        }
        read_values(name, first, count, to);
    };
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
        read_step(apart);
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
    read_step(values);
    return values;
}

namespace {

constexpr const char* kGridAttribute = "image_grid";  // of a group: what its arrays do not say

/// A group of Zarr arrays in a folder.
class ZarrGridFile : public ArrayGridFile {
public:
    ZarrGridFile(const std::filesystem::path& path, std::optional<double> time)
    {
        where_ = "read_mesh: " + path.string();
        group_ = open_zarr_group(path, where_);
        grid_.left_out = group_.left_out;
        std::map<std::string, ShapedArray> arrays;
        for (const auto& [name, array] : group_.arrays)
            arrays[name] = {array.type(), array.shape(), array.dimension_names(), array.unit(), array.packing()};
        const auto& attributes = group_.attributes;
        if (!attributes.is_object() || !attributes.contains(kGridAttribute)) {
            declare(std::move(arrays), true, time);
            return;
        }
        try {
            const auto& head = attributes.at(kGridAttribute);
            const bool of_cells = head.at("association") == "cell";
            declare(std::move(arrays), of_cells, time);
            read_head(head, of_cells);
        } catch (const nlohmann::json::exception& wrong) {
            throw IoError("{}: zarr.json has a damaged attribute {} ({}). Copy or write it again.", where_,
                          kGridAttribute, wrong.what());
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
            throw IoError("{}: zarr.json has a grid of {}, and its arrays have {}, x first. Copy or write "
                          "it again.",
                          where_, fmt::join(expected, " x "), fmt::join(extents, " x "));
    }

    void read_box(const std::string& name, const std::vector<std::int64_t>& first,
                  const std::vector<std::int64_t>& count, DataArray& numbers) const override
    {
        group_.arrays.at(name).read_box(first, count, numbers.mutable_bytes());
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

std::unique_ptr<GridFile> open_zarr_grid(const std::filesystem::path& path, std::optional<double> time)
{
    return std::make_unique<ZarrGridFile>(path, time);
}

}  // namespace meshard
