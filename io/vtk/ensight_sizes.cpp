// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/ensight_sizes.h"

#include "io/bytes/ascii_numbers.h"
#include "io/bytes/mapped_file.h"
#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <string_view>

namespace meshard {

namespace {

constexpr std::string_view kBlanks = " \t\r\n\v\f", kBegin = "BEGIN TIME STEP", kEnd = "END TIME STEP";

std::string_view word(std::string_view line, int index)
{
    TextScanner words(line);
    while (index-- > 0) words.word();
    return words.word();
}

/// The line without the blanks before its first word.
std::string_view content(std::string_view line)
{
    while (!line.empty() && kBlanks.find(line.front()) != kBlanks.npos) line.remove_prefix(1);
    return line;
}

bool begins_number(std::string_view line)
{
    const auto text = content(line);
    if (text.empty()) return false;
    return (text[0] >= '+' && text[0] <= '9' && text[0] != ',' && text[0] != '/') ||
           same_but_for_case(text.substr(0, 3), "nan") || same_but_for_case(text.substr(0, 3), "inf");
}

std::string printable(std::string_view line)
{
    std::string text(line.substr(0, std::min<std::size_t>(line.find_last_not_of(kBlanks) + 1, 40)));
    std::ranges::replace_if(text, [](unsigned char c) { return c < 32 || c > 126; }, '?');
    return "'" + text + "'";
}

}  // namespace

/// A place in a file of lines and numbers. A text has each number on a line of its own, and its lines that are blank or
/// begin with '#' do not count. Else a line has 80 characters and a number 4 bytes, and Fortran writes 4 bytes before
/// and behind each record.
class EnSightSizes::Cursor {
public:
    Cursor(const std::filesystem::path& path, bool is_binary, std::optional<bool>& big_endian)
        : path_(path.string()), file_(MappedFile::open(path, "read_mesh")), text_(file_->text()), is_binary_(is_binary),
          big_endian_(big_endian)
    {
        for (const bool big : {false, true}) {
            const std::string_view length = big ? std::string_view("\0\0\0\x50", 4) : std::string_view("\x50\0\0\0", 4);
            if (!is_binary || big_endian == !big || !text_.starts_with(length) || text_.find(length, 84) != 84)
                continue;
            around_record_ = 4;
            big_endian = big;
        }
    }

    bool at_end() const
    {
        return at_ == text_.size() || (!is_binary_ && text_.find_first_not_of(kBlanks, at_) == text_.npos);
    }

    /// The next line, blank ones and comments included.
    std::string_view any_line()
    {
        place_ = at_;
        const auto begin = is_binary_ ? skip(80) : at_;
        if (is_binary_) return text_.substr(begin, std::min<std::size_t>(text_.find('\0', begin) - begin, 80));
        const auto end = std::min(text_.find('\n', at_), text_.size());
        at_ = std::min(end + 1, text_.size());
        return text_.substr(begin, end - begin);
    }

    std::string_view line()
    {
        auto next = any_line();
        while (!is_binary_ && (next.starts_with('#') || content(next).empty()) && at_ < text_.size()) next = any_line();
        return next;
    }

    /// The line that comes next; empty at the end.
    std::string_view next()
    {
        const auto before = place_ = at_;
        const auto next = at_end() || (is_binary_ && text_.size() - at_ < 80) ? std::string_view() : line();
        at_ = before;
        return next;
    }

    bool next_is(std::string_view keyword) { return next().starts_with(keyword); }

    /// The next line, which announces numbers.
    std::string_view section()
    {
        if (at_end()) fail("more after " + section_, found());
        const auto next = line();
        section_ = printable(next);
        return next;
    }

