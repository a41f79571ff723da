// SPDX-License-Identifier: Apache-2.0
#include "io/series.h"

#include "io/bytes/ascii_numbers.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/csv_table.h"
#include "io/bytes/file_pattern.h"
#include "io/bytes/mapped_file.h"
#include "io/collection_reader.h"
#include "io/foam/foam_reader.h"
#include "io/mesh_io.h"
#include "io/vtk/file_extension.h"
#include "io/vtk/grid_file.h"
#include "io/vtk/vtk_bridge.h"
#include "io/vtk/vtk_xml_file.h"
#include "io/vtk/vtkhdf.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <map>
#include <regex>
#include <string_view>
#include <utility>

namespace meshard {

namespace {

namespace fs = std::filesystem;

constexpr const char* time_array = "TimeValue";

std::vector<double> times_in(const DataArray* array)
{
    if (array == nullptr || array->type() == ScalarType::String || array->num_values() != 1) return {};
    return array->to_doubles();
}

/// The value of `TimeValue` among the arrays of a <FieldData>.
std::vector<double> times_in(const VtkXmlFile& file, const XmlElement* group)
{
    if (group == nullptr) return {};
    for (const XmlElement& element : group->children)
        if (const auto* name = element.attribute("Name"); name != nullptr && *name == time_array) {
            const DataArray array = file.read_array(element, -1);
            return times_in(&array);
        }
    return {};
}

/// The first file to which an element or its children refer, depth first.
const std::string* first_file(const XmlElement& element)
{
    for (const char* name : {"file", "Source"})
        if (const auto* source = element.attribute(name)) return source;
    for (const XmlElement& child : element.children)
        if (const auto* source = first_file(child)) return source;
    return nullptr;
}

/// The times of a VTK XML file; of one that refers to other files without having a time itself, of the first of these.
std::vector<double> times_of_xml(const fs::path& path, int depth = 0)
{
    const VtkXmlFile file(path);
    if (!file.times().empty()) return file.times();
    const XmlElement* const content = file.root().child(file.type());
    for (const XmlElement* parent : {&file.root(), content})
        if (parent != nullptr)
            if (auto times = times_in(file, parent->child("FieldData")); !times.empty()) return times;
    constexpr int deepest = 16;
    const std::string* const source = content != nullptr ? first_file(*content) : nullptr;
    if (source == nullptr || depth == deepest) return {};
    std::error_code ignored;
    const fs::path member = listed_file(path, *source);
    const auto extension = lower_extension(member);
    const bool is_xml = extension.starts_with(".vt") || extension.starts_with(".pvt");
    if (!is_xml || extension == ".vtk" || extension == ".vtkhdf" || !fs::exists(member, ignored)) return {};
    return times_of_xml(member, depth + 1);
}

/// The times of a file that is no index; several if `ReadOptions::time` chooses among them, none if it says nothing of
/// time.
std::vector<double> times_of(const fs::path& path)
{
    if (is_foam_case(path)) return foam_times(path);
    if (is_vtk_composite(path)) return times_with_vtk(path);
    const std::string extension = lower_extension(path);
    if (extension == ".vtkhdf" || extension == ".hdf") return vtkhdf_times(path);
    constexpr std::string_view xml[] = {".vtu",  ".vtp",  ".vti", ".vtr",  ".pvtu", ".pvtp",
                                        ".pvti", ".pvtr", ".vtm", ".vtmb", ".vtpc"};
    if (contains(xml, extension)) return times_of_xml(path);
    if (is_array_file(path)) return GridFile::open(path)->times();
    if (extension != ".vtk" || MappedFile::open(path, "read_mesh")->text().find(time_array) == std::string_view::npos)
        return {};
    const Mesh mesh = read_mesh(path);
    return times_in(find_array(mesh.field_data, time_array));
}

bool lists_files(const fs::path& path)
{
    return lower_extension(path) == ".pvd" || lower_extension(path) == ".series";
}

/// Whether a path holds a whole series whatever the number of its states.
bool is_index(const fs::path& path)
{
    return lists_files(path) || is_foam_case(path);
}

std::string place_of(const SeriesState& state)
{
    return state.file.string() + (state.time_in_file ? fmt::format(" at {}", *state.time_in_file) : "");
}

/// Sorts the states of a series.
/// @throws ErrorType if times are not finite or not different
template <class ErrorType>
std::vector<SeriesState> sorted(std::vector<SeriesState> states, const std::string& where, const std::string& advice)
{
    for (const SeriesState& state : states)
        if (!std::isfinite(state.time))
            throw ErrorType("{}: the time of {} is {}, a finite number is expected. {}", where, place_of(state),
                            state.time, advice);
    std::ranges::stable_sort(states, {}, &SeriesState::time);
    const auto twice = std::ranges::adjacent_find(states, {}, &SeriesState::time);
    if (twice != states.end())
        throw ErrorType("{}: two states have the time {}: {} and {}. {}", where, twice->time, place_of(twice[0]),
                        place_of(twice[1]), advice);
    return states;
}

std::vector<SeriesState> states_of_index(const fs::path& path)
{
    const std::string where = "read_series: " + path.string();
    std::map<double, std::vector<TimedFile>> by_time;
    for (TimedFile& file : timed_files(path)) {
        std::error_code ignored;
        const fs::path member = listed_file(path, file.file);
        if (!fs::exists(member, ignored))
            throw IoError("{}: the file of time {}, {}, does not exist. Restore it, or remove it from the "
                          "index.",
                          where, file.time, member.string());
        by_time[file.time].push_back(std::move(file));
    }
    std::vector<SeriesState> states;
    for (const auto& [time, parts] : by_time) {
        if (parts.size() == 1) {
            states.push_back({time, listed_file(path, parts.front().file)});
            continue;
        }
        std::map<std::pair<std::string, std::string>, std::string> files;  // by group and part
        for (const TimedFile& part : parts)
            if (const auto [other, is_new] = files.emplace(std::pair(part.group, part.name), part.file); !is_new)
                throw IoError("{}: two states have the time {}: {} and {}. Remove one from the index{}.", where, time,
                              other->second, part.file,
                              part.name.empty() ? "" : ", or number them as parts (part=\"0\", \"1\")");
        states.push_back({time, path, time});
    }
    return states;
}

/// The states of a path that is no .pvd or .series, from its times.
std::vector<SeriesState> states_of_times(const fs::path& path, const std::vector<double>& times)
{
    if (times.empty()) return {{0, path}};
    std::vector<SeriesState> states;
    for (const double time : times)
        states.push_back({time, path, times.size() == 1 ? std::nullopt : std::optional(time)});
    return sorted<IoError>(std::move(states), "read_series: " + path.string(),
                           "Write it again with different, finite times.");
}

/// Whether `a` comes before `b` in an order in which digits count as numbers: `run_2` before `run_10`.
bool is_before(std::string_view a, std::string_view b)
{
    const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
    const auto take_number = [&](std::string_view& text) {
        const auto end = std::ranges::find_if_not(text, is_digit);
        auto digits = text.substr(0, static_cast<std::size_t>(end - text.begin()));
        text.remove_prefix(digits.size());
        digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
        return digits;
    };
    const std::string_view whole_a = a, whole_b = b;
    while (!a.empty() && !b.empty()) {
        if (is_digit(a.front()) && is_digit(b.front())) {
            const auto left = take_number(a), right = take_number(b);
            if (left.size() != right.size()) return left.size() < right.size();
            if (left != right) return left < right;
        } else {
            if (a.front() != b.front())
                return static_cast<unsigned char>(a.front()) < static_cast<unsigned char>(b.front());
            a.remove_prefix(1);
            b.remove_prefix(1);
        }
    }
    if (a.empty() != b.empty()) return a.empty();
    return whole_a < whole_b;
}

/// A path that matches the pattern.
struct Match {
    fs::path path;
    std::string name;                 ///< what the pattern matches: relative to `root`, or absolute as the pattern is
    std::vector<WildcardText> texts;  ///< what the wildcards stand for in `name`
    std::vector<double> times;        ///< see `times_of`; not set for indices
};

/// The number in what a state's wildcard stands for, and the text around it.
struct NamedTime {
    double value = 0;
    std::string before, after;
};

class SeriesFinder {
public:
    SeriesFinder(fs::path root, std::string pattern, std::string times)
        : root_(std::move(root)), pattern_(std::move(pattern)), times_(std::move(times)),
          where_("find_series: " + (root_ / pattern_).string())
    {
    }

