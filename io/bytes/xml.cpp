// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/xml.h"

#include "io/bytes/text_encoding.h"
#include "partition/error.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>

namespace meshard {

namespace {

constexpr int max_depth = 64;

void append_utf8(std::string& text, std::uint32_t code)
{
    if (code < 0x80) {
        text += static_cast<char>(code);
    } else if (code < 0x800) {
        text += static_cast<char>(0xC0 | code >> 6);
        text += static_cast<char>(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        text += static_cast<char>(0xE0 | code >> 12);
        text += static_cast<char>(0x80 | (code >> 6 & 0x3F));
        text += static_cast<char>(0x80 | (code & 0x3F));
    } else {
        text += static_cast<char>(0xF0 | code >> 18);
        text += static_cast<char>(0x80 | (code >> 12 & 0x3F));
        text += static_cast<char>(0x80 | (code >> 6 & 0x3F));
        text += static_cast<char>(0x80 | (code & 0x3F));
    }
}

class XmlParser {
public:
    XmlParser(std::string_view document, const std::string& where, std::vector<std::string>& warnings)
        : document_(document), where_(where), warnings_(warnings)
    {
    }

    XmlElement parse_document()
    {
        if (at("\xEF\xBB\xBF")) at_ += 3;
        if (at("<?xml")) parse_declaration();
        skip_between_elements();
        if (!at("<")) fail("expected XML that begins with '<', found " + excerpt());
        XmlElement root = parse_element(0);
        skip_between_elements();
        if (at_ != document_.size())
            fail("expected the end of the file after </" + root.name + ">, found " + excerpt());
        return root;
    }

private:
    [[noreturn]] void fail(const std::string& what) const { throw IoError("{}: {}.", where_, what); }

    [[noreturn]] void fail_truncated(const std::string& inside) const
    {
        fail(fmt::format("the file ends inside {} after {} bytes: it is truncated. Copy or write it again", inside,
                         document_.size()));
    }

    std::string excerpt() const
    {
        std::string text;
        for (const char c : document_.substr(std::min(at_, document_.size()), 20))
            text += std::isprint(static_cast<unsigned char>(c)) != 0 ? c : '?';
        return text.empty() ? "nothing" : "'" + text + "'";
    }

    bool at(std::string_view text) const { return document_.substr(at_).starts_with(text); }

    void skip_blanks() { at_ = std::min(document_.find_first_not_of(kXmlBlanks, at_), document_.size()); }

    void skip_past(std::string_view end, const std::string& inside)
    {
        const std::size_t found = document_.find(end, at_);
        if (found == std::string_view::npos) fail_truncated(inside);
        at_ = found + end.size();
    }

    void skip_comment()
    {
        at_ += std::string_view("<!--").size();  // "<!-->" does not end the comment that it begins
        skip_past("-->", "a comment");
    }

    // A document type may have declarations in brackets, which may contain comments and quoted text with any character.
    void skip_document_type()
    {
        for (int depth = 0;;) {
            at_ = document_.find_first_of("<>[]\"'", at_);
            if (at_ == std::string_view::npos) fail_truncated("<! ... >");
            const char c = document_[at_];
            if (at("<!--")) {
                skip_comment();
                continue;
            }
            ++at_;
            if (c == '"' || c == '\'')
                skip_past(std::string_view(&c, 1), "<! ... >");
            else if (c == '<' || c == '[')
                ++depth;
            else if (--depth == 0 && c == '>')
                return;
        }
    }

    void skip_between_elements()
    {
        for (;;) {
            skip_blanks();
            if (at("<?"))
                skip_past("?>", "<? ... ?>");
            else if (at("<!--"))
                skip_comment();
            else if (at("<!"))
                skip_document_type();
            else
                return;
        }
    }

    // <?xml version="1.0" encoding="ISO-8859-1"?>
    void parse_declaration()
    {
        const std::size_t begin = at_;
        skip_past("?>", "<? ... ?>");
        const std::string_view declaration = document_.substr(begin, at_ - begin);
        constexpr std::string_view name = "encoding";
        std::size_t value = declaration.find(name);
        if (value == std::string_view::npos) return;
        value = declaration.find_first_of("\"'", value + name.size());
        if (value == std::string_view::npos) return;
        encoding_ = declaration.substr(value + 1, declaration.find(declaration[value], value + 1) - value - 1);
        // UTF-16 text has been converted before; otherwise it would not begin with the letters of a declaration.
        encoding_ = lower_case(encoding_);
        if (encoding_ == "utf8" || encoding_.starts_with("utf-16") || encoding_ == "us-ascii") encoding_ = "utf-8";
    }

    std::string to_utf8(std::string_view text)
    {
        if (std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; }))
            return std::string(text);
        if (auto converted = utf8_from(text, encoding_)) return *converted;
        if (encoding_ != "utf-8")
            fail("the name '" + utf8_from_latin1(text) + "' cannot be read: the file declares encoding=\"" + encoding_ +
                 "\", which is not known or not its own. Save it as UTF-8");
        if (!has_warned_)
            warnings_.push_back("its names are no UTF-8, e.g. '" + utf8_from_latin1(text) +
                                "'; they are read as Latin-1");
        has_warned_ = true;
        return utf8_from_latin1(text);
    }

