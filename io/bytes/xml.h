// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshard {

/// White space of XML.
inline constexpr std::string_view kXmlBlanks = " \t\r\n";

/// One element of an XML document, with what VTK's formats need.
struct XmlElement {
    std::string name;
    std::vector<std::pair<std::string, std::string>> attributes;  ///< entities resolved
    std::vector<XmlElement> children;
    /// Text without comments and instructions, with CDATA. Up to 64 KiB entities are resolved and the text is UTF-8;
    /// longer texts are numbers, which need neither.
    std::string_view text;
    std::shared_ptr<const std::string> own_text;  ///< memory of `text` if it is not a part of the document

    const std::string* attribute(std::string_view name) const;  ///< null if absent
    const XmlElement* child(std::string_view name) const;       ///< the first of that name, null if absent
};

/// Parses `document` and returns its root element. The content of an element `AppendedData` is not parsed but taken as
/// text up to that element's last end tag, because it may be binary. Attributes are converted to UTF-8 from the
/// encoding that the document declares; if it declares none or UTF-8 and they are not, they are read as Latin-1, and
/// `warnings` gets a sentence.
/// @throws IoError, with a message that begins with `where`, if the document is not well-formed, ends before its root
/// is closed, or is in an unknown encoding.
XmlElement parse_xml(std::string_view document, const std::string& where, std::vector<std::string>& warnings);

/// `text` with the characters that XML reserves replaced by entities, for use in an attribute.
std::string xml_escaped(std::string_view text);

}  // namespace meshard