    std::vector<Series> find()
    {
        find_matches();
        bool has_whole = false;
        for (Match& match : matches_) {
            std::error_code ignored;
            if (is_index(match.path)) {
                has_whole = true;
                continue;
            }
            if (fs::is_directory(match.path, ignored) && !is_array_file(match.path))
                throw InvalidInput(
                    "{}: {} is a folder, but no OpenFOAM case. Give the pattern of the files in it, e.g. {}/out_*.vtu.",
                    where_, match.path.string(), pattern_);
            match.times = times_of(match.path);
            has_whole = has_whole || match.times.size() > 1;
        }
        std::vector<Series> found =
            has_whole || (matches_.front().texts.empty() && times_.empty()) ? whole_series() : series_of_files();
        std::ranges::sort(found, is_before, &Series::id);
        const auto twice = std::ranges::adjacent_find(found, {}, &Series::id);
        if (twice != found.end())
            throw InvalidInput("{}: two runs have the id '{}': {} and {}. Let {} stand for what tells runs "
                               "apart, and write the rest out.",
                               where_, twice->id, twice[0].path.string(), twice[1].path.string(),
                               has_whole ? "the last *" : "the * before the last");
        return found;
    }

private:
    void find_matches()
    {
        const bool is_absolute = fs::path(pattern_).is_absolute();
        const std::size_t root_size = is_absolute ? 0 : (root_ / "x").string().size() - 1;
        for (fs::path& path : files_matching(root_, pattern_)) {
            Match match;
            match.name = path.string().substr(root_size);
            if (match.name != pattern_) {
                auto texts = wildcard_texts(pattern_, match.name);
                if (!texts)
                    throw InvalidInput("{}: what its wildcards stand for in {} is unclear. Write it with *, ? and "
                                       "[a-z] only, and single slashes.",
                                       where_, path.string());
                match.texts = std::move(*texts);
            }
            match.path = std::move(path);
            matches_.push_back(std::move(match));
        }
        if (matches_.empty())
            throw InvalidInput("{} matches no file or folder. Check the pattern{}", where_,
                               is_absolute ? "." : "; it is relative to " + root_.string() + ".");
    }

