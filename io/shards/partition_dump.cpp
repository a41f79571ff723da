// SPDX-License-Identifier: Apache-2.0
#include "io/shards/partition_dump.h"

#include "io/bytes/atomic_file.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>

#include <charconv>

namespace meshard {

/// Buffers text and writes it in large runs.
class PartitionDump::TextOutput {
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

namespace {

std::string foam_header(const char* type, const char* location, const char* object)
{
    return std::string("FoamFile\n{\n    version     2.0;\n    format      ascii;\n    class       ") + type +
           ";\n    location    \"" + location + "\";\n    object      " + object + ";\n}\n\n";
}

}  // namespace

std::vector<std::string> parse_dump_kinds(std::string_view list)
{
    const std::vector<std::string> known{"metis", "foam"};
    std::vector<std::string> kinds;
    while (!list.empty()) {
        const std::size_t comma = list.find(',');
        const std::string kind(list.substr(0, comma));
        list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
        if (kind != "metis" && kind != "foam") {
            throw InvalidInput("dump has the unknown kind '{}'; known are metis and foam.{}", kind,
                               suggestion(kind, known));
        }
        if (!contains(kinds, kind)) kinds.push_back(kind);
    }
    return kinds;
}

PartitionDump::PartitionDump(const std::filesystem::path& folder, std::span<const std::string> kinds,
                             std::int64_t num_rows, std::int64_t num_entries, std::int32_t num_parts)
    : folder_(folder), num_parts_(num_parts)
{
    for (const std::string& kind : kinds) {
        if (kind == "metis") {
            graph_ = begin("mesh.graph");
            graph_->number(num_rows, ' ');
            graph_->number(num_entries / 2, '\n');
            parts_ = begin(fmt::format("mesh.graph.part.{}", num_parts));
        } else if (kind == "foam") {
            decomposition_ = begin("cellDecomposition");
            decomposition_->text(foam_header("labelList", "constant", "cellDecomposition"));
            decomposition_->number(num_rows, '\n');
            decomposition_->text("(\n");
        } else {
            parse_dump_kinds(kind);
        }
    }
}

PartitionDump::~PartitionDump() = default;

std::unique_ptr<PartitionDump::TextOutput> PartitionDump::begin(const std::string& name)
{
    written_.push_back(folder_ / name);
    return std::make_unique<TextOutput>(written_.back());
}

bool PartitionDump::needs_graph(std::span<const std::string> kinds)
{
    return contains(kinds, "metis");
}

void PartitionDump::add(const Csr& neighbors, std::span<const std::int32_t> owners)
{
    for (std::int64_t i = 0; graph_ && i < neighbors.num_rows(); ++i) {
        const auto row = neighbors.row(i);
        for (std::size_t k = 0; k < row.size(); ++k)
            graph_->number(std::int64_t{row[k]} + 1, k + 1 < row.size() ? ' ' : '\n');
        if (row.empty()) graph_->text("\n");
    }
    for (auto* output : {parts_.get(), decomposition_.get()})
        for (std::size_t i = 0; output != nullptr && i < owners.size(); ++i) output->number(owners[i], '\n');
}

std::vector<std::filesystem::path> PartitionDump::commit()
{
    if (graph_) graph_->commit();
    if (parts_) parts_->commit();
    if (decomposition_) {
        decomposition_->text(")\n");
        decomposition_->commit();
        written_.push_back(folder_ / "decomposeParDict");
        write_file_atomically(
            written_.back(),
            foam_header("dictionary", "system", "decomposeParDict") + "numberOfSubdomains " +
                std::to_string(num_parts_) +
                ";\n\nmethod          manual;\n\nmanualCoeffs\n{\n    // in the case's folder constant\n"
                "    dataFile    \"cellDecomposition\";\n}\n");
    }
    return std::move(written_);
}

std::vector<std::filesystem::path> dump_partition(const std::filesystem::path& folder,
                                                  std::span<const std::string> kinds, const Csr& graph,
                                                  std::span<const std::int32_t> owners, std::int32_t num_parts)
{
    PartitionDump dump(folder, kinds, std::ssize(owners), graph.num_entries(), num_parts);
    dump.add(graph, owners);
    return dump.commit();
}

}  // namespace meshard
