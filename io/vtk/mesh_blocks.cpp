// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/mesh_blocks.h"

#include "io/vtk/vtk_xml_reader.h"
#include "partition/error.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace meshard {

namespace {

bool is_floating(ScalarType type)
{
    return type == ScalarType::Float32 || type == ScalarType::Float64;
}

/// @throws IoError if a number is not one of that type
DataArray converted(const DataArray& array, ScalarType type, const std::string& where)
{
    if (array.type() == type) return array;
    DataArray result(array.name(), type, array.num_rows(), array.num_components());
    with_scalar_type(array.type(), [&]<class From>() {
        with_scalar_type(type, [&]<class To>() {
            std::ranges::transform(array.values<From>(), result.mutable_values<To>().begin(), [&](From value) {
                const auto same = static_cast<To>(value);
                if constexpr (std::is_integral_v<From>) {
                    if (static_cast<long double>(same) != static_cast<long double>(value))
                        throw IoError("{}: its blocks differ: the array '{}' holds the {} {}, which is no "
                                      "{} as in another. Choose the blocks that belong together.",
                                      where, array.name(), to_string(array.type()), value, to_string(type));
                }
                return same;
            });
        });
    });
    describe_as(result, array);
    return result;
}

DataArray without_values(const DataArray& like, std::int64_t num_rows)
{
    DataArray array(like.name(), like.type(), num_rows, like.num_components());
    if (like.type() != ScalarType::String)
        with_scalar_type(like.type(), [&]<class T>() {
            T nothing = std::numeric_limits<T>::max();
            if (like.name() == "vtkGhostType")
                nothing = 0;  // no ghost
            else if constexpr (std::is_floating_point_v<T>)
                nothing = std::numeric_limits<T>::quiet_NaN();
            else if constexpr (std::is_signed_v<T>)
                nothing = -1;
            std::ranges::fill(array.mutable_values<T>(), nothing);
        });
    describe_as(array, like);
    return array;
}

/// Gives every block the same arrays in the same order; `num_rows_of` returns the number of rows of a block.
template <class F>
void unify(std::vector<MeshBlock>& blocks, std::vector<DataArray> Mesh::* group, F&& num_rows_of,
           const std::string& where)
{
    std::vector<DataArray> models;
    for (const MeshBlock& block : blocks) {
        if (num_rows_of(block.mesh) == 0) continue;
        for (const DataArray& array : block.mesh.*group) {
            const auto model = std::ranges::find(models, array.name(), &DataArray::name);
            if (model == models.end()) {
                models.push_back(without_values(array, 0));
                continue;
            }
            const bool both_text = array.type() == ScalarType::String && model->type() == ScalarType::String;
            if (array.num_components() != model->num_components() ||
                ((array.type() == ScalarType::String || model->type() == ScalarType::String) && !both_text))
                throw IoError("{}: its blocks differ: the array '{}' is {} x {} in '{}' and {} x {} in "
                              "another. Choose the blocks that belong together.",
                              where, array.name(), array.num_components(), to_string(array.type()), block.name,
                              model->num_components(), to_string(model->type()));
            if (array.type() != model->type())
                *model = converted(*model,
                                   is_floating(array.type()) || is_floating(model->type()) ? ScalarType::Float64
                                                                                           : ScalarType::Int64,
                                   where);
        }
    }
    // At most one array for each role.
    std::set<std::string> roles;
    for (DataArray& model : models)
        if (!model.attribute.empty() && !roles.insert(model.attribute).second) model.attribute.clear();
    for (MeshBlock& block : blocks) {
        std::vector<DataArray> arrays;
        for (const DataArray& model : models) {
            const DataArray* found = find_array(block.mesh.*group, model.name());
            const auto num_rows = num_rows_of(block.mesh);
            DataArray array = found != nullptr && found->num_rows() == num_rows && num_rows > 0
                                  ? converted(*found, model.type(), where)
                                  : without_values(model, num_rows);
            describe_as(array, model);
            arrays.push_back(std::move(array));
        }
        block.mesh.*group = std::move(arrays);
    }
}

std::vector<DataArray> join_field_data(const std::vector<MeshBlock>& blocks)
{
    std::vector<DataArray> joined;
    for (const MeshBlock& block : blocks)
        for (DataArray array : block.mesh.field_data) {
            if (const DataArray* same = find_array(joined, array.name())) {
                if (same->same_bits(array)) continue;
                const auto name = array.name() + " of " + block.name;
                array.rename(name);
                for (int k = 2; find_array(joined, array.name()) != nullptr; ++k)
                    array.rename(fmt::format("{} {}", name, k));
            }
            joined.push_back(std::move(array));
        }
    return joined;
}

}  // namespace

