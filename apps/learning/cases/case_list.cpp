// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/case_list.h"

#include "apps/learning/cases/split_manifest.h"
#include "io/bytes/csv_table.h"
#include "io/bytes/file_pattern.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <random>
#include <regex>
#include <set>
#include <utility>

namespace meshard {
namespace {

using Row = std::map<std::string, std::string>;

/// A file pattern of the configuration, relative to `root`. Stars and brackets in `root` itself have no special
/// meaning.
struct CasePattern {
    std::filesystem::path root;
    std::string pattern;

    std::string text() const { return (root / pattern).string(); }
    bool has_star() const { return pattern.find('*') != std::string::npos; }
    std::vector<std::filesystem::path> files() const { return files_matching(root, pattern); }
};

/// Returns what the last `*` of `pattern` stands for in the name of `file`; if it does not match, the name without
/// extension.
std::string last_wildcard(const CasePattern& pattern, const std::filesystem::path& file)
{
    std::string path = file.string();
    if (const auto whole = pattern.text(); path.size() >= whole.size() - pattern.pattern.size())
        path.erase(0, whole.size() - pattern.pattern.size());
    std::string expression;
    for (const char c : pattern.pattern) {
        if (c == '*')
            expression += "([^/]*)";
        else if (std::isalnum(static_cast<unsigned char>(c)) || c == '/' || c == '_')
            expression += c;
        else
            expression += std::string("\\") + c;
    }
    std::smatch match;
    if (!std::regex_match(path, match, std::regex(expression)) || match.size() == 1) return file.stem().string();
    return match[match.size() - 1].str();
}

std::vector<Row> read_json_table(const std::filesystem::path& path, std::istream& stream)
{
    nlohmann::json content;
    try {
        content = nlohmann::json::parse(stream);
    } catch (const nlohmann::json::exception& error) {
        throw IoError("case table {} is no JSON: {}", path.string(), error.what());
    }
    const auto& list = content.is_object() && content.contains("cases") ? content["cases"] : content;
    if (!list.is_array())
        throw IoError("case table {} must be a list of objects, or have one under `cases`.", path.string());
    std::vector<Row> rows;
    for (const auto& entry : list) {
        Row row;
        for (const auto& [name, value] : entry.items())
            row[name] = value.is_string() ? value.get<std::string>() : value.dump();
        rows.push_back(std::move(row));
    }
    return rows;
}

std::vector<Row> read_csv_table(const std::filesystem::path& path, std::istream& stream)
{
    const auto table = read_csv(stream, "case table " + path.string());
    std::vector<Row> rows;
    for (const auto& [where, values] : table.rows) {
        Row row;
        for (std::size_t i = 0; i < values.size(); ++i) row[table.names[i]] = values[i];
        rows.push_back(std::move(row));
    }
    return rows;
}

std::vector<Row> read_table_rows(const std::filesystem::path& path)
{
    std::ifstream stream(path);
    if (!stream) throw IoError("case table {} cannot be read. data.cases is relative to data.root.", path.string());
    const auto extension = lower_extension(path);
    if (extension != ".json" && extension != ".csv")
        throw IoError("case table {} must be a .json or .csv file.", path.string());
    return extension == ".json" ? read_json_table(path, stream) : read_csv_table(path, stream);
}

/// Reads the files that match; each has one row, and its id is what the pattern's last `*` stands for.
std::map<std::string, Row> read_case_files(const CasePattern& pattern)
{
    const auto files = pattern.files();
    if (files.empty())
        throw InvalidInput("no case table matches {}. data.cases is relative to data.root.", pattern.text());
    std::map<std::string, Row> table;
    for (const auto& file : files) {
        auto rows = read_table_rows(file);
        if (rows.size() != 1)
            throw IoError("case table {} has {} rows; expected one, since data.cases has a *.", file.string(),
                          rows.size());
        if (!table.emplace(last_wildcard(pattern, file), std::move(rows[0])).second)
            throw InvalidInput("two case tables match {} with the id of {}.", pattern.text(), file.string());
    }
    return table;
}

/// Reads the rows of all tables of the configuration, by case id. If two tables have the same column, the first one
/// counts.
std::map<std::string, Row> read_case_tables(const DataConfig& data)
{
    std::map<std::string, Row> all;
    for (const auto& name : data.case_tables) {
        const CasePattern pattern{data.root, name};
        for (auto& [id, row] : pattern.has_star() ? read_case_files(pattern) : read_case_table(data.root / name))
            all[id].merge(row);
    }
    return all;
}

/// Gives the cases their rows of the tables.
void add_columns(std::vector<CaseSource>& cases, const DataConfig& data)
{
    const auto table = read_case_tables(data);
    std::size_t num_found = 0;
    for (auto& source : cases) {
        const auto row = table.find(source.id);
        if (row == table.end()) continue;
        source.columns = row->second;
        ++num_found;
    }
    if (num_found == 0 && !table.empty())
        throw InvalidInput("none of the {} cases has a row in data.cases ({}): their ids, by what the last * of the "
                           "files' pattern stands for, are such as '{}', and those of the rows such as '{}'.",
                           cases.size(), fmt::join(data.case_tables, ", "), cases.front().id, table.begin()->first);
}

const std::string& column_of(const CaseSource& source, const std::string& column)
{
    const auto found = source.columns.find(column);
    if (found != source.columns.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& [name, value] : source.columns) names.push_back(name);
    throw InvalidInput("case {} has no column '{}' in the case table{}{}", source.id, column,
                       names.empty() ? " (it has no row there)."
                                     : fmt::format(", which has {}.", fmt::join(names, ", ")),
                       suggestion(column, names));
}

std::string says_two_files(const std::string& pattern, const std::string& id, const std::filesystem::path& file)
{
    return fmt::format("two files match {} with the id '{}', one of them {}. The id is what the last * stands for.",
                       pattern, id, file.string());
}

/// Finds the files of a pattern, by what its last `*` stands for; a pattern without `*` has one file, with an empty id.
/// @param named   the pattern, in messages
std::map<std::string, std::filesystem::path> files_by_id(const CasePattern& pattern, const std::string& named)
{
    std::map<std::string, std::filesystem::path> files;
    for (const auto& file : pattern.files()) {
        const auto id = pattern.has_star() ? last_wildcard(pattern, file) : std::string();
        if (!files.emplace(id, file).second) throw InvalidInput("{}", says_two_files(named, id, file));
    }
    return files;
}

std::map<std::string, std::filesystem::path> find_walls(const CasePattern& pattern)
{
    auto walls = files_by_id(pattern, "data.wall, " + pattern.text() + ",");
    if (walls.empty())
        throw InvalidInput("no file matches data.wall, {}. It is relative to data.root.", pattern.text());
    return walls;
}

std::filesystem::path wall_of(const CaseSource& source, const std::map<std::string, std::filesystem::path>& walls,
                              const DataConfig& data)
{
    const bool is_one_for_all = data.wall.find('*') == std::string::npos;
    const auto found = walls.find(is_one_for_all ? "" : source.id);
    if (found == walls.end()) {
        throw InvalidInput("case {} has no surface: no file matches {} (data.wall) with its id. Add it, or "
                           "leave the case out of data.split.",
                           source.id, (data.root / data.wall).string());
    }
    return found->second;
}

/// Sets the cases' volumes and removes the cases that have none. Returns how many cases have only one of the two.
std::int64_t add_volumes(std::vector<CaseSource>& cases, const DataConfig& volume)
{
    const CasePattern pattern{volume.root, volume.files};
    const auto volumes = files_by_id(pattern, pattern.text());
    if (volumes.empty())
        throw InvalidInput("no file matches {}. Check data.root and data.volume.files.", pattern.text());
    const auto num_surfaces = std::ssize(cases);
    std::erase_if(cases, [&](auto& source) {
        const auto found = volumes.find(source.id);
        if (found == volumes.end()) return true;
        source.volume = found->second;
        return false;
    });
    if (cases.empty())
        throw InvalidInput("no case has both a surface and a volume: none of the {} files of {} has the id "
                           "of one of data.surface, e.g. '{}'.",
                           volumes.size(), pattern.text(), volumes.begin()->first);
    return num_surfaces + std::ssize(volumes) - 2 * std::ssize(cases);
}

using Parts = std::map<std::string, std::vector<CaseSource>>;

Parts split_by_column(const std::vector<CaseSource>& cases, const std::string& column)
{
    Parts parts;
    for (const auto& source : cases) parts[column_of(source, column)].push_back(source);
    for (const auto& [name, members] : parts) {
        if (name != "train" && name != "val" && name != "test") {
            throw InvalidInput("case {}: column '{}' says '{}'; expected train, val or test.", members.front().id,
                               column, name);
        }
    }
    return parts;
}

Parts split_by_lists(const std::vector<CaseSource>& cases, const std::map<std::string, std::vector<std::string>>& lists)
{
    Parts parts;
    std::map<std::string, std::string> part_of;
    std::vector<std::string> ids;
    for (const auto& source : cases) ids.push_back(source.id);
    for (const auto& [part, members] : lists) {
        for (const auto& id : members) {
            const auto found = std::ranges::find(ids, id);
            if (found == ids.end()) {
                const auto nearest = nearest_name(id, ids);
                throw InvalidInput("data.split.{} names case '{}', which has no file.{}", part, id,
                                   nearest.empty() ? fmt::format(" The cases found are '{}'{}.", ids.front(),
                                                                 ids.size() > 1 ? " to '" + ids.back() + "'" : " alone")
                                                   : " Did you mean '" + nearest + "'?");
            }
            if (!part_of.emplace(id, part).second) throw InvalidInput("data.split names case '{}' twice.", id);
            parts[part].push_back(cases[found - ids.begin()]);
        }
    }
    return parts;
}

/// Finds the cases that an entry of a manifest names by an id, a file, or a folder of files, below the root.
class NamesOfCases {
public:
    NamesOfCases(const std::vector<CaseSource>& cases, const std::filesystem::path& root) : root_(root)
    {
        for (std::size_t i = 0; i < cases.size(); ++i) {
            ids_[cases[i].id] = {i};
            for (auto path = cases[i].file.lexically_normal(); path.has_relative_path() && path.has_filename();
                 path = path.parent_path())
                paths_[path.string()].push_back(i);
        }
    }

