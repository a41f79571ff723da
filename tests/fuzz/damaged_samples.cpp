// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/damaged_samples.h"

#include "io/bytes/block_codec.h"
#include "io/checkpoints/model_checkpoint.h"
#include "io/mesh_io.h"
#include "io/shards/partition_file.h"
#include "io/shards/shard_check.h"
#include "io/shards/subdomain_io.h"
#include "io/vtk/grid_file.h"
#include "io/vtk/mapped_mesh.h"
#include "partition/error.h"
#include "partition/ghosts/subdomain.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/foam_case.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/stored_arrays.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_paths.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>

namespace meshard {
namespace {

std::string base64(std::string_view bytes)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        std::uint32_t bits = 0;
        for (std::size_t k = 0; k < 3; ++k)
            bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0);
        for (std::size_t k = 0; k < 4; ++k) text += i + k <= bytes.size() ? alphabet[bits >> (18 - 6 * k) & 63] : '=';
    }
    return text;
}

/// The text of a compressed <DataArray format="binary">, in blocks of 24 bytes.
std::string compressed_text(const std::string& bytes)
{
    std::vector<std::uint32_t> words{static_cast<std::uint32_t>((bytes.size() + 23) / 24), 24,
                                     static_cast<std::uint32_t>(bytes.size() % 24)};
    std::string blocks;
    for (std::size_t at = 0; at < bytes.size(); at += 24) {
        const std::string part = bytes.substr(at, 24);
        std::vector<std::byte> block(compressed_bound(Compression::Zlib, part.size()));
        words.push_back(
            static_cast<std::uint32_t>(compress_block(Compression::Zlib, std::as_bytes(std::span(part)), block)));
        blocks.append(reinterpret_cast<const char*>(block.data()), words.back());
    }
    return base64({reinterpret_cast<const char*>(words.data()), 4 * words.size()}) + base64(blocks);
}

class SampleMaker {
public:
    explicit SampleMaker(const std::filesystem::path& folder) : folder_(folder) {}

    std::vector<DamageSample> make()
    {
        vtk_files();
        collections();
        text_meshes();
        odd_files();
        foam_cases();
        shards();
        checkpoints();
        partition_files();
        grids();
        return std::move(samples_);
    }

private:
    using Reader = DamageSample::Reader;

    void keep(const std::string& name, const std::string& opened, Reader reader)
    {
        std::string key = name;
        std::ranges::replace(key, '/', '+');
        samples_.push_back({key, folder_ / name, folder_ / opened, reader, read_bytes(folder_ / name)});
    }

    void text(const std::string& name, const std::string& bytes, Reader reader = Reader::Mesh)
    {
        write_bytes(folder_ / name, bytes);
        keep(name, name, reader);
    }

    void vtk_files()
    {
        const auto add = [&](const std::string& name, const Mesh& mesh, Compression compression,
                             Reader reader = Reader::Mesh) {
            write_mesh(folder_ / name, mesh, {.compression = compression});
            keep(name, name, reader);
        };
        add("raw.vtu", mixed_cells(), Compression::None);
        add("zlib.vtu", mixed_cells(), Compression::Zlib);
        if (is_available(Compression::Lz4)) add("lz4.vtu", mixed_cells(), Compression::Lz4);
        add("raw.vtp", surface_of_all_kinds(), Compression::None);
        // A mapped mesh has no arrays of texts.
        for (const auto& [name, whole] :
             {std::pair{"mapped.vtu", mixed_cells()}, std::pair{"mapped.vtp", surface_of_all_kinds()}}) {
            Mesh mesh = whole;
            mesh.field_data.clear();
            add(name, mesh, Compression::None, Reader::MappedMesh);
        }
        text("ascii.vtu", "<VTKFile type=\"UnstructuredGrid\" "
                          "header_type=\"UInt64\"><UnstructuredGrid><FieldData><Array type=\"String\" Name=\"n\" "
                          "format=\"ascii\">97 98 0</Array></FieldData>"
                          "<Piece NumberOfPoints=\"4\" NumberOfCells=\"1\"><Points><DataArray type=\"Float32\" "
                          "NumberOfComponents=\"3\" format=\"ascii\">0 0 0 "
                          "1 0 0 0 1 0 0 0 1</DataArray></Points>"
                          "<Cells><DataArray type=\"Int32\" Name=\"connectivity\" format=\"ascii\">0 1 2 "
                          "3</DataArray><DataArray type=\"Int32\" "
                          "Name=\"offsets\" format=\"ascii\">4</DataArray>"
                          "<DataArray type=\"UInt8\" Name=\"types\" format=\"ascii\">42</DataArray><DataArray "
                          "type=\"Int64\" Name=\"faces\" format=\"ascii\">4 "
                          "3 0 1 2 3 0 1 3 3 1 2 3 3 0 2 3</DataArray>"
                          "<DataArray type=\"Int64\" Name=\"faceoffsets\" "
                          "format=\"ascii\">17</DataArray></Cells><CellData><DataArray type=\"Float64\" "
                          "Name=\"p\" format=\"binary\">CAAAAAAAAAAAAAAAAADwPw==</DataArray>"
                          "</CellData></Piece></UnstructuredGrid></VTKFile>");
        text("base64.vtu",
             "<VTKFile type=\"UnstructuredGrid\" compressor=\"vtkZLibDataCompressor\"><UnstructuredGrid><Piece "
             "NumberOfPoints=\"8\" NumberOfCells=\"0\"><Points>"
             "<DataArray type=\"Float64\" NumberOfComponents=\"3\" format=\"binary\">" +
                 compressed_text(std::string(192, '\1')) +
                 "</DataArray></Points><Cells>"
                 "<DataArray type=\"Int64\" Name=\"connectivity\" format=\"ascii\"/><DataArray type=\"Int64\" "
                 "Name=\"offsets\" format=\"ascii\"/>"
                 "<DataArray type=\"UInt8\" Name=\"types\" "
                 "format=\"ascii\"/></Cells></Piece></UnstructuredGrid></VTKFile>");
    }

