// SPDX-License-Identifier: Apache-2.0
#include "apps/fields/field_tensors.h"

#include "partition/error.h"
#include "partition/mesh/cell_geometry.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace meshard {

at::Tensor tensor_of(const DataArray& array, std::int64_t num_rows)
{
    if (num_rows < 0) num_rows = array.num_rows();
    auto tensor = at::empty({num_rows, array.num_components()}, at::kDouble);
    with_scalar_type(array.type(), [&]<class T>() {
        const auto values = array.values<T>().first(tensor.numel());
        std::transform(values.begin(), values.end(), tensor.mutable_data_ptr<double>(),
                       [](T x) { return static_cast<double>(x); });
    });
    return tensor;
}

at::Tensor positions_of(const Mesh& mesh, FieldPlace place, std::int64_t num_rows)
{
    if (place == FieldPlace::Points) return tensor_of(mesh.points, num_rows);
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i)
        if (mesh.cells.row(i).empty())
            throw InvalidInput("Cell {} has no points, and so no place. Leave such cells out.", i);
    const auto centroids = cell_measures(mesh).centroids;
    if (num_rows < 0) num_rows = mesh.num_cells();
    auto tensor = at::empty({num_rows, 3}, at::kDouble);
    for (std::int64_t i = 0; i < num_rows; ++i)
        std::copy_n(centroids[i].begin(), 3, tensor.mutable_data_ptr<double>() + 3 * i);
    return tensor;
}

DataArray array_of(const std::string& name, const at::Tensor& values, ScalarType type)
{
    const auto rows = values.flatten(1).contiguous();
    DataArray array(name, type == ScalarType::Float32 ? type : ScalarType::Float64, rows.size(0),
                    static_cast<std::int32_t>(rows.size(1)));
    const auto* from = rows.const_data_ptr<double>();
    with_scalar_type(array.type(), [&]<class T>() {
        std::transform(from, from + rows.numel(), array.mutable_values<T>().begin(),
                       [](double x) { return static_cast<T>(x); });
    });
    return array;
}

}  // namespace meshard
