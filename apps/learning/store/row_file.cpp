// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/store/row_file.h"

#include "io/bytes/atomic_file.h"
#include "io/bytes/content_hash.h"
#include "io/bytes/hashed_json.h"
#include "partition/error.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace meshard {
namespace {

constexpr std::uint64_t kPage = PageHashes::kPage;
constexpr std::string_view kFormat = "meshard rows ", kVersion = "1", kBegin = "meshard rows 1\n";
constexpr std::array<const char*, 3> kSections{"ids", "order", "values"};

std::array<std::span<const std::byte>, 3> sections_of(const StoredRows& rows)
{
    return {std::as_bytes(rows.ids), std::as_bytes(rows.order), std::as_bytes(rows.values)};
}

std::uint64_t whole_pages(std::uint64_t bytes)
{
    return (bytes + kPage - 1) / kPage * kPage;
}

/// Returns where each section begins, and where the last one ends.
std::array<std::uint64_t, 4> places_of(std::uint64_t num_rows, std::uint64_t num_columns)
{
    const auto order = kPage + whole_pages(num_rows * sizeof(std::int64_t)),
               values = order + whole_pages(num_rows * sizeof(std::int32_t));
    return {kPage, order, values, values + num_rows * num_columns * sizeof(float)};
}

}  // namespace

std::int64_t write_row_file(const std::filesystem::path& path, const StoredRows& rows, std::string_view key)
{
    const auto sections = sections_of(rows);
    const auto places = places_of(rows.ids.size(), static_cast<std::uint64_t>(rows.num_columns));
    nlohmann::ordered_json head{
        {"key", key}, {"rows", rows.num_rows()}, {"columns", rows.num_columns}, {"blocks", rows.block_begins}};
    for (std::size_t i = 0; i < sections.size(); ++i)
        head[kSections[i]] = {{"at", places[i]}, {"hash", hash_text(xxh64(sections[i]))}};
    auto text = std::string(kBegin) + head.dump() + "\n";
    if (text.size() > kPage) throw Error("write_row_file: the head of {} has {} bytes.", path.string(), text.size());

    AtomicFile file(path);
    file.write(text);
    for (std::size_t i = 0; i < sections.size(); ++i) {
        file.write(std::string(places[i] - file.size(), '\0'));
        file.write(sections[i]);
    }
    const auto size = static_cast<std::int64_t>(file.size());
    file.commit(/*sync=*/false);  // the folder is synced as a whole
    return size;
}

RowFile::RowFile(const std::filesystem::path& path, std::string_view key, FilePages pages)
    : path_(path), file_(MappedFile::open(path, "store")), pages_(std::move(pages))
{
    const auto refuse = [&](const std::string& what) { return unusable_file(path, what); };
    const auto text = file_->text();
    if (text.size() < kPage || !text.starts_with(kFormat))
        throw refuse("is damaged: it does not begin as a file of stored rows does");
    const auto version = text.substr(kFormat.size(), text.find('\n') - kFormat.size());
    if (version != kVersion)
        throw UnknownVersion("store: " + path.string() + ", a file of stored rows,", std::string(version),
                             std::string(kVersion));
    verify(file_->bytes().first(kPage));
    const auto head = nlohmann::json::parse(text.substr(kBegin.size(), text.find('\n', kBegin.size()) - kBegin.size()),
                                            nullptr, false);
    std::uint64_t num_rows = 0;
    std::array<std::uint64_t, 4> places{};
    try {
        if (head.at("key") != key) throw refuse("belongs to another case, or to other settings");
        num_rows = head.at("rows").get<std::uint64_t>();
        rows_.num_columns = head.at("columns").get<std::int64_t>();
        if (num_rows > text.size() || rows_.num_columns < 0 || rows_.num_columns > 1 << 20)
            throw refuse("is damaged: its head has numbers that cannot be");
        places = places_of(num_rows, static_cast<std::uint64_t>(rows_.num_columns));
        rows_.block_begins = head.at("blocks").get<std::vector<std::int64_t>>();
        const auto& begins = rows_.block_begins;
        if (begins.size() < 2 || begins.front() != 0 || begins.back() != static_cast<std::int64_t>(num_rows) ||
            !std::ranges::is_sorted(begins))
            throw refuse("is damaged: its head has blocks that cannot be");
        for (std::size_t i = 0; i < kSections.size(); ++i)
            hashes_[i] = head.at(kSections[i]).at("hash").get<std::string>();
    } catch (const nlohmann::json::exception&) {
        throw refuse("is damaged: its head cannot be read");
    }
    require_size(path, *file_, static_cast<std::int64_t>(places[3]));
    const auto* bytes = file_->bytes().data();
    rows_.ids = {reinterpret_cast<const std::int64_t*>(bytes + places[0]), num_rows};
    rows_.order = {reinterpret_cast<const std::int32_t*>(bytes + places[1]), num_rows};
    rows_.values = {reinterpret_cast<const float*>(bytes + places[2]),
                    num_rows * static_cast<std::uint64_t>(rows_.num_columns)};
}

void RowFile::verify() const
{
    if (pages_.hashes) return verify(file_->bytes());
    const auto sections = sections_of(rows_);
    for (std::size_t i = 0; i < sections.size(); ++i) {
        if (hash_text(xxh64(sections[i])) == hashes_[i]) continue;
        throw unusable_file(path_, fmt::format("is damaged: its {} are not those that were written", kSections[i]));
    }
}

}  // namespace meshard