    void collections()
    {
        text(
            "index.pvtu",
            "<VTKFile type=\"PUnstructuredGrid\"><PUnstructuredGrid GhostLevel=\"0\"><Piece Source=\"raw.vtu\"/><Piece "
            "Source=\"zlib.vtu\"/></PUnstructuredGrid></VTKFile>");
        text("tree.vtm",
             "<VTKFile type=\"vtkMultiBlockDataSet\"><vtkMultiBlockDataSet><Block name=\"a\"><DataSet name=\"b\" "
             "file=\"raw.vtu\"/></Block><DataSet index=\"1\" file=\"raw.vtp\"/>"
             "</vtkMultiBlockDataSet></VTKFile>");
        text("run.pvd", "<VTKFile type=\"Collection\"><Collection><DataSet timestep=\"1\" part=\"0\" "
                        "file=\"raw.vtu\"/><DataSet timestep=\"2\" part=\"0\" "
                        "file=\"raw.vtp\"/></Collection></VTKFile>");
        text(
            "run.series",
            R"({"file-series-version": "1.0", "files": [{"name": "raw.vtu", "time": 1}, {"name": "raw.vtp", "time": 2e0}]})");
    }

    void text_meshes()
    {
        text("a.stl", "solid one\nfacet normal 0 0 1\nouter loop\nvertex 0 0 0\nvertex 1 0 0\nvertex 0 1e-1 "
                      "0\nendloop\nendfacet\nendsolid one\nsolid two\nendsolid\n");
        text("b.stl", std::string(80, ' ') + std::string("\1\0\0\0", 4) + std::string(50, '\0'));
        text("a.ply", "ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\nproperty float y\nproperty float "
                      "z\nproperty int id\nelement face "
                      "1\nproperty list uchar int vertex_indices\n"
                      "property float q\nend_header\n0 0 0 7\n1 0 0 8\n0 1 0 9\n3 0 1 2 0.5\n");
        text("b.ply", "ply\nformat binary_little_endian 1.0\nelement vertex 3\nproperty float x\nproperty float "
                      "y\nproperty float z\nelement face 1\nproperty "
                      "list uchar int vertex_indices\nend_header\n" +
                          std::string(36, '\0') + std::string("\3\0\0\0\0\1\0\0\0\2\0\0\0", 13));
        text("a.obj", "v 0 0 0\nv 1 0 0\nv 0 1 0\ng one two\nf 1/2/3 2//1 -1\nl 1 2 \\\n3\np 1\no three\nf 1 2 3\n");
    }

