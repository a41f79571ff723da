// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/vtk_xml_writer.h"

#include "io/bytes/atomic_file.h"
#include "io/bytes/xml.h"
#include "io/vtk/file_extension.h"
#include "io/vtk/hexahedron_order.h"
#include "io/vtk/vtk_xml_reader.h"
#include "partition/error.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <unistd.h>
#include <utility>

namespace meshard {

namespace {

constexpr std::array kGroupNames{"Verts", "Lines", "Polys", "Strips"};

using Bytes = std::span<const std::byte>;

/// The values of one array to write, converted piece by piece so that the whole array is never copied.
struct Block {
    std::uint64_t size = 0;
    /// Returns `count` bytes from `begin` on, both multiples of 8 except at the end; it may use the memory of
    /// `scratch`.
    std::function<Bytes(std::size_t begin, std::size_t count, std::vector<std::byte>& scratch)> run;
};

Block block_of(Bytes bytes)
{
    return {bytes.size(), [bytes](std::size_t begin, std::size_t count, std::vector<std::byte>&) {
                return bytes.subspan(begin, count);
            }};
}

Block block_of(const DataArray& array)
{
    if (array.type() != ScalarType::String) return block_of(array.bytes());
    const auto all = std::make_shared<std::string>();
    for (const std::string& text : array.strings()) {
        if (text.find('\0') != std::string::npos)
            throw InvalidInput("write_mesh: a string of array '{}' contains the character 0, which VTK's files cannot "
                               "hold. Remove it.",
                               array.name());
        all->append(text.c_str(), text.size() + 1);
    }
    return {all->size(), [all](std::size_t begin, std::size_t count, std::vector<std::byte>&) {
                return std::as_bytes(std::span(*all)).subspan(begin, count);
            }};
}

/// Integers minus `minus`, as `To`.
template <class To>
Block converted(std::span<const std::int64_t> values, std::int64_t minus)
{
    return {values.size() * sizeof(To),
            [values, minus](std::size_t begin, std::size_t count, std::vector<std::byte>& scratch) {
                scratch.resize(count);
                auto* out = reinterpret_cast<To*>(scratch.data());
                for (const std::int64_t value : values.subspan(begin / sizeof(To), count / sizeof(To)))
                    *out++ = static_cast<To>(value - minus);
                return Bytes(scratch);
            }};
}

template <class To>
Block converted(std::span<const std::int32_t> values)
{
    if constexpr (sizeof(To) == sizeof(std::int32_t)) return block_of(std::as_bytes(values));
    return {values.size() * sizeof(To),
            [values](std::size_t begin, std::size_t count, std::vector<std::byte>& scratch) {
                scratch.resize(count);
                std::ranges::copy(values.subspan(begin / sizeof(To), count / sizeof(To)),
                                  reinterpret_cast<To*>(scratch.data()));
                return Bytes(scratch);
            }};
}

/// VTK's layout: number of blocks, their size, the size of a shorter last one, compressed sizes; then the compressed
/// blocks.
std::vector<std::vector<std::byte>> compressed(const Block& block, Compression compression)
{
    constexpr std::size_t block_size = std::size_t{1} << 18;
    const std::size_t num_blocks = (block.size + block_size - 1) / block_size;
    std::vector<std::uint64_t> words{num_blocks, block_size, block.size % block_size};
    words.resize(3 + num_blocks);
    std::vector<std::vector<std::byte>> parts(1 + num_blocks);
    for_each_in_parallel(num_blocks, [&](std::size_t i) {
        thread_local std::vector<std::byte> scratch, out;
        const Bytes plain =
            block.run(i * block_size, std::min<std::size_t>(block_size, block.size - i * block_size), scratch);
        out.resize(compressed_bound(compression, plain.size()));
        words[3 + i] = compress_block(compression, plain, out);
        parts[1 + i].assign(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(words[3 + i]));
    });
    const auto header = std::as_bytes(std::span(words));
    parts[0].assign(header.begin(), header.end());
    if (std::ranges::any_of(parts, [](const auto& part) { return part.empty(); }))
        throw IoError("write_mesh: an array could not be compressed; out of memory?");
    return parts;
}

std::string attribute_text(std::string_view name, const std::string& value)
{
    return " " + std::string(name) + "=\"" + xml_escaped(value) + "\"";
}

/// ` Scalars="p" Vectors="U"`: the array of each role.
std::string roles_text(std::span<const DataArray> arrays)
{
    std::string text;
    for (const std::string_view role : attribute_roles())
        for (const DataArray& array : arrays) {
            if (!has_role(array, role)) continue;
            text += attribute_text(role, array.name());
            break;
        }
    return text;
}

const char* tag_of(const DataArray& array)
{
    return array.type() == ScalarType::String ? "Array" : "DataArray";
}

class VtkXmlWriter {
public:
    VtkXmlWriter(const Mesh& mesh, MeshKind kind, const WriteOptions& options)
        : mesh_(mesh), kind_(kind), compression_(options.compression), sync_(options.sync)
    {
    }