bool is_wanted_block(std::string_view name, std::span<const std::string> wanted)
{
    return wanted.empty() || std::ranges::any_of(wanted, [&](const std::string& wish) {
               return name == wish || (name.size() > wish.size() && name.starts_with(wish) && name[wish.size()] == '/');
           });
}

std::vector<MeshBlock> choose_blocks(std::vector<MeshBlock> blocks, std::span<const std::string> wanted,
                                     const std::string& where)
{
    for (const std::string& wish : wanted) {
        const auto chooses = [&](const MeshBlock& block) { return is_wanted_block(block.name, std::span(&wish, 1)); };
        if (std::ranges::any_of(blocks, chooses)) continue;
        std::vector<std::string> names;
        for (const MeshBlock& block : blocks) names.push_back(block.name);
        const auto first = std::span(names).first(std::min<std::size_t>(names.size(), 12));
        throw InvalidInput("{} has no block '{}'; there are {}{}.{}", where, wish, fmt::join(first, ", "),
                           names.size() > first.size() ? ", ..." : "", suggestion(wish, names));
    }
    std::erase_if(blocks, [&](const MeshBlock& block) { return !is_wanted_block(block.name, wanted); });
    return blocks;
}

Mesh join_blocks(std::vector<MeshBlock> blocks, bool number_blocks, const std::string& where)
{
    if (blocks.empty()) return {};
    if (blocks.size() == 1) return std::move(blocks.front().mesh);
    unify(blocks, &Mesh::point_data, [](const Mesh& mesh) { return mesh.num_points(); }, where);
    unify(blocks, &Mesh::cell_data, [](const Mesh& mesh) { return mesh.num_cells(); }, where);
    std::vector<DataArray> field_data = join_field_data(blocks);

    const auto is_surface = [](const MeshBlock& block) { return block.mesh.kind == MeshKind::Surface; };
    const auto is_double = [](const MeshBlock& block) { return block.mesh.points.type() == ScalarType::Float64; };
    const bool all_surfaces = std::ranges::all_of(blocks, is_surface);
    const bool any_double = std::ranges::any_of(blocks, is_double);
    const bool on_points =
        std::ranges::all_of(blocks, [](const MeshBlock& block) { return block.mesh.is_point_cloud(); });
    std::vector<Mesh> meshes;
    std::vector<std::string> names;
    for (MeshBlock& block : blocks) {
        Mesh& mesh = block.mesh;
        mesh.kind = all_surfaces ? MeshKind::Surface : MeshKind::Unstructured;
        if (any_double) mesh.points = converted(mesh.points, ScalarType::Float64, where);
        if (number_blocks) {
            const auto id = static_cast<std::int32_t>(names.size());
            auto& arrays = on_points ? mesh.point_data : mesh.cell_data;
            std::erase_if(arrays, [](const DataArray& array) { return array.name() == "BlockId"; });
            arrays.push_back(DataArray::from(
                "BlockId", std::vector<std::int32_t>(mesh.num_rows() * (on_points || mesh.num_cells() > 0), id)));
        }
        names.push_back(block.name);
        meshes.push_back(std::move(mesh));
    }
    Mesh joined = append_meshes(std::move(meshes), where);
    std::erase_if(field_data, [](const DataArray& array) { return array.name() == "BlockName"; });
    if (number_blocks) field_data.push_back(DataArray::from_strings("BlockName", std::move(names)));
    joined.field_data = std::move(field_data);
    return joined;
}

}  // namespace meshard
