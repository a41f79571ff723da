// SPDX-License-Identifier: Apache-2.0
#include "tests/support/foam_case.h"

#include "partition/mesh/cell_type.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>
#include <zlib.h>

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
            faces.emplace_back(stream.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                               stream.begin() + static_cast<std::ptrdiff_t>(at) + 1 + stream[at]);
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
            for (int c = 0; c < 3; ++c)
                outward +=
                    (u[(c + 1) % 3] * v[(c + 2) % 3] - u[(c + 2) % 3] * v[(c + 1) % 3]) * (middle[c] - inside[c]);
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
        out_ << "/*--------- C++ ---------*\\\n\\*------------------------*/\nFoamFile\n{\n    version     2.0;\n    "
                "format      "
             << (style_.binary ? "binary" : "ascii") << ";\n    class       " << type
             << ";\n    arch        \"LSB;label=" << style_.label_bits << ";scalar=" << style_.scalar_bits
             << "\";\n    object      " << file.substr(file.rfind('/') + 1) << ";\n}\n// * * * //\n\n";
    }

    std::ostream& text() { return out_; }

    void labels(const std::vector<std::int64_t>& values)
    {
        out_ << values.size() << '(';
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (!binary_)
                out_ << (i > 0 ? " " : "") << values[i];
            else if (style_.label_bits == 64)
                raw(values[i]);
            else
                raw(static_cast<std::int32_t>(values[i]));
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
                if (!binary_)
                    out_ << (c > 0 ? " " : "") << value(i, c);
                else if (style_.scalar_bits == 64)
                    raw(value(i, c));
                else
                    raw(static_cast<float>(value(i, c)));
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

/// A face of the whole case.
struct WholeFace {
    Face points;  // seen from outside the owner
    std::int64_t owner = 0, neighbour = -1;
    std::int64_t number = 0;
};

struct WholeCase {
    std::vector<WholeFace> faces;  // inner ones, those of `left`, those of `rest`
    std::int64_t num_inner = 0, num_left = 0, num_cells = 0;
};

WholeCase whole_case(const Mesh& mesh)
{
    WholeCase whole;
    std::map<Face, WholeFace> found;
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
        if (cell_dimension(mesh.cell_types[cell]) != 3) continue;
        for (Face& face : faces_of_cell(mesh, cell)) {
            Face key = face;
            std::ranges::sort(key);
            const auto [at, is_new] = found.try_emplace(key, WholeFace{face, whole.num_cells, -1, 0});
            if (!is_new) at->second.neighbour = whole.num_cells;
        }
        ++whole.num_cells;
    }
    std::vector<WholeFace> left, rest;
    for (const auto& [key, face] : found) {
        const bool at_left =
            std::ranges::all_of(face.points, [&](std::int32_t point) { return mesh.points.value(point, 0) == 0; });
        (face.neighbour >= 0 ? whole.faces : at_left ? left : rest).push_back(face);
    }
    std::ranges::sort(whole.faces, {}, [](const WholeFace& face) { return std::pair(face.owner, face.neighbour); });
    whole.num_inner = static_cast<std::int64_t>(whole.faces.size());
    whole.num_left = static_cast<std::int64_t>(left.size());
    whole.faces.insert(whole.faces.end(), left.begin(), left.end());
    whole.faces.insert(whole.faces.end(), rest.begin(), rest.end());
    for (std::size_t i = 0; i < whole.faces.size(); ++i) whole.faces[i].number = static_cast<std::int64_t>(i);
    return whole;
}

struct Patch {
    std::string name, settings;
    std::vector<WholeFace> faces;
};

/// What stands in one folder: all of the case, or a processor's share. Faces as in the whole, but turned outwards.
struct Share {
    std::vector<std::int64_t> points, cells;  // numbers in the whole
    std::vector<WholeFace> inner;
    std::vector<Patch> patches;
};

void write_addressing(Writer& writer, const Share& share, const std::vector<WholeFace>& faces, const WholeCase& whole)
{
    std::vector<std::int64_t> numbers;
    for (const WholeFace& face : faces)
        numbers.push_back(face.owner == whole.faces[static_cast<std::size_t>(face.number)].owner ? face.number + 1
                                                                                                 : -face.number - 1);
    const std::pair<const char*, const std::vector<std::int64_t>&> lists[] = {
        {"pointProcAddressing", share.points}, {"faceProcAddressing", numbers}, {"cellProcAddressing", share.cells}};
    for (const auto& [name, values] : lists) {
        writer.begin(std::string("constant/polyMesh/") + name, "labelList");
        writer.labels(values);
        writer.end();
    }
}