    void write(const std::filesystem::path& path)
    {
        const char* type = kind_ == MeshKind::Surface ? "PolyData" : "UnstructuredGrid";
        text_ = "<?xml version=\"1.0\"?>\n<VTKFile type=\"" + std::string(type) + "\" version=\"" +
                (has_curved_hexahedra(mesh_) ? "2.2" : "1.0") +
                "\" byte_order=\"LittleEndian\" header_type=\"UInt64\"" +
                (compression_ != Compression::None
                     ? attribute_text("compressor", std::string(vtk_compressor_name(compression_)))
                     : "") +
                ">\n  <" + type + ">\n";
        if (!mesh_.field_data.empty()) {
            text_ += "    <FieldData>\n";
            for (const DataArray& array : mesh_.field_data)
                add_array_element(array, attribute_text("NumberOfTuples", std::to_string(array.num_rows())));
            text_ += "    </FieldData>\n";
        }
        text_ += fmt::format("    <Piece NumberOfPoints=\"{}\"", mesh_.num_points());
        if (kind_ == MeshKind::Surface)
            add_polydata();
        else
            add_unstructured();
        text_ += "    </Piece>\n  </" + std::string(type) + ">\n  <AppendedData encoding=\"raw\">\n";
        text_.append((8 - (text_.size() + 1) % 8) % 8, ' ');
        text_ += '_';

        AtomicFile file(path);
        file.write(text_);
        write_blocks(file);
        file.write("\n  </AppendedData>\n</VTKFile>\n");
        file.commit(sync_);
    }

private:
    void add_arrays()
    {
        text_ += "      <PointData" + roles_text(mesh_.point_data) + ">\n";
        for (const DataArray& array : mesh_.point_data) add_array_element(array);
        text_ += "      </PointData>\n      <CellData" + roles_text(mesh_.cell_data) + ">\n";
        for (const DataArray& array : mesh_.cell_data) add_array_element(array);
        text_ += "      </CellData>\n      <Points>\n";
        add_array_element(mesh_.points);
        text_ += "      </Points>\n";
    }

    void add_array_element(const DataArray& array, const std::string& more = {})
    {
        add_element(tag_of(array), vtk_declaration(array) + more, block_of(array), array.unit);
    }

    void add_element(const std::string& tag, const std::string& attributes, Block block, const std::string& unit = {})
    {
        text_ += fmt::format("        <{}{} format=\"appended\" offset=\"{}\"{}", tag, attributes, offset_,
                             unit.empty() ? "/>\n"
                                          : "><InformationKey name=\"UNITS_LABEL\" location=\"vtkDataArray\">" +
                                                xml_escaped(unit) + "</InformationKey></" + tag + ">\n");
        if (compression_ != Compression::None) {
            for (auto& bytes : compressed(block, compression_)) {
                offset_ += bytes.size();
                compressed_.push_back(std::move(bytes));
            }
        } else {
            offset_ += 8 + (block.size + 7) / 8 * 8;
            blocks_.push_back(std::move(block));
        }
    }

    /// Adds rows in VTK's form: all entries, and the end of each row minus `minus`. Both have one type, as narrow as
    /// the largest end allows.
    void add_rows(const char* entries_name, std::span<const std::int32_t> entries, const char* ends_name,
                  std::span<const std::int64_t> ends, std::int64_t minus)
    {
        const auto add = [&]<class T>(const char* type) {
            const auto attributes = [&](const char* name) {
                return std::string(" type=\"") + type + "\" Name=\"" + name + "\"";
            };
            add_element("DataArray", attributes(entries_name), converted<T>(entries));
            add_element("DataArray", attributes(ends_name), converted<T>(ends, minus));
        };
        if (entries.size() <= std::numeric_limits<std::int32_t>::max())
            add.template operator()<std::int32_t>("Int32");
        else
            add.template operator()<std::int64_t>("Int64");
    }