    /// Numbers from 0, in a text `width` on each of `num_lines` lines.
    std::vector<std::int32_t> numbers(std::int64_t num_lines, int width = 1)
    {
        std::vector<std::int32_t> values;
        if (is_binary_) {
            const auto begin = skip_numbers(num_lines * width);
            values.resize(num_lines * width);
            std::memcpy(values.data(), text_.data() + begin, 4 * values.size());
            if (big_endian_.value_or(false) != (std::endian::native == std::endian::big))
                for (auto& value : values) value = static_cast<std::int32_t>(__builtin_bswap32(value));
        }
        for (std::int64_t i = 0; !is_binary_ && i < num_lines; ++i) {
            TextScanner words(line_of_numbers(i, num_lines));
            for (int k = 0; k < width; ++k) values.push_back(words.number<std::int32_t>().value_or(-1));
        }
        if (std::ranges::any_of(values, [](auto value) { return value < 0; }))
            fail("numbers from 0 to 2147483647 after " + section_, "others");
        return values;
    }

    std::int64_t count() { return numbers(1)[0]; }

    std::int64_t sum(std::int64_t num_lines)
    {
        const auto values = numbers(num_lines);
        return std::accumulate(values.begin(), values.end(), std::int64_t{0});
    }

    /// The number of a part, the first of which tells the order of bytes: VTK takes it for little-endian if it can be.
    std::int64_t part_number()
    {
        if (is_binary_ && !big_endian_) {
            const auto before = at_, begin = skip(4);
            big_endian_ = text_[begin + 2] != 0 || text_[begin + 3] != 0;
            at_ = before;
        }
        return count();
    }

    /// Skips numbers, in a text on `num_lines` lines.
    void record(std::int64_t num_lines, std::int64_t num_numbers)
    {
        if (is_binary_) skip_numbers(num_numbers);
        for (std::int64_t i = 0; !is_binary_ && i < num_lines; ++i) line_of_numbers(i, num_lines);
    }

    /// Refuses what VTK reads as if C had written it.
    void require_no_fortran(const std::string& what)
    {
        if (around_record_ > 0)
            fail("no " + what + ", which VTK misreads where Fortran wrote them", "some",
                 "Export the case as C Binary.");
    }

    void records(int num_records, std::int64_t size)
    {
        while (num_records-- > 0) record(size, size);
    }

    /// Reads the step, and those before it where only their numbers tell how long they are.
    template <class Read>
    void step(int step, const Read& read)
    {
        if (step > 0) require_no_fortran("time steps in one file");
        for (int now = 1; now <= step; ++now) {
            while (!section().starts_with(kBegin)) {
            }
            if (now == step) break;
            if (is_binary_) read();
            while (!section().starts_with(kEnd)) {
            }
        }
        read();
        if (step > 0 ? !next_is(kEnd) : !at_end())
            fail(fmt::format("'part' or {} after {}", step > 0 ? kEnd : "the end of the file", section_), found());
    }

    std::string found() { return at_end() ? "the end of the file" : printable(next()); }

    [[noreturn]] void fail(const std::string& expected, const std::string& found,
                           std::string_view remedy = "The file is cut short, or not of one run with the case's other "
                                                     "files. Copy or export the whole case again.") const
    {
        const auto line = 1 + std::ranges::count(text_.substr(0, place_), '\n');
        throw IoError("read_mesh: {}, {} {}: expected {}, found {}. {}", path_, is_binary_ ? "byte" : "line",
                      is_binary_ ? place_ : line, expected, found, remedy);
    }

private:
    /// @return where the numbers begin
    std::size_t skip_numbers(std::int64_t count)
    {
        if (count > std::numeric_limits<std::int32_t>::max())
            fail("at most 2147483647 numbers after " + section_ + ", as VTK counts them", std::to_string(count));
        return count > 0 ? skip(4 * count) : at_;
    }

    /// @return where the bytes begin
    std::size_t skip(std::int64_t num_bytes)
    {
        place_ = at_;
        const auto num_left = static_cast<std::int64_t>(text_.size() - at_);
        if (num_bytes + 2 * around_record_ > num_left)
            fail(fmt::format("{} bytes after {}", num_bytes + 2 * around_record_, section_), std::to_string(num_left));
        at_ += static_cast<std::size_t>(num_bytes + 2 * around_record_);
        return at_ - static_cast<std::size_t>(num_bytes + around_record_);
    }

