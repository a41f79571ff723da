// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshard {

/// White space of XML.
inline constexpr std::string_view kXmlBlanks = " \t\r\n";

/// One element of an XML document, as far as VTK's formats need it.
struct XmlElement {
    std::string name;
    std::vector<std::pair<std::string, std::string>> attributes;  ///< entities resolved
    std::vector<XmlElement> children;
    std::string_view text;  ///< the last run of text that is not blank, as it is in the file

    const std::string* attribute(std::string_view name) const;  ///< null if absent
    const XmlElement* child(std::string_view name) const;       ///< the first of that name, null if absent
};

/// The root element of `document`. What is inside an element `AppendedData` is not parsed but taken as text up to that
/// element's last end tag, because it may be binary. @throws IoError, beginning with `where`, if the document is not
/// well-formed or ends before its root is closed.
XmlElement parse_xml(std::string_view document, const std::string& where);

/// `text` with the characters that XML reserves replaced by entities, for use in an attribute.
std::string xml_escaped(std::string_view text);

}  // namespace meshard
