// SPDX-License-Identifier: Apache-2.0
// Damaged files must be refused: no crash, no hang, no mesh that looks right.
#include "io/mesh_io.h"
#include "io/vtk/vtk_xml_writer.h"
#include "partition/error.h"
#include "tests/io/vtk/vtk_oracle.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <random>

namespace meshard {
namespace {

/// Cuts the file at `num_cuts` places (or at each byte) and expects a refusal every time.
void expect_refused_when_cut(const std::filesystem::path& path, std::size_t num_cuts)
{
    const std::string bytes = read_bytes(path);
    std::string whole = bytes;
    while (whole.back() == '\n') whole.pop_back();  // a missing last line end is no damage
    const std::size_t step = std::max<std::size_t>(1, whole.size() / num_cuts);
    for (std::size_t cut = 1; cut <= whole.size(); cut += step) {
        const std::size_t size = whole.size() - cut;
        std::filesystem::resize_file(path, size);
        EXPECT_THROW(read_mesh(path), IoError) << path << " cut at " << size << " of " << bytes.size();
    }
    write_bytes(path, bytes);
    EXPECT_NO_THROW(read_mesh(path));
}

TEST(Truncation, IsFoundAtEveryByteOfOurOwnFiles)
{
    const TemporaryFolder folder;
    for (const Compression compression : {Compression::None, Compression::Zlib, Compression::Lz4}) {
        write_mesh(folder / "a.vtu", mixed_cells(), {.compression = compression});
        expect_refused_when_cut(folder / "a.vtu", SIZE_MAX);
        write_mesh(folder / "a.vtp", surface_of_all_kinds(), {.compression = compression});
        expect_refused_when_cut(folder / "a.vtp", SIZE_MAX);
    }
}

TEST(Truncation, IsFoundInEveryEncoding)
{
    const TemporaryFolder folder;
    using E = VtkEncoding;
    for (const E& encoding : {E{.mode = E::Ascii}, E{.mode = E::Base64}, E{.mode = E::Base64, .compressor = E::Zlib},
                              E{.mode = E::AppendedBase64, .compressor = E::Zlib}, E{.mode = E::AppendedRaw},
                              E{.mode = E::AppendedRaw, .compressor = E::Zlib, .wide_header = true}}) {
        write_with_vtk(folder / "a.vtu", polyhedral_cube(2), encoding);
        expect_refused_when_cut(folder / "a.vtu", 300);
        write_with_vtk(folder / "a.vtp", sphere(5), encoding);
        expect_refused_when_cut(folder / "a.vtp", 300);
    }
}

TEST(Truncation, IsFoundInPointsAndCellsOfLegacyFiles)
{
    const TemporaryFolder folder;
    for (const bool binary : {false, true}) {
        Mesh mesh = sphere(4);
        mesh.point_data.clear();
        mesh.cell_data.clear();
        mesh.field_data.clear();
        write_legacy_with_vtk(folder / "a.vtk", mesh, binary);
        const std::string bytes = read_bytes(folder / "a.vtk");

        for (std::size_t size = 0; size + 8 < bytes.size(); size += 7) {
            write_bytes(folder / "a.vtk", std::string_view(bytes).substr(0, size));
            try {
                const Mesh cut = read_mesh(folder / "a.vtk");
                // The format has no end mark: a cut between two blocks leaves a smaller file that is valid.
                EXPECT_TRUE(cut.num_cells() == 0) << "cut at " << size << " of " << bytes.size();
            } catch (const IoError&) {
            }
        }
    }
}

/// Removes bytes from the middle of the appended data, so that the file still ends as it should.
TEST(Damage, MissingMiddleIsFound)
{
    const TemporaryFolder folder;
    for (const Compression compression : {Compression::None, Compression::Zlib, Compression::Lz4}) {
        write_mesh(folder / "a.vtu", cube(3), {.compression = compression});
        const std::string bytes = read_bytes(folder / "a.vtu");
        const std::size_t begin = bytes.find("_", bytes.find("<AppendedData")) + 1,
                          end = bytes.rfind("</AppendedData>");

        for (std::size_t at = begin; at + 64 < end; at += (end - begin) / 50) {
            std::string damaged = bytes;
            damaged.erase(at, 64);
            write_bytes(folder / "a.vtu", damaged);
            try {
                const Mesh mesh = read_mesh(folder / "a.vtu");
                mesh.validate();  // shifted bytes may still be numbers; what is read must hold together
            } catch (const IoError&) {
            }
        }
    }
}

TEST(Damage, FlippedBytesNeverCrash)
{
    const TemporaryFolder folder;
    std::mt19937 random(7);
    for (const char* name : {"a.vtu", "a.vtp"})
        for (const Compression compression : {Compression::None, Compression::Zlib, Compression::Lz4}) {
            write_mesh(folder / name, std::string_view(name) == "a.vtu" ? mixed_cells() : surface_of_all_kinds(),
                       {.compression = compression});
            const std::string bytes = read_bytes(folder / name);
            for (int trial = 0; trial < 3000; ++trial) {
                std::fstream file(folder / name, std::ios::in | std::ios::out | std::ios::binary);
                std::array<std::size_t, 3> places{};
                for (std::size_t& place : places) {
                    place = random() % bytes.size();
                    file.seekp(static_cast<std::streamoff>(place)).put(static_cast<char>(random()));
                }
                file.flush();
                try {
                    read_mesh(folder / name).validate();
                } catch (const Error&) {
                }
                for (const std::size_t place : places) file.seekp(static_cast<std::streamoff>(place)).put(bytes[place]);
            }
        }
}

struct BadFile {
    const char* name;
    const char* replace;
    const char* by;
    const char* message;
};

TEST(Damage, IsNamed)
{
    const TemporaryFolder folder;
    Mesh mesh = polyhedral_cube(1);
    write_with_vtk(folder / "good.vtu", mesh, {.mode = VtkEncoding::Ascii});
    const std::string good = read_bytes(folder / "good.vtu");
    const BadFile cases[] = {
        {"count", "NumberOfPoints=\"8\"", "NumberOfPoints=\"9\"", "should hold 9 rows"},
        {"negative", "NumberOfPoints=\"8\"", "NumberOfPoints=\"-8\"", "a count from 0 to 2147483647"},
        {"huge", "NumberOfCells=\"1\"", "NumberOfCells=\"99999999999\"", "a count from 0 to 2147483647"},
        {"type", "type=\"Float64\"", "type=\"Float63\"", "has type 'Float63'"},
        {"name", "Name=\"connectivity\"", "Name=\"connections\"", "has no array 'connectivity'"},
        {"points", "<Points>", "<Point>", "expected </Point>"},
        {"twice", "Name=\"patch\"", "Name=\"flag\"", "two arrays 'flag'"},
        {"root", "<VTKFile type=\"Unstr", "<VTKFile type=\"Inst", "expected a VTKFile of type"},
    };
    for (const BadFile& bad : cases) {
        std::string text = good;
        const std::size_t at = text.find(bad.replace);
        ASSERT_NE(at, std::string::npos) << bad.name;
        text.replace(at, std::string_view(bad.replace).size(), bad.by);
        write_bytes(folder / "bad.vtu", text);
        try {
            read_mesh(folder / "bad.vtu");
            ADD_FAILURE() << bad.name << " was read";
        } catch (const IoError& error) {
            EXPECT_NE(std::string(error.what()).find(bad.message), std::string::npos)
                << bad.name << ": " << error.what();
        }
    }
}

TEST(Damage, PointOutOfRangeIsNamed)
{
    const TemporaryFolder folder;
    Mesh mesh = two_triangles();
    mesh.cells.indices[4] = 77;
    write_vtk_xml(folder / "bad.vtp", mesh, MeshKind::Surface, {});

    try {
        read_mesh(folder / "bad.vtp");
        ADD_FAILURE();
    } catch (const IoError& error) {
        EXPECT_NE(std::string(error.what()).find("cell 1 of the <Polys> uses point 77, expected 0 to 3"),
                  std::string::npos)
            << error.what();
    }
}

}  // namespace
}  // namespace meshard