    std::vector<Series> whole_series() const
    {
        if (!times_.empty())
            throw InvalidInput("{}: {} has its own times, so that a table of times ({}) has no effect. Leave it out.",
                               where_, matches_.front().path.string(), times_);
        std::vector<Series> found;
        for (const Match& match : matches_) {
            fs::path name = match.path.filename();
            if (name.empty()) name = match.path.parent_path().filename();
            if (lower_extension(name) == ".series") name = name.stem();
            std::string id = match.texts.empty() ? "" : match.texts.back().text;
            const bool is_folder = fs::is_directory(match.path) && !is_array_file(match.path);
            if (id.empty()) id = is_folder ? name.string() : name.stem().string();
            found.push_back(
                {std::move(id), match.path,
                 is_index(match.path) ? read_series(match.path) : states_of_times(match.path, match.times)});
        }
        return found;
    }

    std::vector<Series> series_of_files() const
    {
        std::map<std::vector<std::string>, std::vector<const Match*>> runs;
        for (const Match& match : matches_) {
            std::vector<std::string> key;
            for (std::size_t i = 0; i + 1 < match.texts.size(); ++i) key.push_back(match.texts[i].text);
            runs[key].push_back(&match);
        }
        std::vector<Series> found;
        for (const auto& [key, files] : runs) {
            const std::string id = key.empty() ? name_of_only_run() : key.back();
            auto states = sorted<InvalidInput>(states_of_files(id, files), where_,
                                               times_.empty()
                                                   ? "Give a table of times, or a pattern that matches each state once."
                                                   : "Correct the "
                                                     "table of times.");
            const fs::path folder = states.front().file.parent_path();
            found.push_back({id, folder.empty() ? fs::path(".") : folder, std::move(states)});
        }
        return found;
    }

    std::string name_of_only_run() const
    {
        const fs::path pattern(pattern_);
        const std::string folder = pattern.parent_path().filename().string();
        if (!folder.empty() && text_of_pattern(folder) == folder && folder != "." && folder != "..") return folder;
        std::string name = fs::path(text_of_pattern(pattern.filename().string())).stem().string();
        const auto is_letter = [](unsigned char c) { return std::isalnum(c) != 0 || c >= 128; };
        while (!name.empty() && !is_letter(static_cast<unsigned char>(name.back()))) name.pop_back();
        while (!name.empty() && !is_letter(static_cast<unsigned char>(name.front()))) name.erase(0, 1);
        const auto is_extension = [&] { return "." + name == lower_extension(pattern); };
        if (!name.empty() && !is_extension()) return name;
        std::error_code ignored;
        return fs::weakly_canonical(matches_.front().path, ignored).parent_path().filename().string();
    }

    std::vector<SeriesState> states_of_files(const std::string& id, const std::vector<const Match*>& files) const
    {
        std::vector<SeriesState> states;
        if (!times_.empty()) {
            const auto table = read_table(id);
            for (const Match* match : files) states.push_back({time_in_table(table, *match, id), match->path});
            return states;
        }
        const auto has_time = [](const Match* match) { return !match->times.empty(); };
        const auto timed = std::ranges::find_if(files, has_time);
        const auto untimed = std::ranges::find_if_not(files, has_time);
        if (timed != files.end() && untimed != files.end())
            throw InvalidInput("{}: {} has the field array {}, {} has not. Add it to all files of the run "
                               "or to none, or give a table of times.",
                               where_, (*timed)->path.string(), time_array, (*untimed)->path.string());
        std::optional<NamedTime> first;
        for (const Match* match : files) {
            if (has_time(match)) {
                states.push_back({match->times.front(), match->path});
                continue;
            }
            const NamedTime named = time_in_name(*match);
            if (!first) first = named;
            if (first->before != named.before || first->after != named.after)
                throw InvalidInput("{}: {} and {} differ in more than the number of the state. Choose a "
                                   "pattern for one kind of names, or give a table of times.",
                                   where_, files.front()->path.string(), match->path.string());
            states.push_back({named.value, match->path});
        }
        return states;
    }

