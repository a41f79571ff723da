// SPDX-License-Identifier: Apache-2.0
#include "io/shards/partition_dump.h"

#include <charconv>

#include "io/bytes/atomic_file.h"
#include "partition/error.h"
#include "partition/nearest_name.h"

namespace meshard {

namespace {

/// Gathers text and writes it in large runs.
class TextOutput {
public:
    explicit TextOutput(const std::filesystem::path& path) : file_(path) {}

    void number(std::int64_t value, char after)
    {
        char digits[24];
        char* const end = std::to_chars(digits, digits + sizeof digits, value).ptr;
        text_.append(digits, end);
        text_ += after;
        if (text_.size() > std::size_t{1} << 19) flush();
    }

    void text(std::string_view text) { text_ += text; }

    void commit()
    {
        flush();
        file_.commit();
    }

private:
    void flush()
    {
        file_.write(text_);
        text_.clear();
    }

    AtomicFile file_;
    std::string text_;
};

std::string foam_header(const char* type, const char* location, const char* object)
{
    return std::string("FoamFile\n{\n    version     2.0;\n    format      ascii;\n    class       ") + type + ";\n    location    \"" + location +
           "\";\n    object      " + object + ";\n}\n\n";
}

}  // namespace

void write_metis_graph(const std::filesystem::path& path, const Csr& graph)
{
    TextOutput output(path);
    output.number(graph.num_rows(), ' ');
    output.number(graph.num_entries() / 2, '\n');
    for (std::int64_t i = 0; i < graph.num_rows(); ++i) {
        const auto row = graph.row(i);
        for (std::size_t k = 0; k < row.size(); ++k) output.number(std::int64_t{row[k]} + 1, k + 1 < row.size() ? ' ' : '\n');
        if (row.empty()) output.text("\n");
    }
    output.commit();
}

void write_part_file(const std::filesystem::path& path, std::span<const std::int32_t> owners)
{
    TextOutput output(path);
    for (const std::int32_t owner : owners) output.number(owner, '\n');
    output.commit();
}

void write_foam_decomposition(const std::filesystem::path& path, std::span<const std::int32_t> owners)
{
    TextOutput output(path);
    output.text(foam_header("labelList", "constant", "cellDecomposition"));
    output.number(static_cast<std::int64_t>(owners.size()), '\n');
    output.text("(\n");
    for (const std::int32_t owner : owners) output.number(owner, '\n');
    output.text(")\n");
    output.commit();
}

std::vector<std::string> parse_dump_kinds(std::string_view list)
{
    const std::vector<std::string> known{"metis", "foam"};
    std::vector<std::string> kinds;
    while (!list.empty()) {
        const std::size_t comma = list.find(',');
        const std::string kind(list.substr(0, comma));
        list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
        if (kind != "metis" && kind != "foam") {
            const std::string nearest = nearest_name(kind, known);
            throw InvalidInput("dump has the unknown kind '" + kind + "'; known are metis and foam." + (nearest.empty() ? "" : " Did you mean '" + nearest + "'?"));
        }
        kinds.push_back(kind);
    }
    return kinds;
}

std::vector<std::filesystem::path> dump_partition(const std::filesystem::path& folder, std::span<const std::string> kinds, const Csr& graph,
                                                  std::span<const std::int32_t> owners, std::int32_t num_parts)
{
    std::vector<std::filesystem::path> written;
    for (const std::string& kind : kinds) {
        if (kind == "metis") {
            written.push_back(folder / "mesh.graph");
            write_metis_graph(written.back(), graph);
            written.push_back(folder / ("mesh.graph.part." + std::to_string(num_parts)));
            write_part_file(written.back(), owners);
        } else if (kind == "foam") {
            written.push_back(folder / "cellDecomposition");
            write_foam_decomposition(written.back(), owners);
            written.push_back(folder / "decomposeParDict");
            write_file_atomically(written.back(), foam_header("dictionary", "system", "decomposeParDict") + "numberOfSubdomains " +
                                                      std::to_string(num_parts) +
                                                      ";\n\nmethod          manual;\n\nmanualCoeffs\n{\n    // in the case's folder constant\n"
                                                      "    dataFile    \"cellDecomposition\";\n}\n");
        } else {
            parse_dump_kinds(kind);
        }
    }
    return written;
}

}  // namespace meshard
