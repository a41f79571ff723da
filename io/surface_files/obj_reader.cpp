// SPDX-License-Identifier: Apache-2.0
#include "io/surface_files/obj_reader.h"

#include "io/bytes/ascii_numbers.h"
#include "io/bytes/mapped_file.h"
#include "io/bytes/text_encoding.h"
#include "io/vtk/vtk_xml_reader.h"
#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace meshard {

namespace {

class ObjReader {
public:
    explicit ObjReader(const std::filesystem::path& path)
        : where_("read_mesh: " + path.string()), file_(MappedFile::open(path, "read_mesh"))
    {
    }

    Mesh read()
    {
        TextScanner lines(without_byte_order_mark(file_->text()));
        while (!lines.at_end()) {
            ++line_;
            std::string text(lines.line());
            // Continued on the next line, if it does not end with a comment.
            while (text.ends_with('\\') && comment_in(text) == std::string::npos && !lines.at_end()) {
                text.back() = ' ';
                text += lines.line();
            }
            read_line(std::string_view(text).substr(0, comment_in(text)));
        }
        if (coordinates_.empty()) fail("has no points ('v x y z'): it is empty, or no .obj file");
        return finish();
    }

private:
    [[noreturn]] void fail(const std::string& what) const { throw IoError("{} {}.", where_, what); }

    [[noreturn]] void fail_line(const std::string& what) const
    {
        fail(fmt::format("is no valid .obj file: statement {} {}", line_, what));
    }

    /// Where a comment begins: at a # that is not within a word.
    static std::size_t comment_in(std::string_view text)
    {
        auto at = text.find('#');
        while (at != std::string_view::npos && at > 0 && text[at - 1] != ' ' && text[at - 1] != '\t')
            at = text.find('#', at + 1);
        return at;
    }

    void read_line(std::string_view text)
    {
        TextScanner scanner(text);
        const std::string_view keyword = scanner.word();
        if (keyword == "v")
            read_point(scanner);
        else if (keyword == "f")
            read_cell(scanner, 2, 3);
        else if (keyword == "l")
            read_cell(scanner, 1, 2);
        else if (keyword == "p")
            read_cell(scanner, 0, 1);
        else if (keyword == "g" || keyword == "o") {
            std::string name(scanner.line());
            name.erase(0, name.find_first_not_of(" \t"));
            name.erase(name.find_last_not_of(" \t\r") + 1);
            const auto [known, is_new] = group_numbers_.emplace(name, static_cast<std::int32_t>(group_names_.size()));
            group_ = known->second;
            if (is_new) group_names_.push_back(std::move(name));
        } else if (!keyword.empty() && std::ranges::any_of(keyword, [](char c) { return c < ' ' || c > '~'; })) {
            fail_line("begins with bytes that are no text");
        }
    }

    void read_point(TextScanner& scanner)
    {
        for (int i = 0; i < 3; ++i) {
            const std::string_view word = scanner.word();
            const auto value = parse_number<double>(word);
            if (!value)
                fail_line("is a point with '" + std::string(word.substr(0, 40)) + "', three numbers are expected");
            coordinates_.push_back(*value);
        }
    }

    // Points are numbered from 1, or from -1 backwards from the last one; `1/2/3` also has texture coordinate and
    // normal.
    void read_cell(TextScanner& scanner, int group, std::size_t least)
    {
        const auto num_points = static_cast<std::int64_t>(coordinates_.size() / 3);
        std::size_t count = 0;
        while (!scanner.at_end()) {
            const std::string_view word = scanner.word();
            const auto number = parse_number<std::int64_t>(word.substr(0, word.find('/')));
            const std::int64_t point = !number ? -1 : *number < 0 ? num_points + *number : *number - 1;
            if (point < 0 || point > std::numeric_limits<std::int32_t>::max())
                fail_line(fmt::format("uses the point '{}', expected 1 to {}", word.substr(0, 40), num_points));
            last_used_ = std::max(last_used_, point);
            cells_.indices.push_back(static_cast<std::int32_t>(point));
            ++count;
        }
        if (count < least) fail_line(fmt::format("has {} points, expected {} or more", count, least));
        cells_.offsets.push_back(cells_.num_entries());
        types_.push_back(polydata_cell_type(group, static_cast<std::int64_t>(count)));
        if (group_names_.empty()) {
            group_names_.emplace_back("default");  // name of the group before the first named one
            group_numbers_.emplace("default", 0);
            group_ = 0;
        }
        groups_.push_back(group_);
    }

    Mesh finish()
    {
        const auto num_points = static_cast<std::int64_t>(coordinates_.size() / 3);
        if (last_used_ >= num_points)
            fail(fmt::format("uses the point {}, but has only {}. It is truncated or damaged", last_used_ + 1,
                             num_points));
        Mesh mesh;
        mesh.kind = MeshKind::Surface;
        mesh.points = DataArray::from("Points", std::move(coordinates_), 3);
        mesh.cells = std::move(cells_);
        mesh.cell_types = std::move(types_);
        if (group_names_.size() > 1) {
            mesh.cell_data.push_back(DataArray::from("GroupId", std::move(groups_)));
            mesh.field_data.push_back(DataArray::from_strings("GroupName", std::move(group_names_)));
        }
        const auto group = [&](std::int32_t cell) { return polydata_group(mesh.cell_types[cell]); };
        std::vector<std::int32_t> cells(mesh.num_cells()), points(static_cast<std::size_t>(num_points));
        std::iota(cells.begin(), cells.end(), 0);
        if (std::ranges::is_sorted(cells, {}, group)) return mesh;
        std::ranges::stable_sort(cells, {}, group);
        std::iota(points.begin(), points.end(), 0);
        return extract_mesh(mesh, cells, points);
    }

    std::string where_;
    std::shared_ptr<const MappedFile> file_;
    std::vector<double> coordinates_;
    Csr cells_;
    std::vector<std::uint8_t> types_;
    std::vector<std::int32_t> groups_;
    std::vector<std::string> group_names_;
    std::unordered_map<std::string, std::int32_t> group_numbers_;  // place of each name
    std::int32_t group_ = 0;
    std::int64_t line_ = 0, last_used_ = -1;
};

}  // namespace

Mesh read_obj(const std::filesystem::path& path)
{
    return ObjReader(path).read();
}

}  // namespace meshard