void write_share(const std::filesystem::path& folder, const Mesh& mesh, const WholeCase& whole, const Share& share,
                 const FoamCaseStyle& style, bool with_addressing)
{
    std::map<std::int64_t, std::int64_t> local_point, local_cell;
    for (const std::int64_t point : share.points) local_point.try_emplace(point, local_point.size());
    for (const std::int64_t cell : share.cells) local_cell.try_emplace(cell, local_cell.size());
    std::vector<WholeFace> faces = share.inner;
    for (const Patch& patch : share.patches) faces.insert(faces.end(), patch.faces.begin(), patch.faces.end());

    Writer writer(folder, style);
    writer.begin("constant/polyMesh/points", "vectorField");
    writer.rows(share.points.size(), 3, [&](std::size_t i, int c) { return mesh.points.value(share.points[i], c); });
    writer.end();
    std::vector<std::int64_t> owner, neighbour, starts{0}, entries;
    for (std::size_t i = 0; i < faces.size(); ++i) {
        owner.push_back(local_cell.at(faces[i].owner));
        if (i < share.inner.size()) neighbour.push_back(local_cell.at(faces[i].neighbour));
        for (const std::int32_t point : faces[i].points) entries.push_back(local_point.at(point));
        starts.push_back(static_cast<std::int64_t>(entries.size()));
    }
    writer.begin("constant/polyMesh/faces", style.binary ? "faceCompactList" : "faceList");
    if (style.binary) {
        writer.labels(starts);
        writer.text() << "\n";
        writer.labels(entries);
    } else {
        writer.text() << faces.size() << "\n(\n";
        for (std::size_t i = 0; i < faces.size(); ++i) {
            writer.labels({entries.begin() + starts[i], entries.begin() + starts[i + 1]});
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
    writer.text() << share.patches.size() << "\n(\n";
    std::size_t start = share.inner.size();
    for (const Patch& patch : share.patches) {
        writer.text() << "    " << patch.name << "\n    {\n        " << patch.settings << "\n        nFaces "
                      << patch.faces.size() << ";\n        startFace " << start << ";\n    }\n";
        start += patch.faces.size();
    }
    writer.text() << ")\n";
    writer.end();
    std::vector<std::int64_t> even;
    for (const std::int64_t cell : share.cells)
        if (cell % 2 == 0) even.push_back(local_cell.at(cell));
    writer.begin("constant/polyMesh/cellZones", "regIOobject");
    writer.text() << "1\n(\neven\n{\n    type cellZone;\n    cellLabels List<label> ";
    writer.labels(even);
    writer.text() << ";\n}\n)\n";
    writer.end();
    if (with_addressing) write_addressing(writer, share, faces, whole);

    const std::size_t num_cells = share.cells.size();
    const auto cell_at = [&](std::size_t i) { return static_cast<double>(share.cells[i]); };
    const std::vector<WholeFace>& left = share.patches[0].faces;
    writer.begin("0/T", "volScalarField", true);
    writer.text() << "dimensions [0 0 0 1 0 0 0];\ninternalField uniform 1;\nboundaryField { left { type zeroGradient; "
                     "} rest { type zeroGradient; } }\n";
    writer.end();
    writer.begin("0.5/T", "volScalarField", true);
    writer.text() << "hot 300;\ndimensions [0 0 0 1 0 0 0];\ninternalField uniform $hot;\nboundaryField\n{\n    "
                     "\"(left|right)\" { type fixedValue; value "
                     "uniform 400; }\n    rest { type zeroGradient; }\n}\n";
    writer.end();
    writer.begin("0.5/p", "volScalarField");
    writer.text() << "dimensions [0 2 -2 0 0 0 0];\n\ninternalField nonuniform List<scalar> \n";
    writer.rows(num_cells, 1, [&](std::size_t i, int) { return 10.0 + cell_at(i); });
    writer.text()
        << ";\n\nboundaryField\n{\n    left\n    {\n        type calculated;\n        value nonuniform List<scalar> \n";
    writer.rows(left.size(), 1,
                [&](std::size_t i, int) { return 1000.0 + static_cast<double>(left[i].number - whole.num_inner); });
    writer.text() << ";\n    }\n    rest\n    {\n        type zeroGradient;\n    }\n}\n";
    writer.end();
    writer.begin("0.5/U", "volVectorField");
    writer.text() << "dimensions [0 1 -1 0 0 0 0];\n\ninternalField nonuniform List<vector> \n";
    writer.rows(num_cells, 3, [&](std::size_t i, int c) { return c == 2 ? -1.0 : cell_at(i) * (c + 1); });
    writer.text() << ";\n\nboundaryField\n{\n    left { type noSlip; value uniform (0 0 0); }\n    rest { type "
                     "zeroGradient; }\n}\n";
    writer.end();
    writer.begin("0.5/S", "volSymmTensorField");
    writer.text() << "dimensions [0 2 -2 0 0 0 0];\n\ninternalField nonuniform List<symmTensor> \n";
    writer.rows(num_cells, 6, [&](std::size_t i, int c) { return cell_at(i) + c; });
    writer.text() << ";\n\nboundaryField\n{\n    left { type zeroGradient; }\n    rest { type zeroGradient; }\n}\n";
    writer.end();
    writer.begin("0.5/D", "pointVectorField");
    writer.text() << "dimensions [0 1 0 0 0 0 0];\n\ninternalField nonuniform List<vector> \n";
    writer.rows(share.points.size(), 3,
                [&](std::size_t i, int c) { return c == 0 ? static_cast<double>(share.points[i]) : c - 1.0; });
    writer.text() << ";\n\nboundaryField\n{\n    left { type calculated; }\n    rest { type calculated; }\n}\n";
    writer.end();
}

void write_control(const std::filesystem::path& folder)
{
    std::filesystem::create_directories(folder / "system");
    std::ofstream(folder / "case.foam");
    std::ofstream(folder / "system" / "controlDict")
        << "FoamFile { version 2.0; format ascii; class dictionary; object controlDict; }\n"
           "application x; startFrom latestTime; startTime 0; stopAt endTime; endTime 1; deltaT 0.5;\n"
           "writeControl timeStep; writeInterval 1; writeFormat ascii; writePrecision 17; writeCompression off;\n";
}

std::vector<Patch> real_patches()
{
    return {{"left", "type wall; inGroups 1(wall);", {}}, {"rest", "type patch;", {}}};
}

}  // namespace

void write_foam_case(const std::filesystem::path& folder, const Mesh& mesh, const FoamCaseStyle& style)
{
    const WholeCase whole = whole_case(mesh);
    Share share;
    for (std::int64_t point = 0; point < mesh.num_points(); ++point) share.points.push_back(point);
    for (std::int64_t cell = 0; cell < whole.num_cells; ++cell) share.cells.push_back(cell);
    share.patches = real_patches();
    for (const WholeFace& face : whole.faces)
        (face.number < whole.num_inner ? share.inner
                                       : share.patches[face.number < whole.num_inner + whole.num_left ? 0 : 1].faces)
            .push_back(face);
    write_share(folder, mesh, whole, share, style, false);
    write_control(folder);
}

void write_decomposed_foam_case(const std::filesystem::path& folder, const Mesh& mesh,
                                std::span<const std::int32_t> owners, bool with_addressing, const FoamCaseStyle& style)
{
    const WholeCase whole = whole_case(mesh);
    const std::int32_t num_parts = std::ranges::max(owners) + 1;
    for (std::int32_t part = 0; part < num_parts; ++part) {
        Share share;
        for (std::int64_t cell = 0; cell < whole.num_cells; ++cell)
            if (owners[static_cast<std::size_t>(cell)] == part) share.cells.push_back(cell);
        share.patches = real_patches();
        std::map<std::int32_t, std::vector<WholeFace>> between;
        std::set<std::int64_t> points;
        for (WholeFace face : whole.faces) {
            const std::int32_t here = owners[static_cast<std::size_t>(face.owner)];
            const std::int32_t there = face.neighbour < 0 ? here : owners[static_cast<std::size_t>(face.neighbour)];
            if (here != part && there != part) continue;
            points.insert(face.points.begin(), face.points.end());
            if (face.number >= whole.num_inner) {
                share.patches[face.number < whole.num_inner + whole.num_left ? 0 : 1].faces.push_back(face);
            } else if (here == there) {
                share.inner.push_back(face);
            } else {
                if (there == part) {  // seen from the other side: turned round, but for its first point
                    std::swap(face.owner, face.neighbour);
                    std::reverse(face.points.begin() + 1, face.points.end());
                }
                between[here == part ? there : here].push_back(face);
            }
        }
        share.points.assign(points.begin(), points.end());
        for (auto& [other, faces] : between)
            share.patches.push_back({"procBoundary" + std::to_string(part) + "to" + std::to_string(other),
                                     "type processor; inGroups 1(processor); myProcNo " + std::to_string(part) +
                                         "; neighbProcNo " + std::to_string(other) + ";",
                                     std::move(faces)});
        write_share(folder / ("processor" + std::to_string(part)), mesh, whole, share, style, with_addressing);
    }
    write_control(folder);
}

}  // namespace meshard