    std::string parse_name()
    {
        const std::size_t begin = at_;
        while (at_ < document_.size() && (std::isalnum(static_cast<unsigned char>(document_[at_])) != 0 ||
                                          static_cast<unsigned char>(document_[at_]) >= 0x80 ||
                                          std::string_view("_-.:").find(document_[at_]) != std::string_view::npos))
            ++at_;
        if (at_ == document_.size()) fail_truncated("a tag");
        if (at_ == begin) fail(fmt::format("expected a name, found {} at byte {}", excerpt(), at_));
        return std::string(document_.substr(begin, at_ - begin));
    }

    std::string unescaped(std::string_view text) const
    {
        std::string result;
        for (std::size_t i = 0; i < text.size(); ++i) {
            const std::size_t end = text[i] == '&' ? text.find(';', i) : std::string_view::npos;
            if (end == std::string_view::npos) {
                result += text[i];
                continue;
            }
            const std::string_view entity = text.substr(i + 1, end - i - 1);
            if (entity == "lt")
                result += '<';
            else if (entity == "gt")
                result += '>';
            else if (entity == "amp")
                result += '&';
            else if (entity == "quot")
                result += '"';
            else if (entity == "apos")
                result += '\'';
            else if (entity.starts_with('#')) {
                const bool hex = entity.size() > 1 && entity[1] == 'x';
                const std::string_view digits = entity.substr(hex ? 2 : 1);
                std::uint32_t code = 0;
                const auto [stop, error] =
                    std::from_chars(digits.data(), digits.data() + digits.size(), code, hex ? 16 : 10);
                if (error != std::errc{} || stop != digits.data() + digits.size() || code > 0x10FFFF)
                    fail("unknown entity '&" + std::string(entity) + ";'");
                append_utf8(result, code);
            } else {
                fail("unknown entity '&" + std::string(entity) + ";'");
            }
            i = end;
        }
        return result;
    }

    void parse_attributes(XmlElement& element)
    {
        for (;;) {
            skip_blanks();
            if (at_ == document_.size()) fail_truncated("the tag <" + element.name + ">");
            if (at(">") || at("/>")) return;
            std::string name = parse_name();
            skip_blanks();
            if (at_ == document_.size()) fail_truncated("the tag <" + element.name + ">");
            if (!at("=")) fail("attribute '" + name + "' of <" + element.name + "> has no value");
            ++at_;
            skip_blanks();
            if (at_ == document_.size()) fail_truncated("the tag <" + element.name + ">");
            const char quote = document_[at_];
            if (quote != '"' && quote != '\'')
                fail("the value of attribute '" + name + "' of <" + element.name + "> is not quoted");
            const std::size_t begin = ++at_;
            skip_past(std::string_view(&quote, 1), "the tag <" + element.name + ">");
            if (element.attribute(name) != nullptr) fail("<" + element.name + "> has two attributes '" + name + "'");
            element.attributes.emplace_back(std::move(name),
                                            unescaped(to_utf8(document_.substr(begin, at_ - 1 - begin))));
        }
    }