    void add_cells(const char* tag, std::int64_t first, std::int64_t count)
    {
        const std::int64_t begin = mesh_.cells.offsets[first], end = mesh_.cells.offsets[first + count];
        text_ += std::string("      <") + tag + ">\n";
        add_rows("connectivity", std::span(mesh_.cells.indices).subspan(begin, end - begin), "offsets",
                 std::span(mesh_.cells.offsets).subspan(first + 1, count), begin);
        if (kind_ == MeshKind::Unstructured) add_types_and_faces();
        text_ += std::string("      </") + tag + ">\n";
    }

    void add_types_and_faces()
    {
        add_element("DataArray", " type=\"UInt8\" Name=\"types\"",
                    block_of(std::as_bytes(std::span(mesh_.cell_types))));
        if (!mesh_.has_polyhedra()) return;
        face_ends_.reserve(mesh_.cell_types.size());
        for (std::int64_t i = 0; i < mesh_.num_cells(); ++i)
            face_ends_.push_back(mesh_.face_streams.row(i).empty() ? -1 : mesh_.face_streams.offsets[i + 1]);
        add_rows("faces", mesh_.face_streams.indices, "faceoffsets", face_ends_, 0);
    }

    void add_unstructured()
    {
        text_ += fmt::format(" NumberOfCells=\"{}\">\n", mesh_.num_cells());
        add_arrays();
        add_cells("Cells", 0, mesh_.num_cells());
    }

    void add_polydata()
    {
        const auto counts = polydata_counts(mesh_);
        for (int group = 0; group < 4; ++group)
            text_ += fmt::format(" NumberOf{}=\"{}\"", kGroupNames[group], counts[group]);
        text_ += ">\n";
        add_arrays();
        std::int64_t first = 0;
        for (int group = 0; group < 4; ++group) {
            add_cells(kGroupNames[group], first, counts[group]);
            first += counts[group];
        }
    }

    void write_blocks(AtomicFile& file) const
    {
        constexpr std::size_t run = std::size_t{1} << 22;
        std::vector<std::byte> scratch;
        for (const auto& bytes : compressed_) file.write(bytes);
        for (const Block& block : blocks_) {
            constexpr std::array<std::byte, 8> zeros{};
            file.write(std::as_bytes(std::span(&block.size, 1)));
            for (std::size_t begin = 0; begin < block.size; begin += run)
                file.write(block.run(begin, std::min<std::size_t>(run, block.size - begin), scratch));
            file.write(std::span(zeros).first((8 - block.size % 8) % 8));
        }
    }

    const Mesh& mesh_;
    MeshKind kind_;
    Compression compression_;
    bool sync_;
    std::string text_;
    std::uint64_t offset_ = 0;
    std::vector<Block> blocks_;
    std::vector<std::vector<std::byte>> compressed_;
    std::vector<std::int64_t> face_ends_;
};

std::string index_group(const std::string& tag, std::span<const DataArray> arrays)
{
    std::string text = "    <" + tag + roles_text(arrays) + ">\n";
    for (const DataArray& array : arrays)
        text += std::string("      <P") + tag_of(array) + vtk_declaration(array) + "/>\n";
    return text + "    </" + tag + ">\n";
}

}  // namespace

std::array<std::int64_t, 4> polydata_counts(const Mesh& mesh)
{
    std::array<std::int64_t, 4> counts{};
    int last = 0;
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        const int group = polydata_group(mesh.cell_types[i]);
        if (group < 0)
            throw InvalidInput("cell {} is a {}, which .vtp cannot hold. Write .vtu.", i,
                               cell_type_name(mesh.cell_types[i]));
        if (group < last)
            throw InvalidInput(
                "cell {} ({}) comes after {}, but .vtp keeps vertices, lines, polygons and strips in this "
                "order. Write .vtu; meshard convert sorts the cells.",
                i, cell_type_name(mesh.cell_types[i]), kGroupNames[last]);
        last = group;
        ++counts[group];
    }
    return counts;
}

