// SPDX-License-Identifier: Apache-2.0
#include "tests/support/foam_case.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "partition/cell_type.h"

namespace meshard {

namespace {

using Face = std::vector<std::int32_t>;
using Vec = std::array<double, 3>;

Vec point_of(const Mesh& mesh, std::int32_t point)
{
    return {mesh.points.value(point, 0), mesh.points.value(point, 1), mesh.points.value(point, 2)};
}

Vec mean_of(const Mesh& mesh, std::span<const std::int32_t> points)
{
    Vec mean{};
    for (const std::int32_t point : points)
        for (int c = 0; c < 3; ++c) mean[c] += point_of(mesh, point)[c] / static_cast<double>(points.size());
    return mean;
}

std::vector<Face> faces_of_cell(const Mesh& mesh, std::int64_t cell)
{
    std::vector<Face> faces;
    if (mesh.cell_types[cell] == 42) {
        const auto stream = mesh.face_streams.row(cell);
        for (std::size_t at = 1; at < stream.size(); at += 1 + static_cast<std::size_t>(stream[at]))
            faces.emplace_back(stream.begin() + static_cast<std::ptrdiff_t>(at) + 1, stream.begin() + static_cast<std::ptrdiff_t>(at) + 1 + stream[at]);
    } else {
        for (const auto& corners : solid_faces(cell_type_of(mesh.cell_types[cell]).shape)) {
            faces.emplace_back();
            for (const std::uint8_t corner : corners) faces.back().push_back(mesh.cells.row(cell)[corner]);
        }
    }
    // Round the way that makes the normal point out of the cell.
    const Vec inside = mean_of(mesh, mesh.cells.row(cell));
    for (Face& face : faces) {
        const Vec middle = mean_of(mesh, face);
        double outward = 0;
        for (std::size_t i = 0; i < face.size(); ++i) {
            const Vec a = point_of(mesh, face[i]), b = point_of(mesh, face[(i + 1) % face.size()]);
            Vec u{}, v{};
            for (int c = 0; c < 3; ++c) {
                u[c] = a[c] - middle[c];
                v[c] = b[c] - middle[c];
            }
            for (int c = 0; c < 3; ++c) outward += (u[(c + 1) % 3] * v[(c + 2) % 3] - u[(c + 2) % 3] * v[(c + 1) % 3]) * (middle[c] - inside[c]);
        }
        if (outward < 0) std::ranges::reverse(face);
    }
    return faces;
}

class Writer {
public:
    Writer(const std::filesystem::path& folder, const FoamCaseStyle& style) : folder_(folder), style_(style) {}

    void begin(const std::string& file, const std::string& type, bool text_only = false)
    {
        file_ = file;
        binary_ = style_.binary && !text_only;
        out_.str("");
        out_ << "/*--------- C++ ---------*\\\n\\*------------------------*/\nFoamFile\n{\n    version     2.0;\n    format      " << (style_.binary ? "binary" : "ascii")
             << ";\n    class       " << type << ";\n    arch        \"LSB;label=" << style_.label_bits << ";scalar=" << style_.scalar_bits
             << "\";\n    object      " << file.substr(file.rfind('/') + 1) << ";\n}\n// * * * //\n\n";
    }

    std::ostream& text() { return out_; }

    void labels(const std::vector<std::int64_t>& values)
    {
        out_ << values.size() << '(';
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (!binary_) out_ << (i > 0 ? " " : "") << values[i];
            else if (style_.label_bits == 64) raw(values[i]);
            else raw(static_cast<std::int32_t>(values[i]));
        }
        out_ << ')';
    }

    void rows(std::size_t count, int components, const std::function<double(std::size_t, int)>& value)
    {
        out_.precision(17);
        out_ << count << (binary_ ? "\n(" : "\n(\n");
        for (std::size_t i = 0; i < count; ++i) {
            if (!binary_ && components > 1) out_ << '(';
            for (int c = 0; c < components; ++c) {
                if (!binary_) out_ << (c > 0 ? " " : "") << value(i, c);
                else if (style_.scalar_bits == 64) raw(value(i, c));
                else raw(static_cast<float>(value(i, c)));
            }
            if (!binary_) out_ << (components > 1 ? ")\n" : "\n");
        }
        out_ << ")";
    }