    std::vector<std::size_t> cases_of(const std::string& entry) const
    {
        if (const auto found = ids_.find(entry); found != ids_.end()) return found->second;
        const auto path = (root_ / entry).lexically_normal();
        const auto found = paths_.find((path.has_filename() ? path : path.parent_path()).string());
        return found == paths_.end() ? std::vector<std::size_t>() : found->second;
    }

private:
    std::filesystem::path root_;
    std::map<std::string, std::vector<std::size_t>> ids_, paths_;
};

Parts split_by_manifest(const std::vector<CaseSource>& cases, const DataConfig& data)
{
    const auto where = "data.split.manifest: " + (data.root / data.split.manifest).string();
    Parts parts;
    std::map<std::string, std::string> part_of;
    std::vector<std::string> ids, missing;
    for (const auto& source : cases) ids.push_back(source.id);
    std::size_t num_entries = 0;
    const NamesOfCases names(cases, data.root);
    for (const auto& [part, entries] : read_split_manifest(data)) {
        num_entries += entries.size();
        for (const auto& entry : entries) {
            const auto found = names.cases_of(entry);
            if (found.empty()) missing.push_back(entry);
            for (const auto i : found) {
                const auto& id = cases[i].id;
                const auto [before, is_new] = part_of.emplace(id, part);
                if (!is_new)
                    throw InvalidInput("{} has case '{}' {}.", where, id,
                                       before->second == part ? "twice in " + part
                                                              : fmt::format("in {} and in {}", before->second, part));
                parts[part].push_back(cases[i]);
            }
        }
    }
    if (!missing.empty()) {
        throw InvalidInput(
            "{} names {} cases, and of {} there is no file: '{}'{}{}.{} Entries are ids, files or folders below "
            "data.root.",
            where, num_entries, missing.size(), missing.front(), missing.size() > 1 ? ", '" + missing[1] + "'" : "",
            missing.size() > 2 ? ", ..." : "", suggestion(missing.front(), ids));
    }
    return parts;
}

Parts split_by_shares(const std::vector<CaseSource>& cases, const std::map<std::string, double>& shares,
                      std::int64_t seed)
{
    Parts parts;
    const auto n = std::ssize(cases);
    const auto order = shuffled_order(n, static_cast<std::uint64_t>(seed));
    std::int64_t begin = 0;
    double sum = 0;
    for (const char* part : {"train", "val", "test"}) {
        const auto share = shares.find(part);
        if (share == shares.end()) continue;
        sum += share->second;
        const auto end = std::min(n, static_cast<std::int64_t>(std::llround(sum * static_cast<double>(n))));
        std::vector<std::int64_t> members(order.begin() + begin, order.begin() + end);
        std::ranges::sort(members);
        for (const auto i : members) parts[part].push_back(cases[i]);
        begin = end;
    }
    return parts;
}

/// Lists the runs of a set, each as a case whose step is its first one.
std::vector<CaseSource> find_runs(const DataConfig& data)
{
    std::vector<CaseSource> runs;
    for (auto& series : find_series(data.root, data.files, data.series.times)) {
        const auto num_states = std::ssize(series.states), least = data.series.history + 1;
        if (num_states < least) {
            throw InvalidInput("data.series: the run {} ({}) has {} state{}; a step needs {}, one of them to "
                               "be predicted. Leave the run out{}.",
                               series.id, series.path.string(), num_states, num_states == 1 ? "" : "s", least,
                               least > 2 ? ", or lower data.history" : "");
        }
        auto run = std::make_shared<const Series>(std::move(series));
        runs.push_back({.id = run->id, .file = run->path, .columns = {}, .step = RunStep{run, 0}});
    }
    return runs;
}

/// Puts in place of each run its steps.
std::vector<CaseSource> steps_of(const std::vector<CaseSource>& runs, std::int64_t history)
{
    std::vector<CaseSource> steps;
    for (const auto& run : runs) {
        const auto num_states = std::ssize(run.step->run->states);
        for (auto index = history - 1; index + 1 < num_states; ++index) {
            auto& one = steps.emplace_back(run);
            one.step->index = index;
            one.id = fmt::format("{}@{:04}", run.id, index);
            one.file = one.step->told(0).file;
        }
    }
    return steps;
}

/// Finds all cases of one set.
std::vector<CaseSource> find_files(const DataConfig& data)
{
    if (!std::filesystem::is_directory(data.root)) {
        std::error_code error;
        const auto where = std::filesystem::absolute(data.root).lexically_normal();
        const auto is_link = std::filesystem::is_symlink(where, error);
        throw IoError("data.root is {}, and {}. If the cases lie elsewhere now, add data.root=FOLDER.",
                      data.root.string(),
                      std::filesystem::exists(where, error) ? where.string() + " is no folder"
                      : is_link ? fmt::format("{} is a link to {}, which is not there", where.string(),
                                              std::filesystem::read_symlink(where, error).string())
                                : "there is no folder " + where.string());
    }
    if (data.series.is_on) {
        auto runs = find_runs(data);
        add_columns(runs, data);
        return runs;
    }
    const CasePattern pattern{data.root, data.files};
    const auto files = pattern.files();
    if (files.empty()) throw InvalidInput("no file matches {}. Check data.root and data.surface.", pattern.text());

    std::vector<CaseSource> cases;
    std::set<std::string> ids;
    for (const auto& file : files) {
        CaseSource source{last_wildcard(pattern, file), file, {}};
        if (!ids.insert(source.id).second) throw InvalidInput("{}", says_two_files(pattern.text(), source.id, file));
        cases.push_back(std::move(source));
    }
    add_columns(cases, data);
    return cases;
}

/// Lists the ids that the table's split column puts into a split, and that have no file.
std::vector<std::string> rows_without_file(const std::vector<CaseSource>& cases, const DataConfig& data)
{
    std::set<std::string> ids;
    for (const auto& source : cases) ids.insert(source.id);
    std::vector<std::string> missing;
    for (const auto& [id, row] : read_case_tables(data)) {
        const auto found = row.find(data.split.column);
        if (found != row.end() && !found->second.empty() && !ids.contains(id)) missing.push_back(id);
    }
    return missing;
}

CaseLists split_cases(const std::vector<CaseSource>& cases, const DataConfig& data, std::int64_t seed)
{
    auto parts = !data.split.column.empty()     ? split_by_column(cases, data.split.column)
                 : !data.split.manifest.empty() ? split_by_manifest(cases, data)
                 : !data.split.lists.empty()    ? split_by_lists(cases, data.split.lists)
                                                : split_by_shares(cases, data.split.shares, seed);
    CaseLists lists{.train = std::move(parts["train"]),
                    .val = std::move(parts["val"]),
                    .test = std::move(parts["test"]),
                    .without_file = {}};
    if (!data.split.column.empty()) lists.without_file = rows_without_file(cases, data);
    return lists;
}

void find_walls_of(CaseLists& lists, const DataConfig& data)
{
    if (data.wall.empty()) return;
    const auto walls = find_walls({data.root, data.wall});
    for (auto* part : {&lists.train, &lists.val, &lists.test}) {
        for (auto& source : *part) source.wall = wall_of(source, walls, data);
    }
}

/// Finds and splits the cases set by set; lists of ids are the exception, since they name cases of all sets.
CaseLists find_cases_of_sets(const DataConfig& data, std::int64_t seed)
{
    CaseLists all;
    for (const auto& set : data.sets) {
        auto of_set = data;
        of_set.root = set.root;
        of_set.files = set.files;
        of_set.case_tables = set.case_tables;
        of_set.split = set.split;
        CaseLists lists;
        try {
            const auto cases = find_files(of_set);
            lists = data.splits_all && !data.split.lists.empty()
                        ? CaseLists{.train = cases, .val = {}, .test = {}, .without_file = {}}
                        : split_cases(cases, of_set, seed);
            find_walls_of(lists, of_set);
        } catch (const InvalidInput& error) {
            throw InvalidInput("data.sets.{}: {}", set.name, error.what());
        } catch (const IoError& error) {
            throw IoError("data.sets.{}: {}", set.name, error.what());
        }
        const auto take = [&](std::vector<CaseSource>& from, std::vector<CaseSource>& to) {
            for (auto& source : from) {
                source.id = set.name + ":" + source.id;
                source.set = set.name;
                to.push_back(std::move(source));
            }
        };
        take(lists.train, all.train);
        take(lists.val, all.val);
        take(lists.test, all.test);
        for (const auto& id : lists.without_file) all.without_file.push_back(set.name + ":" + id);
    }
    if (data.splits_all && !data.split.lists.empty()) all = split_cases(all.train, data, seed);
    for (const auto& set : data.sets) {
        if (set.share > 0 &&
            std::ranges::none_of(all.train, [&](const auto& source) { return source.set == set.name; }))
            throw InvalidInput(
                "data.sets.{} has a share of the training cases, and none of its cases trains. Check its split.",
                set.name);
    }
    return all;
}

/// Files of runs hold ids in JSON, which takes UTF-8 alone.
void require_utf8(const CaseSource& source)
{
    try {
        nlohmann::json(source.id).dump();
    } catch (const nlohmann::json::type_error&) {
        throw InvalidInput("the name of the case file {} is not valid UTF-8. Rename it.", source.file.string());
    }
}

}  // namespace

double CaseSource::number(const std::string& column) const
{
    const auto& text = column_of(*this, column);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
        throw InvalidInput("case {}: column '{}' of the case table is '{}'; expected a number.", id, column, text);
    }
    return value;
}