    NamedTime time_in_name(const Match& match) const
    {
        const auto& [begin, text] = match.texts.back();
        static const std::regex number(R"(\d+(\.\d+)?([eE][-+]?\d+)?)");
        std::vector<std::smatch> numbers(std::sregex_iterator(text.begin(), text.end(), number), {});
        if (numbers.size() != 1)
            throw InvalidInput(
                "{}: in the name of {} the state is '{}', which has {}; one number, its time, is expected. {}or give "
                "a table of times.",
                where_, match.path.string(), text,
                numbers.empty() ? "no number" : fmt::format("{} numbers", numbers.size()),
                numbers.empty() ? "Name the files by their times, choose a pattern without this one, "
                                : "Let the last * stand for one number, ");
        const auto at = static_cast<std::size_t>(numbers.front().position());
        const auto size = static_cast<std::size_t>(numbers.front().length());
        NamedTime named{0, text.substr(0, at), text.substr(at + size)};
        const auto value = parse_number<double>(std::string_view(text).substr(at, size));
        named.value = value.value_or(std::nan(""));
        // A minus after a letter or digit joins words: `out-0001`.
        if (named.before.ends_with('-') || named.before.ends_with('+')) {
            const std::size_t sign = begin + at - 1;
            if (sign == 0 || std::isalnum(static_cast<unsigned char>(match.name[sign - 1])) == 0) {
                if (named.before.back() == '-') named.value = -named.value;
                named.before.pop_back();
            }
        }
        return named;
    }

    struct TimeTable {
        fs::path path;
        std::map<std::string, double> times;  ///< by the path in the table, normalised
    };

    TimeTable read_table(const std::string& id) const
    {
        std::string name;
        for (const char c : times_) name += c == '*' ? id : std::string(1, c);
        TimeTable table{root_ / name, {}};
        const std::string where = "find_series: table of times " + table.path.string();
        std::ifstream stream(table.path);
        if (!stream) throw IoError("{} cannot be read. It is relative to {}.", where, root_.string());
        if (lower_extension(table.path) != ".csv") throw IoError("{} must be a .csv file.", where);
        const auto csv = read_csv(stream, where);
        const auto column = [&](const char* wanted) {
            const auto found = csv.column(wanted);
            if (found == csv.names.size())
                throw IoError("{} has no column '{}'; its first line is '{}', expected are the names of "
                              "columns, file and time among them.",
                              where, wanted, fmt::join(csv.names, ","));
            return found;
        };
        const std::size_t file = column("file"), time = column("time");
        for (const auto& [here, values] : csv.rows) {
            const auto value = parse_number<double>(values[time]);
            if (!value || !std::isfinite(*value))
                throw IoError("{}: the time is '{}', a finite number is expected.", here, values[time]);
            if (!table.times.emplace(fs::path(values[file]).lexically_normal().string(), *value).second)
                throw IoError("{}: the file {} is there a second time. Remove one of its lines.", here, values[file]);
        }
        return table;
    }

    double time_in_table(const TimeTable& table, const Match& match, const std::string& id) const
    {
        const auto from = [&](const fs::path& folder) {
            return match.path.lexically_normal().lexically_relative(folder.lexically_normal()).string();
        };
        for (const std::string& name : {match.path.lexically_normal().string(), from(table.path.parent_path()),
                                        from(root_), match.path.filename().string()})
            if (const auto found = table.times.find(name); found != table.times.end()) return found->second;
        throw IoError("find_series: table of times {} has no line for {} of run '{}', neither by its path "
                      "nor by its name. Add it, or choose a pattern without it.",
                      table.path.string(), match.path.string(), id);
    }

    fs::path root_;
    std::string pattern_, times_, where_;
    std::vector<Match> matches_;
};

}  // namespace

std::vector<SeriesState> read_series(const std::filesystem::path& path)
{
    std::error_code error;
    if (!fs::exists(path, error))
        throw IoError("read_series: {}{}", path.string(),
                      error ? " cannot be read: " + error.message() + "." : " does not exist. Check the path.");
    if (fs::is_directory(path, error) && !is_foam_case(path) && !is_array_file(path))
        throw IoError("read_series: {} is a folder, a file or an OpenFOAM case is expected.", path.string());
    if (lists_files(path)) return states_of_index(path);
    return states_of_times(path, times_of(path));
}

std::vector<Series> find_series(const std::filesystem::path& root, const std::string& pattern, const std::string& times)
{
    return SeriesFinder(root, pattern, times).find();
}

}  // namespace meshard