    void end()
    {
        out_ << "\n";
        const auto path = folder_ / file_;
        std::filesystem::create_directories(path.parent_path());
        const std::string bytes = out_.str();
        if (style_.compressed) {
            gzFile file = ::gzopen((path.string() + ".gz").c_str(), "wb");
            ::gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
            ::gzclose(file);
        } else {
            std::ofstream(path, std::ios::binary) << bytes;
        }
    }

private:
    template <class T>
    void raw(T value)
    {
        out_.write(reinterpret_cast<const char*>(&value), sizeof value);
    }

    std::filesystem::path folder_;
    FoamCaseStyle style_;
    std::string file_;
    std::ostringstream out_;
    bool binary_ = false;
};

}  // namespace

void write_foam_case(const std::filesystem::path& folder, const Mesh& mesh, const FoamCaseStyle& style)
{
    struct Found {
        Face face;
        std::int64_t owner = 0, neighbour = -1;
    };
    std::map<Face, Found> found;
    std::int64_t num_cells = 0;
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
        if (cell_dimension(mesh.cell_types[cell]) != 3) continue;
        for (Face& face : faces_of_cell(mesh, cell)) {
            Face key = face;
            std::ranges::sort(key);
            const auto [at, is_new] = found.try_emplace(key, Found{face, num_cells, -1});
            if (!is_new) at->second.neighbour = num_cells;
        }
        ++num_cells;
    }
    std::vector<Found> faces, left, rest;
    for (const auto& [key, face] : found) {
        const bool at_left = std::ranges::all_of(face.face, [&](std::int32_t point) { return mesh.points.value(point, 0) == 0; });
        (face.neighbour >= 0 ? faces : at_left ? left : rest).push_back(face);
    }
    std::ranges::sort(faces, {}, [](const Found& face) { return std::pair(face.owner, face.neighbour); });
    const std::size_t num_inner = faces.size();
    faces.insert(faces.end(), left.begin(), left.end());
    faces.insert(faces.end(), rest.begin(), rest.end());

    Writer writer(folder, style);
    const auto num_points = static_cast<std::size_t>(mesh.num_points());
    writer.begin("constant/polyMesh/points", "vectorField");
    writer.rows(num_points, 3, [&](std::size_t i, int c) { return mesh.points.value(static_cast<std::int64_t>(i), c); });
    writer.end();
    std::vector<std::int64_t> owner, neighbour, starts{0}, entries;
    for (std::size_t i = 0; i < faces.size(); ++i) {
        owner.push_back(faces[i].owner);
        if (i < num_inner) neighbour.push_back(faces[i].neighbour);
        entries.insert(entries.end(), faces[i].face.begin(), faces[i].face.end());
        starts.push_back(static_cast<std::int64_t>(entries.size()));
    }
    writer.begin("constant/polyMesh/faces", style.binary ? "faceCompactList" : "faceList");
    if (style.binary) {
        writer.labels(starts);
        writer.text() << "\n";
        writer.labels(entries);
    } else {
        writer.text() << faces.size() << "\n(\n";
        for (const Found& face : faces) {
            writer.labels({face.face.begin(), face.face.end()});
            writer.text() << "\n";
        }
        writer.text() << ")";
    }
    writer.end();
    writer.begin("constant/polyMesh/owner", "labelList");
    writer.labels(owner);
    writer.end();
    writer.begin("constant/polyMesh/neighbour", "labelList");
    writer.labels(neighbour);
    writer.end();
    writer.begin("constant/polyMesh/boundary", "polyBoundaryMesh", true);
    writer.text() << "2\n(\n    left\n    {\n        type wall;\n        inGroups 1(wall);\n        nFaces " << left.size() << ";\n        startFace " << num_inner
                  << ";\n    }\n    rest\n    {\n        type patch;\n        nFaces " << rest.size() << ";\n        startFace " << num_inner + left.size() << ";\n    }\n)\n";
    writer.end();
    std::vector<std::int64_t> even;
    for (std::int64_t i = 0; i < num_cells; i += 2) even.push_back(i);
    writer.begin("constant/polyMesh/cellZones", "regIOobject");
    writer.text() << "1\n(\neven\n{\n    type cellZone;\n    cellLabels List<label> ";
    writer.labels(even);
    writer.text() << ";\n}\n)\n";
    writer.end();

    const auto cells = static_cast<std::size_t>(num_cells);
    writer.begin("0/T", "volScalarField", true);
    writer.text() << "dimensions [0 0 0 1 0 0 0];\ninternalField uniform 1;\nboundaryField { left { type zeroGradient; } rest { type zeroGradient; } }\n";
    writer.end();
    writer.begin("0.5/T", "volScalarField", true);
    writer.text() << "hot 300;\ndimensions [0 0 0 1 0 0 0];\ninternalField uniform $hot;\nboundaryField\n{\n    \"(left|right)\" { type fixedValue; value uniform 400; }\n    rest { type zeroGradient; }\n}\n";
    writer.end();
    writer.begin("0.5/p", "volScalarField");
    writer.text() << "dimensions [0 2 -2 0 0 0 0];\n\ninternalField nonuniform List<scalar> \n";
    writer.rows(cells, 1, [](std::size_t i, int) { return 10.0 + static_cast<double>(i); });
    writer.text() << ";\n\nboundaryField\n{\n    left\n    {\n        type calculated;\n        value nonuniform List<scalar> \n";
    writer.rows(left.size(), 1, [](std::size_t i, int) { return 1000.0 + static_cast<double>(i); });
    writer.text() << ";\n    }\n    rest\n    {\n        type zeroGradient;\n    }\n}\n";
    writer.end();
    writer.begin("0.5/U", "volVectorField");
    writer.text() << "dimensions [0 1 -1 0 0 0 0];\n\ninternalField nonuniform List<vector> \n";
    writer.rows(cells, 3, [](std::size_t i, int c) { return c == 2 ? -1.0 : static_cast<double>(i) * (c + 1); });
    writer.text() << ";\n\nboundaryField\n{\n    left { type noSlip; value uniform (0 0 0); }\n    rest { type zeroGradient; }\n}\n";
    writer.end();
    writer.begin("0.5/S", "volSymmTensorField");
    writer.text() << "dimensions [0 2 -2 0 0 0 0];\n\ninternalField nonuniform List<symmTensor> \n";
    writer.rows(cells, 6, [](std::size_t i, int c) { return static_cast<double>(i) + c; });
    writer.text() << ";\n\nboundaryField\n{\n    left { type zeroGradient; }\n    rest { type zeroGradient; }\n}\n";
    writer.end();
    writer.begin("0.5/D", "pointVectorField");
    writer.text() << "dimensions [0 1 0 0 0 0 0];\n\ninternalField nonuniform List<vector> \n";
    writer.rows(num_points, 3, [](std::size_t i, int c) { return c == 0 ? static_cast<double>(i) : c - 1.0; });
    writer.text() << ";\n\nboundaryField\n{\n    left { type calculated; }\n    rest { type calculated; }\n}\n";
    writer.end();
    std::ofstream(folder / "case.foam");
    std::filesystem::create_directories(folder / "system");
    std::ofstream(folder / "system" / "controlDict") << "FoamFile { version 2.0; format ascii; class dictionary; object controlDict; }\n"
                                                        "application x; startFrom latestTime; startTime 0; stopAt endTime; endTime 1; deltaT 0.5;\n"
                                                        "writeControl timeStep; writeInterval 1; writeFormat ascii; writeCompression off;\n";
}

}  // namespace meshard