std::string vtk_declaration(const DataArray& array)
{
    std::string text = attribute_text("type", std::string(to_string(array.type())));
    // VTK reads global ids into its own id type only with this attribute.
    const bool is_id = array.attribute.find("GlobalIds") != std::string::npos ||
                       array.attribute.find("PedigreeIds") != std::string::npos;
    if (array.type() == ScalarType::Int64 && is_id) text += " IdType=\"1\"";
    text += attribute_text("Name", array.name());
    if (array.num_components() != 1)
        text += attribute_text("NumberOfComponents", std::to_string(array.num_components()));
    for (std::size_t i = 0; i < array.component_names.size(); ++i)
        if (!array.component_names[i].empty())
            text += attribute_text(fmt::format("ComponentName{}", i), array.component_names[i]);
    return text;
}

void write_vtk_xml(const std::filesystem::path& path, const Mesh& mesh, MeshKind kind, const WriteOptions& options)
{
    if (options.compression != Compression::None && !is_available(options.compression))
        throw InvalidInput(
            "write_mesh: this build cannot compress with lz4 (liblz4 was not found). Use zlib, or none.");
    VtkXmlWriter(mesh, kind, options).write(path);
}

void write_vtk_index(const std::filesystem::path& path, const Mesh& like, std::span<const std::string> sources,
                     std::int32_t num_ghost_layers, std::span<const std::string> hashes)
{
    const std::string type = lower_extension(path) == ".pvtp" ? "PPolyData" : "PUnstructuredGrid";
    std::string text =
        fmt::format("<?xml version=\"1.0\"?>\n<VTKFile type=\"{}\" version=\"1.0\" "
                    "byte_order=\"LittleEndian\" header_type=\"UInt64\">\n  <{} GhostLevel=\"{}\"{}>\n",
                    type, type, num_ghost_layers,
                    hashes.empty() ? "" : attribute_text("NumberOfPieces", std::to_string(sources.size())));
    text += index_group("PPointData", like.point_data);
    text += index_group("PCellData", like.cell_data);
    text += "    <PPoints>\n      <PDataArray" + vtk_declaration(like.points) + "/>\n    </PPoints>\n";
    for (std::size_t i = 0; i < sources.size(); ++i)
        text += "    <Piece" + attribute_text("Source", sources[i]) +
                (hashes.empty() ? "" : attribute_text("Hash", hashes[i])) + "/>\n";
    text += "  </" + type + ">\n</VTKFile>\n";
    write_file_atomically(path, text);
}

std::vector<std::filesystem::path> write_vtk_parallel(const std::filesystem::path& named, std::span<const Mesh> pieces,
                                                      std::int32_t num_ghost_layers, const WriteOptions& options)
{
    const MeshKind kind = lower_extension(named) == ".pvtp" ? MeshKind::Surface : MeshKind::Unstructured;
    const auto path = file_to_write(named);  // pieces are beside the index itself, not beside a link to it
    std::error_code ignored;
    std::vector<std::filesystem::path> written, hidden;  // the files, and their names until all are whole
    const auto next = [&](const std::string& name) -> const std::filesystem::path& {
        written.push_back(path.parent_path() / name);
        const auto target = file_to_write(written.back());  // of a link what it leads to
        return hidden.emplace_back(target.parent_path() / fmt::format(".{}-{}", ::getpid(), name));
    };
    std::vector<std::string> sources;
    try {
        for (const Mesh& piece : pieces) {
            sources.push_back(fmt::format("{}_{:04}{}", path.stem().string(), sources.size(), extension_of(kind)));
            write_vtk_xml(next(sources.back()), piece, kind, options);
        }
        write_vtk_index(next(path.filename().string()), pieces.front(), sources, num_ghost_layers);
        for (std::size_t i = 0; i < written.size(); ++i)
            if (std::filesystem::exists(written[i]))
                std::filesystem::permissions(hidden[i], std::filesystem::status(written[i]).permissions(), ignored);
        // While pieces are replaced, an older index would list pieces of two meshes.
        std::filesystem::remove(path, ignored);
        for (std::size_t i = 0; i < written.size(); ++i) std::filesystem::rename(hidden[i], file_to_write(written[i]));
    } catch (...) {
        for (const auto& file : hidden) std::filesystem::remove(file, ignored);
        throw;
    }
    return written;
}

}  // namespace meshard
