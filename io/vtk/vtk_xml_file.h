// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/mapped_file.h"
#include "io/bytes/xml.h"
#include "io/vtk/encoded_array.h"
#include "partition/mesh/data_array.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// A VTK XML file: its elements, and the values of its arrays in any encoding (ascii, base64 or appended; little or big
/// endian; uncompressed, zlib, lz4 or lzma).
///
/// Everything is checked before it is used: that the file is complete, that blocks are inside it, and that they have as
/// many values as the elements declare. Arrays that need no decoding are views into the file, others are decoded.
class VtkXmlFile {
public:
    /// @throws IoError if the file is missing, truncated, or no VTK XML file.
    explicit VtkXmlFile(const std::filesystem::path& path);
    /// For a file that is mapped already.
    VtkXmlFile(const std::filesystem::path& path, std::shared_ptr<const MappedFile> file);
    /// For a file of which only the elements are at hand (`outline_of`): arrays can be declared, and not be read.
    VtkXmlFile(const std::filesystem::path& path, std::string document);

    const XmlElement& root() const { return root_; }
    const std::string& type() const { return type_; }    ///< `UnstructuredGrid`, `PPolyData`, ...
    const std::string& where() const { return where_; }  ///< beginning of every message: `read_mesh: car.vtp`
    bool is_at_least(int major, int minor) const;        ///< whether the file's version is that or later
    bool has_known_compressor() const;                   ///< none, zlib, or lz4 and lzma where this build has them
    const std::string& compressor() const { return compressor_; }

    /// The only child of that name, e.g. <Points>. @throws IoError if there is none.
    const XmlElement& require_child(const XmlElement& parent, std::string_view name) const;

    /// A count, e.g. NumberOfPoints. @throws IoError if it is missing, negative or no number.
    std::int64_t read_count(const XmlElement& element, std::string_view attribute) const;

    /// How arrays are written that are not text. @throws IoError for a compressor that this build has not
    const ArrayEncoding& encoding() const;
    /// Where an appended array begins among the appended data. @throws IoError if it does not say it, or begins behind
    /// their `length`
    std::uint64_t appended_offset(const XmlElement& element, const std::string& name, std::uint64_t length) const;
    bool appends_base64() const { return appended_is_base64_; }  ///< whether appended data are in base64, or else raw

    /// A <DataArray> or <Array> without rows: name, type, number and names of components, unit. @throws IoError as
    /// `read_array`
    DataArray declared_array(const XmlElement& element) const;

    /// The values of a <DataArray> or <Array>; of type Bit as UInt8. @throws IoError if it has not `num_rows` rows (-1:
    /// as many as it has).
    DataArray read_array(const XmlElement& element, std::int64_t num_rows) const;

    /// The times for which the file has arrays (`TimeValues` of the element `type()`); most files have none.
    const std::vector<double>& times() const { return times_; }
    std::size_t time_step() const { return time_step_; }  ///< index in `times()`, 0 before `choose_time`
    void choose_time(double wanted);                      ///< @throws IoError if the file has times but not this one

    /// Returns whether an element belongs to `time_step()`, or to no step (attribute `TimeStep`).
    bool is_of_time_step(const XmlElement& element) const;

    /// A sentence without its full stop for each part of the file that is read in another way than it is written.
    const std::vector<std::string>& warnings() const { return warnings_; }

    [[noreturn]] void fail(const std::string& what) const;

private:
    // Bytes of an array after decoding, in the machine's order.
    struct Payload {
        const std::byte* data = nullptr;
        std::size_t size = 0;
        std::shared_ptr<const void> owner;
    };

    void parse(std::string_view text);
    Payload decode(const XmlElement& element, const std::string& name) const;
    Payload parse_ascii(std::string_view text, ScalarType type, const std::string& name) const;
    Payload parse_ascii_texts(std::string_view text, const std::string& name) const;
    Payload read_bits(const XmlElement& element, std::int64_t num_values, const std::string& name) const;
    DataArray split_strings(const Payload& payload, const std::string& name, std::int64_t num_rows,
                            std::int64_t num_components) const;
    void swap_bytes(Payload& payload, std::size_t width) const;

    std::string where_;
    std::shared_ptr<const MappedFile> file_;
    std::shared_ptr<const std::string> converted_;  // the document as UTF-8 if the file is UTF-16
    XmlElement root_;
    std::vector<std::string> warnings_;
    std::vector<double> times_;
    std::size_t time_step_ = 0;
    std::string type_;
    std::string compressor_;
    ArrayEncoding encoding_;
    bool appended_is_base64_ = false;
    std::string_view appended_;
};

}  // namespace meshard
