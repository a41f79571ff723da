// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/xml_outline.h"

#include "io/bytes/ascii_numbers.h"
#include "io/bytes/xml.h"
#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>

namespace meshard {
namespace {

constexpr std::string_view kPlace = "meshard:place ";
constexpr std::uint64_t kLongest = 4096;  // characters of a text that an outline has itself
constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;

/// Returns whether a tag that ends in '>' ends there: not inside an attribute, a comment or an instruction.
bool is_whole_tag(std::string_view tag)
{
    if (tag.starts_with("<!--")) return tag.size() > 6 && tag.ends_with("-->");
    if (tag.starts_with("<![CDATA[")) return tag.ends_with("]]>");
    if (tag.starts_with("<?")) return tag.ends_with("?>");
    char quote = 0;
    for (const char c : tag)
        if (quote != 0 ? c == quote : c == '"' || c == '\'') quote = quote != 0 ? '\0' : c;
    return quote == 0;
}

/// Goes through the characters of a file without holding them.
class Scanner {
public:
    explicit Scanner(const RandomAccessFile& file) : file_(file) {}

    std::uint64_t at() const { return begin_ + next_; }

    /// Appends what comes before the next `stop` to `text`, as much of it as fits there, and goes there. Returns false
    /// at the end of the file.
    bool go_to(char stop, std::string& text)
    {
        for (;;) {
            if (next_ == piece_.size()) {
                begin_ += piece_.size();
                piece_ = file_.text(begin_, kPiece);
                next_ = 0;
                if (piece_.empty()) return false;
            }
            const auto found = piece_.find(stop, next_);
            const auto end = found == std::string::npos ? piece_.size() : found;
            const auto room = kLongest + 1 - std::min<std::uint64_t>(text.size(), kLongest + 1);
            text.append(piece_, next_, std::min<std::uint64_t>(end - next_, room));
            next_ = end;
            if (found != std::string::npos) return true;
        }
    }

    void pass() { ++next_; }

private:
    const RandomAccessFile& file_;
    std::uint64_t begin_ = 0;
    std::string piece_;
    std::size_t next_ = 0;
};

}  // namespace

XmlOutline outline_of(const RandomAccessFile& file, const std::string& where)
{
    XmlOutline outline;
    auto& document = outline.document;
    Scanner scanner(file);
    for (;;) {
        const auto begin = scanner.at();
        std::string text;
        const bool has_tag = scanner.go_to('<', text);
        document += text.size() > kLongest ? fmt::format("{}{} {}", kPlace, begin, scanner.at() - begin) : text;
        if (!has_tag) return outline;
        std::string tag;
        do {
            if (!scanner.go_to('>', tag) || tag.size() > kLongest) return {document + tag, {}};
            scanner.pass();
            tag += '>';
        } while (!is_whole_tag(tag));
        document += tag;
        if (!tag.starts_with("<AppendedData")) continue;
        std::string blanks;
        const auto first = scanner.at();
        if (!scanner.go_to('_', blanks) || blanks.find_first_not_of(kXmlBlanks) != std::string::npos)
            return {document + blanks + "</AppendedData></VTKFile>", {}};
        scanner.pass();
        constexpr std::string_view kEndTag = "</AppendedData>";
        constexpr std::uint64_t kTail = 4096;
        const auto tail = std::max(first, file.size() - std::min(file.size(), kTail));
        const auto end = file.text(tail, kTail).rfind(kEndTag);
        if (end == std::string::npos)
            throw IoError("{}: the file ends inside <AppendedData> after {} bytes: it is truncated. Copy or "
                          "write it again.",
                          where, file.size());
        document += "_</AppendedData></VTKFile>";
        outline.appended = {scanner.at(), tail + end - scanner.at()};
        return outline;
    }
}

std::optional<TextPlace> place_in(std::string_view text)
{
    if (!text.starts_with(kPlace)) return {};
    TextScanner scanner(text.substr(kPlace.size()));
    const auto begin = scanner.number<std::uint64_t>(), length = scanner.number<std::uint64_t>();
    if (!begin || !length) return {};
    return TextPlace{*begin, *length};
}

}  // namespace meshard