std::map<std::string, Row> read_case_table(const std::filesystem::path& path)
{
    std::map<std::string, Row> table;
    for (auto& row : read_table_rows(path)) {
        const auto id = row.find("id");
        if (id == row.end())
            throw IoError("case table {} has a row without `id`. Give the column with the cases' ids that name.",
                          path.string());
        const auto name = id->second;
        if (!table.emplace(name, std::move(row)).second)
            throw IoError("case table {} has case '{}' twice.", path.string(), name);
    }
    return table;
}

std::vector<std::string> training_ids(const DataConfig& data, const std::filesystem::path& file)
{
    // The file may have been moved: the last folders of its path stand for those of the pattern.
    const auto whole = std::filesystem::weakly_canonical(file);
    const auto id_by = [&](const std::string& files) {
        std::filesystem::path pattern(files), rest = whole, last;
        const bool is_by_name = pattern.filename().string().find('*') != std::string::npos;
        if (is_by_name) pattern = pattern.filename();
        for ([[maybe_unused]] const auto& part : pattern) {
            last = last.empty() ? rest.filename() : rest.filename() / last;
            rest = rest.parent_path();
        }
        return last_wildcard({{}, pattern.string()}, last);
    };
    if (data.sets.empty()) return {id_by(data.files)};
    std::vector<std::string> ids, of_folder;
    for (const auto& set : data.sets) {
        ids.push_back(set.name + ":" + id_by(set.files));
        const auto below = whole.lexically_relative(std::filesystem::weakly_canonical(set.root));
        if (!below.empty() && *below.begin() != "..") of_folder.push_back(ids.back());
    }
    return of_folder.empty() ? ids : of_folder;
}

