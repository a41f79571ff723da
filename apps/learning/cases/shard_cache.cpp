// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/shard_cache.h"

#include "apps/console/part_files.h"
#include "apps/learning/cases/kept_folder.h"
#include "apps/learning/cases/source_hash.h"
#include "io/bytes/content_hash.h"
#include "io/bytes/hashed_json.h"
#include "io/bytes/read_warnings.h"
#include "io/mesh_io.h"
#include "io/shards/subdomain_io.h"
#include "io/source_files.h"
#include "partition/error.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <mutex>
#include <string>
#include <string_view>

namespace meshard {
namespace {

/// This version must be raised when the same source and settings would be cut or stored in another way.
constexpr int kCutVersion = 1;
constexpr const char* kImbalance = "1.03";  // the default of MetisOptions

std::string digits(std::uint64_t hash)
{
    return hash_text(hash).substr(std::string_view("xxh64:").size());
}

bool is_complete(const std::filesystem::path& dir, const ShardCache& cache)
{
    if (!is_shards_folder(dir)) return false;
    try {
        const auto manifest = read_manifest(dir);
        if (manifest.num_parts() != cache.num_parts || manifest.info.seed != cache.seed ||
            manifest.info.method != "metis")
            return false;
        std::error_code ignored;
        for (const auto& part : manifest.parts) {
            if (std::filesystem::file_size(dir / part.file, ignored) != static_cast<std::uintmax_t>(part.num_bytes))
                return false;
        }
        return true;
    } catch (const UnknownVersion&) {
        throw;
    } catch (const IoError&) {
        return false;  // a damaged folder is made anew
    }
}

/// Renames a folder of earlier versions, which had one for each case and number of parts. Returns false if none fits.
bool take_over_former(const CaseSource& source, std::uint64_t hash, const ShardCache& cache,
                      const std::filesystem::path& unfinished)
{
    if (!cache.computed.description().empty()) return false;  // earlier versions did not compute inputs
    const auto former = cache.folder / fmt::format("{}_in_{}", source.id, cache.num_parts);
    if (!is_complete(former, cache) || read_manifest(former).info.source_hash != hash_text(hash)) return false;
    std::filesystem::rename(former, unfinished);
    return true;
}

std::uint64_t hash_of_file(const std::filesystem::path& file, const std::string& id, const ShardCache& cache)
{
    const auto path = std::filesystem::absolute(file).lexically_normal().string();
    return source_hash(file, cache.folder / "sources" / fmt::format("{}-{}.json", id, digits(xxh64_of_text(path))),
                       cache.verify_sources);
}

void cut(const CaseSource& source, std::uint64_t hash, const ShardCache& cache, const std::filesystem::path& unfinished)
{
    auto mesh = source.step ? read_step(*source.step, *cache.states, "case " + source.id) : read_mesh(source.file);
    if (mesh.num_rows() == 0) throw InvalidInput("case {}: {} is empty.", source.id, source.file.string());
    static std::once_flag is_said;  // the warning is given for the first of many cases only
    if (const auto size = size_of_small_parts(cache.num_parts, mesh.num_rows(), cache.folder); !size.empty())
        std::call_once(is_said, [&] {
            deliver_read_warnings({fmt::format("data.parts: case {}, and each of its size: {}", source.id, size)}, {});
        });
    const auto run_cut = source.step ? cache.run_cuts->of(*source.step, cache.num_parts, cache.seed)
                                     : std::make_shared<const RunCut>(cut_by_metis(mesh, cache.num_parts, cache.seed));
    if (run_cut->partition.num_rows() != mesh.num_rows())
        throw InvalidInput("case {}: {} has {} rows, and the first state of the run {}. The points of a run "
                           "may move, but not come and go.",
                           source.id, source.file.string(), mesh.num_rows(), run_cut->partition.num_rows());
    const auto facing = add_computed_inputs(mesh, cache.computed, source.wall, source.file, "case " + source.id);
    const auto subdomains = extract_subdomains(mesh, run_cut->graph, run_cut->partition, 0);

    ShardsInfo info;
    info.source = source.file.string();
    auto noted = cache;
    noted.verify_sources = false;
    if (!source.step && source_files(source.file).size() == 1)
        info.source_hash = hash_text(source.wall.empty() ? hash : hash_of_file(source.file, source.id, noted));
    info.method = "metis";
    info.seed = cache.seed;
    info.options = {{"imbalance", kImbalance},
                    {kSurfaceFacing, to_string(facing.surface.facing())},
                    {kWallFacing, to_string(facing.wall.facing())}};
    if (source.step) info.options.emplace_back(kFrameBounds, fmt::format("{:.17g}", fmt::join(run_cut->bounds, " ")));
    info.versions = {{"METIS", MESHARD_METIS_VERSION}};
    info.quality = run_cut->quality;
    save_subdomains(unfinished, subdomains, std::move(info));
    if (hash_of(source, noted) != hash) {
        throw IoError("case {}: {} changed while it was cut. Start again when it is complete.", source.id,
                      source.file.string());
    }
}

}  // namespace

std::uint64_t hash_of(const CaseSource& source, const ShardCache& cache)
{
    if (source.step) {
        const auto& [run, index] = *source.step;
        auto text = fmt::format("first {}", hash_text(hash_of_file(run->states.front().file, run->id, cache)));
        for (auto i = index + 1 - cache.states->history; i <= index + 1; ++i) {
            const auto& state = run->states[i];
            text += fmt::format(" state {} at {:.17g} in {:.17g}", hash_text(hash_of_file(state.file, run->id, cache)),
                                state.time, state.time_in_file.value_or(0));
        }
        return xxh64_of_text(text);
    }
    const auto hash = hash_of_file(source.file, source.id, cache);
    return source.wall.empty()
               ? hash
               : xxh64_of_text(hash_text(hash) + " wall " + hash_text(hash_of_file(source.wall, source.id, cache)));
}

std::filesystem::path shards_path(const CaseSource& source, std::uint64_t hash, const ShardCache& cache)
{
    const auto computed = cache.computed.description();
    const auto key = fmt::format(
        "version {}\nsource {}\ntype {}\nmethod metis " MESHARD_METIS_VERSION "\nimbalance {}\nparts {}\nseed {}\n"
        "ghosts 0\nweights none\nfields all\n{}",
        kCutVersion, hash_text(hash), source.file.extension().string(), kImbalance, cache.num_parts, cache.seed,
        (computed.empty() ? "" : "inputs " + computed + "\n") +
            (source.step ? "step of " + cache.states->description() + "\n" : ""));
    return cache.folder / (source.id + "-" + digits(xxh64_of_text(key)));
}

bool try_prepare_shards(const CaseSource& source, std::uint64_t hash, const ShardCache& cache,
                        const std::function<void()>& before_cutting)
{
    const auto dir = shards_path(source, hash, cache);
    const auto is_there = [&] { return is_complete(dir, cache); };
    if (is_there()) return true;
    if (const auto why = why_not_writable(cache.folder); !why.empty()) {
        throw IoError("case {} has no shards in {} for {} part(s) and seed {}{}, and the folder cannot be "
                      "written: {}. Set data.shards to another.",
                      source.id, cache.folder.string(), cache.num_parts, cache.seed,
                      cache.computed.description().empty() ? "" : ", with " + cache.computed.description(), why);
    }
    return try_keep_folder(dir, is_there, [&](const std::filesystem::path& unfinished) {
        if (take_over_former(source, hash, cache, unfinished)) return;
        before_cutting();
        cut(source, hash, cache, unfinished);
    });
}

}  // namespace meshard
