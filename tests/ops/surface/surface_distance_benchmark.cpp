// SPDX-License-Identifier: Apache-2.0
// Signed distances of many queries to a bumpy body against VTK's vtkImplicitPolyDataDistance:
// `surface_distance_benchmark [RINGS] [QUERIES]`. One thread each, by turns, the building of trees included; CPU
// seconds, medians of five.
#include "ops/surface/surface_distance.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <vtkCellArray.h>
#include <vtkImplicitPolyDataDistance.h>
#include <vtkNew.h>
#include <vtkPoints.h>
#include <vtkPolyData.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <vector>

namespace {

/// `n` rings of latitude, 4 n (n - 1) triangles.
void make_body(int n, std::vector<double>& vertices, std::vector<std::int64_t>& faces)
{
    const int around = 2 * n;
    for (int ring = 1; ring < n; ++ring) {
        for (int k = 0; k < around; ++k) {
            const double theta = M_PI * ring / n, phi = 2 * M_PI * k / around,
                         r = 1 + 0.2 * std::sin(3 * theta) * std::cos(4 * phi);
            vertices.insert(vertices.end(), {r * std::sin(theta) * std::cos(phi), r * std::sin(theta) * std::sin(phi),
                                             r * std::cos(theta)});
        }
    }
    const std::int64_t top = static_cast<std::int64_t>(vertices.size()) / 3, bottom = top + 1;
    vertices.insert(vertices.end(), {0, 0, 1, 0, 0, -1});
    const auto at = [&](int ring, int k) { return std::int64_t{ring - 1} * around + k % around; };
    for (int k = 0; k < around; ++k) {
        faces.insert(faces.end(), {top, at(1, k), at(1, k + 1), bottom, at(n - 1, k + 1), at(n - 1, k)});
        for (int ring = 1; ring + 1 < n; ++ring)
            faces.insert(faces.end(), {at(ring, k), at(ring + 1, k), at(ring + 1, k + 1), at(ring, k),
                                       at(ring + 1, k + 1), at(ring, k + 1)});
    }
}

double cpu_seconds(const std::function<void()>& run)
{
    const auto start = std::clock();
    run();
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

double median(std::vector<double> values)
{
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv)
{
    const int rings = argc > 1 ? std::atoi(argv[1]) : 160, num_queries = argc > 2 ? std::atoi(argv[2]) : 100000;
    at::set_num_threads(1);
    std::vector<double> vertices;
    std::vector<std::int64_t> faces;
    make_body(rings, vertices, faces);
    const auto v = at::tensor(vertices, at::kDouble).view({-1, 3}), f = at::tensor(faces, at::kLong).view({-1, 3});
    const auto directions =
        at::arange(3 * num_queries, at::kDouble).mul(12.9898).sin().mul(43758.5453).frac().view({-1, 3});
    const auto around = directions * 1.6;  // in a box around the body
    const auto nearby = v.index_select(0, at::arange(num_queries, at::kLong).remainder(v.size(0))) +
                        0.01 * directions;  // within a hundredth of it

    vtkNew<vtkPoints> points;
    points->SetDataTypeToDouble();
    for (std::size_t i = 0; i < vertices.size(); i += 3) points->InsertNextPoint(&vertices[i]);
    vtkNew<vtkCellArray> polygons;
    for (std::size_t i = 0; i < faces.size(); i += 3) {
        const vtkIdType corners[] = {faces[i], faces[i + 1], faces[i + 2]};
        polygons->InsertNextCell(3, corners);
    }
    vtkNew<vtkPolyData> body;
    body->SetPoints(points);
    body->SetPolys(polygons);

    std::printf("%lld triangles, %d queries\n", static_cast<long long>(f.size(0)), num_queries);
    for (const auto& [name, queries] : {std::pair("around", around), std::pair("nearby", nearby)}) {
        std::vector<double> own, winding, of_vtk;
        at::Tensor found;
        std::vector<double> expected(num_queries);
        for (int repeat = 0; repeat < 5; ++repeat) {
            own.push_back(
                cpu_seconds([&, &queries = queries] { found = meshard::signed_distance(v, f, queries).distances; }));
            winding.push_back(cpu_seconds([&, &queries = queries] {
                meshard::signed_distance(v, f, queries, {.sign = meshard::SurfaceSign::WindingNumber});
            }));
            of_vtk.push_back(cpu_seconds([&, &queries = queries] {
                vtkNew<vtkImplicitPolyDataDistance> distance;
                distance->SetInput(body);
                const auto* at = queries.const_data_ptr<double>();
                for (int i = 0; i < num_queries; ++i)
                    expected[i] = distance->EvaluateFunction(at[3 * i], at[3 * i + 1], at[3 * i + 2]);
            }));
        }
        const auto difference = (found - at::tensor(expected, at::kDouble)).abs().max().item<double>();
        std::printf("%-8s pseudonormal %.3f s, winding number %.3f s, VTK %.3f s; largest difference %.1e\n", name,
                    median(own), median(winding), median(of_vtk), difference);
    }
}