std::vector<CaseSource> CaseLists::all() const
{
    auto cases = train;
    append(cases, val);
    append(cases, test);
    return cases;
}

Facts CaseLists::facts() const
{
    Facts facts;
    const std::pair<const char*, const std::vector<CaseSource>*> splits[] = {
        {"train", &train}, {"val", &val}, {"test", &test}};
    for (const auto& [split, cases] : splits) {
        for (const auto& source : *cases) {
            std::string text = split;
            if (source.step) {
                const auto& run = *source.step->run;
                if (&source != &cases->front() && (&source - 1)->step->run == source.step->run) continue;
                text += fmt::format(", {}, {} states", run.path.string(), run.states.size());
                facts.emplace_back("run " + source.split_id(), text);
                continue;
            }
            for (const auto& file : {source.file, source.wall, source.volume}) {
                std::error_code error;
                const auto bytes = std::filesystem::file_size(file, error);
                if (!file.empty()) text += ", " + file.string() + (error ? "" : fmt::format(" ({} bytes)", bytes));
            }
            for (const auto& [name, value] : source.columns) text += fmt::format(", {} {}", name, value);
            facts.emplace_back("case " + source.id, text);
        }
    }
    return facts;
}

CaseLists CaseLists::of_part(std::size_t part) const
{
    auto lists = *this;
    for (auto* cases : {&lists.train, &lists.val, &lists.test}) {
        for (auto& source : *cases) {
            source.other_part = std::exchange(source.volume, {});
            if (part == 1) std::swap(source.file, source.other_part);
        }
    }
    return lists;
}

