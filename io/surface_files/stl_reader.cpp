// SPDX-License-Identifier: Apache-2.0
#include "io/surface_files/stl_reader.h"

#include "io/bytes/ascii_numbers.h"
#include "io/bytes/mapped_file.h"
#include "io/bytes/read_warnings.h"
#include "io/bytes/text_encoding.h"
#include "partition/error.h"

#include <fmt/core.h>

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace meshard {

namespace {

constexpr std::size_t header_size = 84, triangle_size = 50;

struct PointHash {
    std::size_t operator()(const std::array<float, 3>& point) const
    {
        std::uint64_t hash = 0;
        for (const float value : point)  // + 0 turns -0 into 0, which compare equal
            hash = (std::rotl(hash, 21) ^ std::bit_cast<std::uint32_t>(value + 0.0F)) * 0x9E3779B97F4A7C15;
        return static_cast<std::size_t>(hash ^ hash >> 29);
    }
};

class StlReader {
public:
    StlReader(const std::filesystem::path& path, const ReadOptions& options)
        : where_("read_mesh: " + path.string()), file_(MappedFile::open(path, "read_mesh"))
    {
        read(path, options);
    }

    Mesh finish()
    {
        Mesh mesh;
        mesh.kind = MeshKind::Surface;
        mesh.points = DataArray::from("Points", std::move(coordinates_), 3);
        mesh.cell_types.assign(static_cast<std::size_t>(cells_.num_rows()), 5);
        mesh.cells = std::move(cells_);
        if (solid_names_.size() > 1) {
            mesh.cell_data.push_back(DataArray::from("SolidId", std::move(solids_)));
            mesh.field_data.push_back(DataArray::from_strings("SolidName", std::move(solid_names_)));
        }
        return mesh;
    }

private:
    void read(const std::filesystem::path& path, const ReadOptions& options)
    {
        const auto bytes = file_->bytes();
        std::uint32_t announced = 0;
        if (bytes.size() >= header_size) std::memcpy(&announced, bytes.data() + header_size - 4, 4);
        const std::uint64_t announced_size = header_size + triangle_size * std::uint64_t{announced};
        // Binary files may also begin with "solid"; only their size is reliable.
        if (bytes.size() == announced_size) return read_binary(announced);
        if (looks_like_text()) return read_text();
        if (bytes.size() < header_size)
            fail(fmt::format(
                "has {} bytes, an STL file begins with 'solid' or a header of 84 bytes. It is truncated or no STL file",
                bytes.size()));
        // Streaming writers leave a count that they did not know.
        constexpr std::uint32_t unknown = 0xFFFFFFFF;
        const std::uint64_t found = (bytes.size() - header_size) / triangle_size;
        if ((bytes.size() - header_size) % triangle_size != 0 || (announced > found && announced != unknown))
            fail(fmt::format("announces {} triangles, that is {} bytes; found {}. It is truncated or no STL file",
                             announced, announced_size, bytes.size()));
        read_binary(found);
        deliver_read_warnings({fmt::format("{}: it announces {} triangles and has {}; all of them are read",
                                           path.string(), announced, found)},
                              options);
    }

    [[noreturn]] void fail(const std::string& what) const { throw IoError("{} {}.", where_, what); }

    std::string_view text() const { return without_byte_order_mark(file_->text()); }

    bool looks_like_text() const
    {
        TextScanner scanner(text().substr(0, 1000));
        if (!same_but_for_case(scanner.word(), "solid")) return false;
        return file_->text().substr(0, 1000).find('\0') == std::string_view::npos;
    }

    void add_corner(const std::array<float, 3>& point)
    {
        const auto [found, is_new] = numbers_.try_emplace(point, static_cast<std::int32_t>(numbers_.size()));
        if (is_new) coordinates_.insert(coordinates_.end(), point.begin(), point.end());
        cells_.indices.push_back(found->second);
    }

    void end_triangle() { cells_.offsets.push_back(std::ssize(cells_.indices)); }

    void read_binary(std::uint64_t num_triangles)
    {
        if (num_triangles > std::numeric_limits<std::int32_t>::max() / 3)
            fail(fmt::format("has {} triangles, at most 715827882 can be read", num_triangles));
        numbers_.reserve(num_triangles);
        cells_.indices.reserve(3 * num_triangles);
        const std::byte* at = file_->bytes().data() + header_size;
        for (std::uint64_t i = 0; i < num_triangles; ++i, at += triangle_size) {
            std::array<std::array<float, 3>, 3> corners;
            std::memcpy(corners.data(), at + 12, sizeof corners);
            for (const auto& corner : corners) add_corner(corner);
            end_triangle();
        }
    }

    // solid NAME { facet normal X Y Z  outer loop  vertex X Y Z (3 times)  endloop  endfacet } endsolid NAME
    void read_text()
    {
        TextScanner scanner(text());
        while (!scanner.at_end()) {
            expect(scanner, "solid");
            std::string name(scanner.line());
            name.erase(0, name.find_first_not_of(" \t"));
            name.erase(name.find_last_not_of(" \t") + 1);
            read_solid(scanner);
            solid_names_.push_back(std::move(name));
        }
    }

    void read_solid(TextScanner& scanner)
    {
        const auto solid = static_cast<std::int32_t>(solid_names_.size());
        for (;;) {
            const std::string_view word = next_word(scanner);
            if (is(word, "endsolid")) {
                scanner.line();
                return;
            }
            if (is(word, "color")) {  // colour of the solid, in files of some programs
                scanner.line();
                continue;
            }
            if (!is(word, "facet")) fail_expected("facet' or 'endsolid", word);
            if (!scanner.at_line_end()) {  // some facets have no normal
                expect(scanner, "normal");
                for (int i = 0; i < 3; ++i) next_word(scanner);
            }
            expect(scanner, "outer");
            expect(scanner, "loop");
            for (int corner = 0; corner < 3; ++corner) {
                expect(scanner, "vertex");
                std::array<float, 3> point{};
                for (float& value : point) {
                    const std::string_view number = next_word(scanner);
                    const auto parsed = parse_number<float>(number);
                    if (!parsed) fail_expected("a number", number);
                    value = *parsed;
                }
                add_corner(point);
            }
            expect(scanner, "endloop");
            expect(scanner, "endfacet");
            end_triangle();
            solids_.push_back(solid);
        }
    }

    std::string_view next_word(TextScanner& scanner) const
    {
        const std::string_view word = scanner.word();
        if (word.empty())
            fail(fmt::format("ends in triangle {} before 'endsolid'. It is truncated", cells_.num_rows()));
        return word;
    }

    // Some programs write keywords in capitals.
    static bool is(std::string_view word, std::string_view keyword)
    {
        return word == keyword || same_but_for_case(word, keyword);
    }

    void expect(TextScanner& scanner, std::string_view expected) const
    {
        const std::string_view word = next_word(scanner);
        if (!is(word, expected)) fail_expected(expected, word);
    }

    [[noreturn]] void fail_expected(std::string_view expected, std::string_view found) const
    {
        fail(fmt::format("is no valid STL file: expected '{}' in triangle {}, found '{}'", expected, cells_.num_rows(),
                         found.substr(0, 40)));
    }

    std::string where_;
    std::shared_ptr<const MappedFile> file_;
    std::unordered_map<std::array<float, 3>, std::int32_t, PointHash> numbers_;
    std::vector<float> coordinates_;
    Csr cells_;
    std::vector<std::int32_t> solids_;
    std::vector<std::string> solid_names_;
};

}  // namespace

Mesh read_stl(const std::filesystem::path& path, const ReadOptions& options)
{
    return StlReader(path, options).finish();
}

}  // namespace meshard
