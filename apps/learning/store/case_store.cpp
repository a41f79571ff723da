// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/store/case_store.h"

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/cases/categories.h"
#include "apps/learning/cases/kept_folder.h"
#include "apps/learning/store/point_draws.h"
#include "apps/learning/store/row_file.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/content_hash.h"
#include "io/bytes/hashed_json.h"
#include "io/shards/shards_writer.h"
#include "io/shards/subdomain_io.h"
#include "partition/error.h"

#include <ATen/ATen.h>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

namespace meshard {
namespace {

using Json = nlohmann::ordered_json;

/// This version must be raised when the same shards and settings would be stored in another way.
constexpr int kStoreVersion = 3;
constexpr const char* kPageHashes = "hashes.u64";

/// Hashes all that the stored rows depend on. The name of the shards' folder stands for the source's content and the
/// cut.
std::string key_of(const CaseStore& store, const CaseSource& source, const std::filesystem::path& shards)
{
    auto settings = to_json(store.data);
    for (const char* name : {"sampling_resolution", "sampling", "constants", "time", "encoding", "encoding_frequencies",
                             "encoding_scales", "targets", "reference", "vector_deviation"})
        settings.erase(name);  // these settings do not change what is stored
    const auto text = fmt::format("version {}\nshards {}\nsettings {}\ntable {}\n", kStoreVersion,
                                  shards.filename().string(), settings.dump(), nlohmann::json(source.columns).dump());
    return hash_text(xxh64_of_text(text)).substr(std::string_view("xxh64:").size());
}

std::filesystem::path folder_in(const std::filesystem::path& store, const CaseSource& source, const std::string& key)
{
    return store / (source.id + "-" + key);
}

Json to_json(const StoredMeasures& measures)
{
    Json blocks = Json::array();
    for (const auto& block : measures.blocks)
        blocks.push_back({{"largest", block.largest}, {"positive", block.num_positive}, {"sums", block.sums}});
    return {{"of", name_of(measures.kind)}, {"mean", measures.mean}, {"hash", measures.hash}, {"blocks", blocks}};
}

StoredMeasures measures_from(const nlohmann::json& json)
{
    StoredMeasures measures;
    for (const auto kind : {MeasureKind::Areas, MeasureKind::Volumes}) {
        if (json.at("of") == name_of(kind)) measures.kind = kind;
    }
    measures.mean = json.at("mean");
    measures.hash = json.at("hash");
    for (const auto& block : json.at("blocks"))
        measures.blocks.push_back(
            {block.at("largest"), block.at("positive"), block.at("sums").get<decltype(BlockMeasures::sums)>()});
    return measures;
}

/// @param kind   begins the names: empty for targets, `told_` for inputs
void add_statistics(Json& part, const std::string& kind, const at::Tensor& rows)
{
    ChannelStatistics statistics;
    statistics.add(rows);
    part[kind + "mean"] = statistics.mean();
    part[kind + "squared_differences"] = statistics.squared_differences();
}

ChannelStatistics statistics_from(const nlohmann::json& part, const std::string& kind)
{
    return {part.at("rows").get<std::int64_t>(), part.at(kind + "mean").get<std::vector<double>>(),
            part.at(kind + "squared_differences").get<std::vector<double>>()};
}

StoredCase read_stored_case(const std::filesystem::path& folder, const std::string& key)
{
    const auto path = folder / "case.json";
    std::ifstream file(path, std::ios::binary);
    if (!file) throw IoError("store: {} cannot be read.", path.string());
    try {
        const auto json = nlohmann::json::parse(file);
        require_version(json, kStoreVersion, "store: " + path.string() + ", a stored case,");
        StoredCase stored;
        stored.folder = folder;
        stored.case_id = json.at("case");
        stored.key = key;
        if (json.at("key") != key) throw IoError("store: {} belongs to another case.", path.string());
        stored.num_rows = json.at("rows");
        stored.num_inputs = json.at("inputs");
        stored.channels = json.at("channels").get<std::vector<std::int64_t>>();
        stored.lowest = json.at("lowest").get<std::vector<double>>();
        stored.highest = json.at("highest").get<std::vector<double>>();
        stored.measures = measures_from(json.at("measures"));
        stored.categories = json.value("categories", stored.categories);
        std::int64_t num_pages = 0;
        for (const auto& part : json.at("parts")) {
            stored.parts.push_back({part.at("file"), part.at("rows"), part.at("bytes"), num_pages});
            num_pages += PageHashes::pages_of(stored.parts.back().num_bytes);
            stored.statistics.push_back(statistics_from(part, ""));
            if (part.contains("told_mean")) stored.told_statistics.push_back(statistics_from(part, "told_"));
        }
        stored.measures.first_page = num_pages;
        num_pages += PageHashes::pages_of(stored.num_measure_bytes());
        require_hash(json, "store: " + path.string(), "Remove its folder: it is made again from the case.");
        if (json.value("has_page_hashes", false))
            stored.page_hashes = std::make_shared<const PageHashes>(folder / kPageHashes, num_pages);
        return stored;
    } catch (const nlohmann::json::exception& error) {
        throw unusable_file(path, fmt::format("is damaged: {}", error.what()));
    }
}

bool is_complete(const std::filesystem::path& folder, const std::string& key)
{
    if (!std::filesystem::exists(folder / "case.json")) return false;
    try {
        const auto stored = read_stored_case(folder, key);
        const auto has_bytes = [](const std::filesystem::path& file, std::int64_t num_bytes) {
            std::error_code ignored;
            return std::filesystem::file_size(file, ignored) == static_cast<std::uintmax_t>(num_bytes);
        };
        return std::ranges::all_of(stored.parts,
                                   [&](const auto& part) { return has_bytes(folder / part.file, part.num_bytes); }) &&
               (stored.measures.blocks.empty() || has_bytes(MeasureFile::path_of(stored), stored.num_measure_bytes()));
    } catch (const UnknownVersion&) {
        throw;
    } catch (const IoError&) {
        return false;  // a damaged case is stored anew
    }
}

/// Holds the rows of a part in the order in which they are stored.
struct OrderedRows {
    std::vector<std::int64_t> ids;
    std::vector<std::int32_t> order;
    std::vector<float> values;
    std::vector<std::int64_t> block_begins;