    /// Of each dialect one.
    void odd_files()
    {
        for (const std::string name :
             {"xml/inline_header_apart_line.vtu", "xml/appended_header_apart_64.vtu", "xml/cdata.vtu",
              "xml/doctype.vtu", "xml/bits_appraw.vtu", "xml/strings_utf8.vtu", "xml/time_steps_moving.vtu",
              "xml/points_UInt16.vtu", "xml/koi8.vtu", "xml/utf16_be.vtu", "xml/latin1_undeclared.vtu",
              "ghosts/level_two.vtp", "ghosts/fractions.vtp", "stl/upper_with_mark.stl", "stl/count_unknown.stl",
              "ply/extra_columns.ply", "ply/mixed_coordinates.ply", "obj/latin1_groups.obj"})
            text("odd_" + name.substr(name.find('/') + 1), read_bytes(source_path("tests/data/odd/" + name)));
        for (const std::string name : {"conditions", "wedge"}) {
            std::filesystem::copy(source_path("tests/data/odd/foam/" + name), folder_ / name,
                                  std::filesystem::copy_options::recursive);
            for (const auto& field : std::filesystem::directory_iterator(folder_ / name / "10"))
                keep(name + "/10/" + field.path().filename().string(), name, Reader::Patches);
        }
    }

    void foam_cases()
    {
        for (const auto& [name, style] : {std::pair<std::string, FoamCaseStyle>{"ascii", {}},
                                          {"binary", {.binary = true}},
                                          {"gz", {.compressed = true}}}) {
            write_foam_case(folder_ / name, polyhedral_cube(2), style);
            for (const char* file : {"constant/polyMesh/points", "constant/polyMesh/faces", "constant/polyMesh/owner",
                                     "constant/polyMesh/neighbour", "constant/polyMesh/boundary",
                                     "constant/polyMesh/cellZones", "0.5/p", "0.5/U", "0.5/T", "0.5/S", "0.5/D"})
                keep(name + "/" + file + (style.compressed ? ".gz" : ""), name, Reader::Mesh);
        }
        // Of a decomposed case the files that say how its processors fit together.
        for (const bool with_addressing : {false, true}) {
            const std::string name = with_addressing ? "addressed" : "bare";
            write_decomposed_foam_case(folder_ / name, cube(2), std::vector<std::int32_t>{0, 0, 1, 1, 2, 2, 0, 1},
                                       with_addressing);
            for (const char* file :
                 {"boundary", "faces", "pointProcAddressing", "faceProcAddressing", "cellProcAddressing"})
                if (const auto damaged = name + "/processor1/constant/polyMesh/" + file;
                    std::filesystem::exists(folder_ / damaged))
                    keep(damaged, name, Reader::Mesh);
        }
    }

    void shards()
    {
        for (const auto& [name, mesh] :
             {std::pair{std::string("solids"), polyhedral_cube(2)}, std::pair{std::string("surface"), strip(6)}}) {
            Partition partition{3, std::vector<std::int32_t>(mesh.num_cells())};
            for (std::size_t i = 0; i < partition.owners.size(); ++i)
                partition.owners[i] = static_cast<std::int32_t>(3 * i / partition.owners.size());
            save_subdomains(folder_ / name, extract_subdomains(mesh, mesh_graph(mesh), partition, 1),
                            {.source = "whole", .method = "given"});
            keep(name + "/manifest.json", name, Reader::Shards);
            keep(name + "/pieces/mesh_0001" + extension_of(mesh.kind), name, Reader::Shards);
            keep(name + "/" + index_name(mesh.kind), name + "/" + index_name(mesh.kind), Reader::Mesh);
        }
    }

    void checkpoints()
    {
        for (const char* name : {"kinds.safetensors", "kinds.pt", "kinds_legacy.pt", "deflated.pt"})
            text(name, read_bytes(source_path(std::string("tests/data/checkpoints/") + name)), Reader::Checkpoint);
        auto model = read_checkpoint(folder_ / "kinds.safetensors");
        model.architecture = "Transolver";
        model.arguments = R"({"functional_dim": 2, "n_layers": 1})";
        std::erase_if(model.weights.arrays, [](const NamedArray& array) {
            return array.type == ArrayType::U32 || array.type == ArrayType::U64;
        });
        write_checkpoint(folder_ / "model.mdlus", model, CheckpointFormat::Mdlus);
        keep("model.mdlus", "model.mdlus", Reader::Checkpoint);
    }

    void partition_files()
    {
        text("graph.part.3", "0\n1\n2\n1\n0\n", Reader::PartitionFile);
        text("cellDecomposition",
             "FoamFile { version 2.0; format ascii; class labelList; object cellDecomposition; }\n5(0 1 2 1 0)\n",
             Reader::PartitionFile);
        text("binaryDecomposition",
             "FoamFile { version 2.0; format binary; arch \"LSB;label=32;scalar=64\"; class labelList; object "
             "cellDecomposition; }\n2(" +
                 std::string("\1\0\0\0\0\0\0\0", 8) + ")\n",
             Reader::PartitionFile);
    }

