// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/xml.h"

#include "partition/error.h"

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
    XmlParser(std::string_view document, const std::string& where) : document_(document), where_(where) {}

    XmlElement parse_document()
    {
        skip_between_elements();
        if (!at("<")) fail("expected XML that begins with '<', found " + excerpt());
        XmlElement root = parse_element(0);
        skip_between_elements();
        if (at_ != document_.size()) fail("expected the end of the file after </" + root.name + ">, found " + excerpt());
        return root;
    }

private:
    [[noreturn]] void fail(const std::string& what) const { throw IoError(where_ + ": " + what + "."); }

    [[noreturn]] void fail_truncated(const std::string& inside) const
    {
        fail("the file ends inside " + inside + " after " + std::to_string(document_.size()) + " bytes: it is truncated. Copy or write it again");
    }

    std::string excerpt() const
    {
        std::string text;
        for (const char c : document_.substr(std::min(at_, document_.size()), 20)) text += std::isprint(static_cast<unsigned char>(c)) != 0 ? c : '?';
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

    void skip_between_elements()
    {
        if (at("\xEF\xBB\xBF")) at_ += 3;
        for (;;) {
            skip_blanks();
            if (at("<?"))
                skip_past("?>", "<? ... ?>");
            else if (at("<!--"))
                skip_past("-->", "a comment");
            else if (at("<!"))
                skip_past(">", "<! ... >");
            else
                return;
        }
    }

    std::string parse_name()
    {
        const std::size_t begin = at_;
        while (at_ < document_.size() &&
               (std::isalnum(static_cast<unsigned char>(document_[at_])) != 0 || std::string_view("_-.:").find(document_[at_]) != std::string_view::npos))
            ++at_;
        if (at_ == document_.size()) fail_truncated("a tag");
        if (at_ == begin) fail("expected a name, found " + excerpt() + " at byte " + std::to_string(at_));
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
                const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, hex ? 16 : 10);
                if (error != std::errc{} || stop != digits.data() + digits.size() || code > 0x10FFFF) fail("unknown entity '&" + std::string(entity) + ";'");
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
            if (quote != '"' && quote != '\'') fail("the value of attribute '" + name + "' of <" + element.name + "> is not quoted");
            const std::size_t begin = ++at_;
            skip_past(std::string_view(&quote, 1), "the tag <" + element.name + ">");
            if (element.attribute(name) != nullptr) fail("<" + element.name + "> has two attributes '" + name + "'");
            element.attributes.emplace_back(std::move(name), unescaped(document_.substr(begin, at_ - 1 - begin)));
        }
    }

    XmlElement parse_element(int depth)
    {
        if (depth > max_depth) fail("elements are nested more than " + std::to_string(max_depth) + " deep");
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

    void parse_content(XmlElement& element, int depth)
    {
        for (;;) {
            const std::size_t begin = at_;
            at_ = document_.find('<', at_);
            if (at_ == std::string_view::npos) fail_truncated("<" + element.name + ">");
            const std::string_view run = document_.substr(begin, at_ - begin);
            if (run.find_first_not_of(kXmlBlanks) != std::string_view::npos) element.text = run;

            if (at("</")) {
                at_ += 2;
                const std::string name = parse_name();
                skip_blanks();
                if (at_ == document_.size()) fail_truncated("<" + element.name + ">");
                if (name != element.name || !at(">")) fail("expected </" + element.name + ">, found </" + name + "> at byte " + std::to_string(at_));
                ++at_;
                return;
            }
            if (at("<!--"))
                skip_past("-->", "a comment");
            else if (at("<![CDATA["))
                skip_past("]]>", "<![CDATA[");
            else if (at("<?"))
                skip_past("?>", "<? ... ?>");
            else
                element.children.push_back(parse_element(depth + 1));
        }
    }

    std::string_view document_;
    const std::string& where_;
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

XmlElement parse_xml(std::string_view document, const std::string& where)
{
    return XmlParser(document, where).parse_document();
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