    /// @param told     (rows, C), the inputs of the rows `of_rows`
    /// @param target   (rows, T), the targets of the same rows
    OrderedRows(const StoredOrder& stored_order, std::span<const std::int64_t> of_rows, const at::Tensor& told,
                const at::Tensor& target)
        : ids(of_rows.size()), order(of_rows.size())
    {
        const auto num_rows = of_rows.size(), num_point_inputs = static_cast<std::size_t>(told.size(1)),
                   num_targets = static_cast<std::size_t>(target.size(1));
        std::vector<std::pair<std::int64_t, std::int32_t>> by_place(num_rows);
        for (std::size_t i = 0; i < num_rows; ++i)
            by_place[i] = {stored_order.place_of(of_rows[i]), static_cast<std::int32_t>(i)};
        std::ranges::sort(by_place);
        values.reserve(num_rows * (num_point_inputs + num_targets));
        const auto* a = told.const_data_ptr<float>();
        const auto* b = target.const_data_ptr<float>();
        for (std::size_t i = 0; i < num_rows; ++i) {
            const auto row = static_cast<std::size_t>(by_place[i].second);
            ids[i] = of_rows[row];
            while (stored_order.begin_of(std::ssize(block_begins)) <= by_place[i].first)
                block_begins.push_back(static_cast<std::int64_t>(i));
            values.insert(values.end(), a + row * num_point_inputs, a + (row + 1) * num_point_inputs);
            values.insert(values.end(), b + row * num_targets, b + (row + 1) * num_targets);
        }
        block_begins.resize(static_cast<std::size_t>(stored_order.num_blocks()) + 1,
                            static_cast<std::int64_t>(num_rows));
        std::iota(order.begin(), order.end(), 0);
        std::ranges::sort(order, [&](std::int32_t x, std::int32_t y) { return ids[x] < ids[y]; });
    }