    void grids()
    {
        ImageGrid grid;
        grid.num_points = {4, 3, 2};
        grid.point_data.push_back(DataArray("u", ScalarType::Float32, 24, 3));
        grid.cell_data.push_back(DataArray("c", ScalarType::Int16, 6));
        write_image(folder_ / "raw.vti", grid);
        keep("raw.vti", "raw.vti", Reader::Grid);
        text("zlib.vti",
             "<VTKFile type=\"ImageData\" compressor=\"vtkZLibDataCompressor\"><ImageData WholeExtent=\"0 3 0 1 0 "
             "0\"><Piece Extent=\"0 3 0 1 0 0\"><PointData><DataArray type=\"Float64\" Name=\"u\" "
             "format=\"binary\">" +
                 compressed_text(std::string(64, '\1')) + "</DataArray></PointData></Piece></ImageData></VTKFile>",
             Reader::Grid);
        text("index.pvti",
             "<VTKFile type=\"PImageData\"><PImageData WholeExtent=\"0 3 0 2 0 1\"><PCellData><PDataArray "
             "type=\"Int16\" Name=\"c\"/></PCellData><Piece Extent=\"0 3 0 2 0 1\" "
             "Source=\"raw.vti\"/></PImageData></VTKFile>",
             Reader::Grid);
        unpack_arrays("forms.zip", folder_ / "a.zarr");
        for (const char* file : {"zarr.json", "zstd/zarr.json", "zstd/c/0/0/0", "gzip/c/0/0/0", "blosc/c/0/0/0",
                                 "checked/c/0/0/0", "turned/zarr.json", "shards/zarr.json", "shards/c/0/0/0",
                                 "shards_begin/c/0/0/0", "inner/components_first/zarr.json", "absent/zarr.json"})
            keep(std::string("a.zarr/") + file, "a.zarr", Reader::Grid);
        unpack_arrays("times.zip", folder_);
        for (const char* file : {"u/zarr.json", "time/zarr.json", "time/c/0"})
            keep(std::string("xarray.zarr/") + file, "xarray.zarr", Reader::Grid);
        for (const char* file : {"xarray.h5", "labels.h5"}) keep(file, file, Reader::Grid);
    }

    std::filesystem::path folder_;
    std::vector<DamageSample> samples_;
};

/// Reads a corner of each array, since a damaged file may say that there are more places than memory has.
void read_grid(const std::filesystem::path& path)
{
    constexpr std::int64_t kCorner = 16;
    const auto file = GridFile::open(path);
    for (const bool of_cells : {false, true}) {
        auto box = whole_box(file->grid(), of_cells);
        for (auto& count : box.count) count = std::min(count, kCorner);
        for (const auto& array : of_cells ? file->grid().cell_data : file->grid().point_data)
            file->read(array.name(), of_cells, box);
    }
    file->times();
}

void read_mapped(const std::filesystem::path& path)
{
    const MappedMesh mesh(path);
    std::vector<std::int32_t> cells(mesh.num_cells());
    std::iota(cells.begin(), cells.end(), 0);
    mesh.cells(cells).validate();
}

void read_shards(const std::filesystem::path& folder)
{
    const Manifest manifest = read_manifest(folder);
    check_shards(folder);
    merge_subdomains(load_subdomains(folder)).validate();
}

void read_weights(const std::filesystem::path& path)
{
    unsigned sum = 0;
    for (const NamedArray& array : read_checkpoint(path).weights.arrays)
        for (const std::byte byte : array.bytes()) sum += static_cast<unsigned>(byte);
    [[maybe_unused]] volatile unsigned all_was_touched = sum;
}

}  // namespace

std::vector<DamageSample> make_damage_samples(const std::filesystem::path& folder)
{
    return SampleMaker(folder).make();
}

bool survives_reading(const DamageSample& sample)
{
    try {
        switch (sample.reader) {
        case DamageSample::Reader::Mesh:
            read_mesh(sample.opened).validate();
            break;
        case DamageSample::Reader::Patches:
            read_mesh(sample.opened, {.time = {}, .blocks = {"internalMesh", "boundary"}}).validate();
            break;
        case DamageSample::Reader::MappedMesh:
            read_mapped(sample.opened);
            break;
        case DamageSample::Reader::Shards:
            read_shards(sample.opened);
            break;
        case DamageSample::Reader::Checkpoint:
            read_weights(sample.opened);
            break;
        case DamageSample::Reader::Grid:
            read_grid(sample.opened);
            break;
        case DamageSample::Reader::PartitionFile:
            read_partition_file(sample.opened, [](std::int32_t) {});
            break;
        }
        return true;
    } catch (const Error&) {
        return false;
    }
}

}  // namespace meshard