CaseLists find_cases(const DataConfig& data, std::int64_t seed, const DataConfig* volume)
{
    const auto in_steps = [&](CaseLists lists) {
        for (auto* part : {&lists.train, &lists.val, &lists.test}) {
            for (const auto& source : *part) require_utf8(source);
            if (data.series.is_on) *part = steps_of(*part, data.series.history);
        }
        return lists;
    };
    if (!data.sets.empty()) {
        auto lists = find_cases_of_sets(data, seed);
        if (lists.train.empty())
            throw InvalidInput("none of the cases of data.sets is left to train on. Check their splits.");
        return in_steps(std::move(lists));
    }
    auto cases = find_files(data);
    const auto num_left_out = volume ? add_volumes(cases, *volume) : 0;
    auto lists = split_cases(cases, data, seed);
    lists.num_left_out = num_left_out;
    if (lists.train.empty()) {
        throw InvalidInput("none of the {} cases is left to train on. Check data.split.", cases.size());
    }
    find_walls_of(lists, data);
    return in_steps(std::move(lists));
}

std::vector<std::int64_t> shuffled_order(std::int64_t n, std::uint64_t seed)
{
    auto order = numbers_from<std::int64_t>(0, n);
    std::mt19937_64 generator(seed);
    for (std::int64_t i = n - 1; i > 0; --i)
        std::swap(order[i], order[generator() % static_cast<std::uint64_t>(i + 1)]);
    return order;
}

}  // namespace meshard