    StoredRows view(std::int64_t num_columns) const { return {ids, order, values, num_columns, block_begins}; }
};

/// Widens the bounds of each column to these rows (n, columns).
void widen(std::vector<double>& lowest, std::vector<double>& highest, const at::Tensor& rows)
{
    if (rows.size(0) == 0) return;
    const auto low = rows.amin(0).to(at::kDouble), high = rows.amax(0).to(at::kDouble);
    lowest.resize(rows.size(1), std::numeric_limits<double>::infinity());
    highest.resize(lowest.size(), -std::numeric_limits<double>::infinity());
    for (std::size_t c = 0; c < lowest.size(); ++c) {
        lowest[c] = std::min(lowest[c], low.const_data_ptr<double>()[c]);
        highest[c] = std::max(highest[c], high.const_data_ptr<double>()[c]);
    }
}

/// Writes the file of measures, unless the rows have none.
StoredMeasures write_measures(const RowMeasures& measures, const StoredOrder& order, const std::filesystem::path& file)
{
    StoredMeasures stored{.kind = measures.kind, .mean = measures.mean, .hash = {}, .blocks = {}};
    if (measures.values.empty()) return stored;
    std::vector<float> by_place(measures.values.size());
    for (std::size_t id = 0; id < by_place.size(); ++id)
        by_place[order.place_of(static_cast<std::int64_t>(id))] = measures.values[id];
    const auto bytes = std::as_bytes(std::span<const float>(by_place));
    stored.hash = hash_text(xxh64(bytes));
    stored.blocks = block_measures(order, by_place);
    AtomicFile out(file);
    out.write(bytes);
    out.commit(/*sync=*/false);  // the folder is synced as a whole
    return stored;
}

void write_case(const CaseStore& store, const CaseSource& source, const std::filesystem::path& shards,
                const std::string& key, const std::filesystem::path& folder)
{
    const auto where = "case " + source.id;
    const auto& data = store.data;
    const auto manifest = read_manifest(shards);
    if (data.on_cells && manifest.num_cells == 0)
        throw InvalidInput("{} is a point cloud. Set data.association=point.", where);
    const auto channels = field_channels(manifest, shards, data, where);
    const auto frame = case_frame(data.frame, frame_bounds(manifest), source);
    const auto num_rows = data.on_cells ? manifest.num_cells : manifest.num_points;
    const StoredOrder order(num_rows, source.id);

    PartialFolder partial(folder);
    Json parts = Json::array();
    std::vector<std::filesystem::path> files;
    std::vector<double> lowest, highest;
    const auto first_category = category_channels(data, channels).first;
    std::vector<std::vector<double>> categories;
    std::int64_t num_inputs = 0;
    for (std::int32_t part = 0; part < manifest.num_parts(); ++part) {
        const auto subdomain = load_subdomain(shards, manifest, part);
        const auto ids = data.on_cells ? subdomain.cells.owned() : subdomain.points.owned();
        const auto told = point_inputs(subdomain.mesh, ids, data, frame, where).contiguous();
        const auto target = field_values(subdomain.mesh, ids, data, where).contiguous();
        widen(lowest, highest, told);
        add_categories(categories, told, first_category, data.categories, where);
        num_inputs = told.size(1);
        const OrderedRows rows(order, ids, told, target);
        const auto name = fmt::format("part_{:04}.rows", part);
        files.push_back(partial.path() / name);
        const auto num_bytes = write_row_file(files.back(), rows.view(told.size(1) + target.size(1)), key);
        parts.push_back({{"file", name}, {"rows", std::ssize(ids)}, {"bytes", num_bytes}});
        add_statistics(parts.back(), "", target);
        if (data.series.is_on) add_statistics(parts.back(), "told_", told);
    }
    const auto file_of_measures = partial.path() / "measures.f32";
    const auto measures = write_measures(row_measures(shards, manifest, data.on_cells), order, file_of_measures);
    if (!measures.blocks.empty()) files.push_back(file_of_measures);
    PageHashes::write(partial.path() / kPageHashes, files);
    Json json{{"format", "meshard stored case"},
              {"version", kStoreVersion},
              {"key", key},
              {"case", source.id},
              {"rows", num_rows},
              {"inputs", num_inputs},
              {"channels", channels},
              {"lowest", lowest},
              {"highest", highest},
              {"measures", to_json(measures)},
              {"has_page_hashes", true},
              {"parts", parts}};
    if (!categories.empty()) json["categories"] = categories;
    write_file_atomically(partial.path() / "case.json", with_hash(json).dump(1) + "\n");
    partial.commit();
}

}  // namespace

std::int64_t StoredCase::num_targets() const
{
    return std::accumulate(channels.begin(), channels.end(), std::int64_t{0});
}

std::vector<std::int64_t> StoredCase::rows_of_parts() const
{
    std::vector<std::int64_t> rows;
    for (const auto& part : parts) rows.push_back(part.num_rows);
    return rows;
}

std::int64_t StoredCase::num_bytes() const
{
    std::int64_t bytes = 0;
    for (const auto& part : parts) bytes += part.num_bytes;
    return bytes + num_measure_bytes();
}

std::int64_t StoredCase::num_measure_bytes() const
{
    return measures.blocks.empty() ? 0 : num_rows * static_cast<std::int64_t>(sizeof(float));
}

bool try_store_case(const CaseStore& store, const CaseSource& source, const std::filesystem::path& shards,
                    const std::function<void()>& before_storing)
{
    const auto key = key_of(store, source, shards);
    if (is_complete(folder_in(store.folder, source, key), key)) return true;
    auto folder = store.folder;
    auto why = why_not_writable(folder);
    if (!why.empty() && !store.other_folder.empty()) {
        folder = store.other_folder;
        if (is_complete(folder_in(folder, source, key), key)) return true;
        why = why_not_writable(folder);
    }
    if (!why.empty())
        throw IoError("case {} is not stored in {}, and the folder cannot be written: {}. Set data.store to another.",
                      source.id, folder.string(), why);
    const auto dir = folder_in(folder, source, key);
    return try_keep_folder(
        dir, [&] { return is_complete(dir, key); },
        [&](const std::filesystem::path& unfinished) {
            before_storing();
            write_case(store, source, shards, key, unfinished);
        });
}

StoredCase open_stored_case(const CaseStore& store, const CaseSource& source, const std::filesystem::path& shards)
{
    const auto key = key_of(store, source, shards);
    const auto dir = folder_in(store.folder, source, key);
    const bool is_other = !store.other_folder.empty() && !is_complete(dir, key);
    return read_stored_case(is_other ? folder_in(store.other_folder, source, key) : dir, key);
}

MeasureFile::MeasureFile(const StoredCase& stored) : stored_(stored)
{
    if (stored.measures.blocks.empty())
        throw InvalidInput("case {}: its rows have neither areas nor volumes.", stored.case_id);
    const auto path = path_of(stored);
    file_ = MappedFile::open(path, "store");
    require_size(path, *file_, stored.num_measure_bytes());
}

std::span<const float> MeasureFile::values() const
{
    const auto path = path_of(stored_);
    if (stored_.page_hashes)
        stored_.page_hashes->compare(*file_, stored_.measures.first_page, file_->bytes(), path);
    else if (hash_text(xxh64(file_->bytes())) != stored_.measures.hash)
        throw unusable_file(path, "is damaged: its bytes are not those that were written");
    return {reinterpret_cast<const float*>(file_->bytes().data()), static_cast<std::size_t>(stored_.num_rows)};
}

}  // namespace meshard