    XmlElement parse_element(int depth)
    {
        if (depth > max_depth) fail(fmt::format("elements are nested more than {} deep", max_depth));
        ++at_;
        XmlElement element;
        element.name = parse_name();
        parse_attributes(element);
        if (at("/>")) {
            at_ += 2;
            return element;
        }
        ++at_;
        if (element.name == "AppendedData") {
            const std::size_t end = document_.rfind("</AppendedData>");
            if (end == std::string_view::npos || end < at_) fail_truncated("<AppendedData>");
            element.text = document_.substr(at_, end - at_);
            at_ = end + std::string_view("</AppendedData>").size();
            return element;
        }
        parse_content(element, depth);
        return element;
    }

    struct Run {
        std::string_view text;
        bool is_literal = false;  // CDATA, in which '&' begins no entity
    };

    // Most elements have a single run of text that is not blank; then a view is sufficient.
    void set_text(XmlElement& element, const std::vector<Run>& runs)
    {
        constexpr std::size_t longest = std::size_t{1} << 16;
        const auto is_blank = [](const Run& run) {
            return run.text.find_first_not_of(kXmlBlanks) == std::string_view::npos;
        };
        const auto num_texts = runs.size() - static_cast<std::size_t>(std::ranges::count_if(runs, is_blank));
        if (num_texts == 0) return;
        const auto is_plain = [](char c) { return c != '&' && static_cast<unsigned char>(c) < 0x80; };
        if (num_texts == 1) {
            element.text = std::ranges::find_if_not(runs, is_blank)->text;
            if (element.text.size() > longest || std::ranges::all_of(element.text, is_plain)) return;
        }
        auto joined = std::make_shared<std::string>();
        for (const Run& run : runs) {
            if (run.text.size() > longest)
                *joined += run.text;
            else
                *joined += run.is_literal ? to_utf8(run.text) : unescaped(to_utf8(run.text));
        }
        element.text = *joined;
        element.own_text = std::move(joined);
    }

    void parse_content(XmlElement& element, int depth)
    {
        std::vector<Run> runs;
        for (;;) {
            const std::size_t begin = at_;
            at_ = document_.find('<', at_);
            if (at_ == std::string_view::npos) fail_truncated("<" + element.name + ">");
            if (at_ > begin) runs.push_back({document_.substr(begin, at_ - begin)});

            if (at("</")) {
                at_ += 2;
                const std::string name = parse_name();
                skip_blanks();
                if (at_ == document_.size()) fail_truncated("<" + element.name + ">");
                if (name != element.name || !at(">"))
                    fail(fmt::format("expected </{}>, found </{}> at byte {}", element.name, name, at_));
                ++at_;
                set_text(element, runs);
                return;
            }
            constexpr std::string_view literal = "<![CDATA[";
            if (at("<!--")) {
                skip_comment();
            } else if (at(literal)) {
                const std::size_t first = at_ + literal.size();
                skip_past("]]>", std::string(literal));
                runs.push_back({document_.substr(first, at_ - 3 - first), true});
            } else if (at("<?")) {
                skip_past("?>", "<? ... ?>");
            } else {
                element.children.push_back(parse_element(depth + 1));
            }
        }
    }

    std::string_view document_;
    const std::string& where_;
    std::vector<std::string>& warnings_;
    std::string encoding_ = "utf-8";
    bool has_warned_ = false;
    std::size_t at_ = 0;
};

}  // namespace

const std::string* XmlElement::attribute(std::string_view name) const
{
    for (const auto& [key, value] : attributes)
        if (key == name) return &value;
    return nullptr;
}

const XmlElement* XmlElement::child(std::string_view name) const
{
    for (const XmlElement& element : children)
        if (element.name == name) return &element;
    return nullptr;
}

XmlElement parse_xml(std::string_view document, const std::string& where, std::vector<std::string>& warnings)
{
    return XmlParser(document, where, warnings).parse_document();
}

std::string xml_escaped(std::string_view text)
{
    std::string result;
    for (const char c : text) {
        switch (c) {
        case '<':
            result += "&lt;";
            break;
        case '>':
            result += "&gt;";
            break;
        case '&':
            result += "&amp;";
            break;
        case '"':
            result += "&quot;";
            break;
        case '\n':
            result += "&#10;";
            break;
        case '\r':
            result += "&#13;";
            break;
        case '\t':
            result += "&#9;";
            break;
        default:
            result += c;
        }
    }
    return result;
}

}  // namespace meshard