    /// A last line without an end may have lost digits.
    std::string_view line_of_numbers(std::int64_t i, std::int64_t num_lines)
    {
        const auto next = line();
        const bool has_end = text_[at_ - 1] == '\n';
        if (has_end && begins_number(next)) return next;
        at_ = place_;
        fail(fmt::format("{} lines of numbers after {}", num_lines, section_),
             fmt::format("{} before {}{}", i, found(),
                         has_end ? "" : ", whose last line has no end (if it is whole, add one)"));
    }

    std::string path_;
    std::shared_ptr<const MappedFile> file_;
    std::string_view text_;
    bool is_binary_;
    std::optional<bool>& big_endian_;
    std::int64_t around_record_ = 0;
    std::size_t at_ = 0, place_ = 0;  // where to read on; of what is looked at
    std::string section_ = "the beginning";
};

void EnSightSizes::check_geometry(const std::filesystem::path& path, int step)
{
    Cursor file(path, is_binary_, big_endian_);
    if (is_binary_) file.line();
    file.step(step, [&] {
        parts_.clear();
        step > 0 || is_binary_ ? file.any_line() : file.line();
        file.any_line();
        const auto has_ids = [&] {
            const auto mode = word(file.section(), 2);
            return mode.starts_with("given") || mode.starts_with("ignore");
        };
        const bool has_node_ids = has_ids(), has_element_ids = has_ids();
        if (file.next_is("extents")) {
            file.section();
            file.record(3, 6);
        }
        while (file.next_is("part")) {
            file.section();
            Part& part = parts_[file.part_number()] = {};
            file.line();
            if (file.next_is("block"))
                check_block(file, part);
            else
                while (!file.at_end() && !file.next_is("part") && !file.next_is(kEnd))
                    check_elements(file, part, has_node_ids, has_element_ids);
        }
    });
}

void EnSightSizes::check_block(Cursor& file, Part& part)
{
    const auto form = file.section();
    const auto kind = word(form, 1);
    const bool is_rectilinear = kind.starts_with("rectilinear"), is_uniform = kind.starts_with("uniform");
    const bool has_blanks = word(form, is_rectilinear || is_uniform ? 2 : 1).starts_with("iblanked");
    std::int64_t num_points = 1, num_cells = 1;
    const auto size = file.numbers(1, 3);
    for (const std::int64_t side : size) {
        if (side > 0 && num_points > std::numeric_limits<std::int32_t>::max() / side)
            file.fail("at most 2147483647 points, as VTK counts them",
                      fmt::format("{} x {} x {}", size[0], size[1], size[2]));
        num_points *= side;
        num_cells *= std::max<std::int64_t>(side - 1, 1);
    }
    part.num_points = num_points;
    part.num_cells = num_points > 0 ? num_cells : 0;
    if (is_rectilinear)
        for (const std::int64_t side : size) file.record(side, side);
    else
        file.records(is_uniform ? 2 : 3, is_uniform ? 3 : num_points);
    if (has_blanks) file.record(num_points, num_points);
    for (const auto& [ids, count] : {std::pair("node_ids", num_points), std::pair("element_ids", part.num_cells)})
        if (is_binary_ && file.next_is(ids)) {
            file.section();
            file.record(count, count);
        }
}

void EnSightSizes::check_elements(Cursor& file, Part& part, bool has_node_ids, bool has_element_ids)
{
    const auto type = word(file.section(), 0);
    const bool is_ghost = type.starts_with("g_");
    const auto shape = type.substr(is_ghost ? 2 : 0);
    const auto count = file.count();
    bool has_ids = has_element_ids;
    if (shape == "coordinates") {
        part.num_points = count;
        file.records(3, count);
        has_ids = has_node_ids;
    } else {
        if (!is_ghost) {
            part.num_cells += count;
            part.elements[std::string(type)] += count;
        }
        if (shape == "nsided" || shape == "nfaced") {
            if (has_ids) file.record(count, count);
            const auto num_polygons = shape == "nsided" ? count : file.sum(count);
            file.record(num_polygons, file.sum(num_polygons));
            return;
        }
        const auto digits = std::min(shape.find_first_of("0123456789"), shape.size());
        const auto num_nodes = shape == "point" ? 1 : parse_number<int>(shape.substr(digits)).value_or(0);
        if (num_nodes < 1 || num_nodes > 20) file.fail("the type of elements", printable(type));
        file.record(count, count * num_nodes);
    }
    // In a text VTK finds numbers of points and elements that are not announced, too.
    if (has_ids || (!is_binary_ && begins_number(file.next()))) file.record(count, count);
}

void EnSightSizes::check_variable(const std::filesystem::path& path, int step, bool per_element, int num_components)
{
    Cursor file(path, is_binary_, big_endian_);
    const auto values = [&](std::string_view section, std::int64_t count) {
        const auto form = word(section, 1);
        if (form == "undef") file.record(1, 1);
        if (form == "partial") {
            count = file.count();
            file.record(count, count);
        }
        file.records(num_components, count);
    };
    std::set<std::int64_t> seen;
    file.step(step, [&] {
        seen.clear();
        file.section();
        while (file.next_is("part")) {
            file.section();
            const auto number = file.part_number();
            const auto found = parts_.find(number);
            if (found == parts_.end()) file.fail("a part of the geometry", fmt::format("part {}", number));
            seen.insert(number);
            const Part& part = found->second;
            const auto ends = [&] { return file.at_end() || file.next_is("part") || file.next_is(kEnd); };
            const auto count = per_element ? part.num_cells : part.num_points;
            if (count == 0) {
                if (!ends()) file.section();
                continue;
            }
            if (!per_element || part.elements.empty() || file.next_is("block")) {
                if (!file.next_is("coordinates") && !file.next_is("block"))
                    file.fail(fmt::format("values of part {}", number), file.found());
                values(file.section(), count);
                continue;
            }
            auto missing = part.elements;
            while (!ends()) {
                const auto section = file.section();
                const auto elements = part.elements.find(word(section, 0));
                if (elements == part.elements.end())
                    file.fail(fmt::format("a type of part {}'s elements", number), printable(section));
                values(section, elements->second);
                missing.erase(elements->first);
            }
            for (const auto& [type, num] : missing)
                if (num > 0) file.fail(fmt::format("values of part {}'s {} {}", number, num, type), file.found());
        }
    });
    if (seen.empty() && !parts_.empty()) file.fail("values of some part", "none");
    for (const auto& [number, part] : parts_)
        if ((per_element ? part.num_cells : part.num_points) > 0 && !seen.contains(number))
            warnings_.push_back(fmt::format("{} has no values of part {}: NaN", path.string(), number));
}

void EnSightSizes::check_measured_points(const std::filesystem::path& path, int step)
{
    Cursor file(path, is_binary_, big_endian_);
    file.require_no_fortran("measured points");
    if (is_binary_) file.line();
    file.step(step, [&] {
        file.any_line();
        file.section();
        num_measured_ = file.count();
        file.record(num_measured_, num_measured_);
        if (is_binary_) file.record(0, 3 * num_measured_);
    });
}

void EnSightSizes::check_measured_variable(const std::filesystem::path& path, int step, int num_components)
{
    Cursor file(path, is_binary_, big_endian_);
    const auto num_values = num_measured_ * num_components;
    constexpr std::int64_t values_in_line = 6;
    if (is_binary_ && step > 1)
        file.fail("one step, since VTK misreads more of measured values in one file", "more",
                  "Export a file for each.");
    file.step(step, [&] {
        file.section();
        file.record((num_values + values_in_line - 1) / values_in_line, num_values);
    });
}

}  // namespace meshard
