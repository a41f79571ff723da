// SPDX-License-Identifier: Apache-2.0
#include "io/collection_reader.h"

#include "io/bytes/ascii_numbers.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/mapped_file.h"
#include "io/bytes/time_choice.h"
#include "io/vtk/vtk_parallel_reader.h"
#include "io/vtk/vtk_xml_file.h"
#include "io/vtk/vtk_xml_reader.h"
#include "partition/error.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

namespace meshard {

namespace {

using MemberReader = std::function<std::vector<MeshBlock>(const std::filesystem::path&)>;

/// The files of the wanted time, by default the latest.
std::vector<TimedFile> files_of_time(std::vector<TimedFile> files, std::optional<double> wanted,
                                     const std::string& where)
{
    std::vector<double> times;
    for (const TimedFile& file : files) times.push_back(file.time);
    double time = std::ranges::max(times);
    if (wanted) {
        const auto found = index_of_time(times, *wanted);
        if (!found) throw IoError("{}: it has no such time; its last is {}.", where, time);
        time = times[*found];
    }
    std::erase_if(files, [&](const TimedFile& file) { return file.time != time; });
    return files;
}

std::vector<TimedFile> files_of_series(const std::filesystem::path& path, const std::string& where)
{
    const auto file = MappedFile::open(path, "read_mesh");
    const auto json = nlohmann::json::parse(file->text(), nullptr, false);
    const auto refuse = [&](const std::string& what) {
        throw IoError("{}: {}. It is truncated, damaged, or no .series file.", where, what);
    };
    if (json.is_discarded() || !json.is_object() || !json.contains("files") || !json["files"].is_array())
        refuse("expected JSON with a list 'files'");
    std::vector<TimedFile> files;
    for (const auto& entry : json["files"]) {
        if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string() || !entry.contains("time") ||
            !entry["time"].is_number())
            refuse(fmt::format("entry {} of 'files' has no name and time", files.size()));
        files.push_back({entry["time"].get<double>(), "", entry["name"].get<std::string>(), ""});
    }
    return files;
}

std::vector<TimedFile> required(std::vector<TimedFile> files, const std::string& where)
{
    if (files.empty()) throw IoError("{}: it names no files.", where);
    for (const TimedFile& file : files)
        if (!std::isfinite(file.time))
            throw IoError("{}: the time of {} is {}, a finite number is expected. Correct the index.", where, file.file,
                          file.time);
    return files;
}

std::vector<TimedFile> files_of_pvd(const VtkXmlFile& file)
{
    std::vector<TimedFile> files;
    for (const XmlElement& element : file.require_child(file.root(), "Collection").children) {
        if (element.name != "DataSet") continue;
        const auto* source = element.attribute("file");
        const auto* step = element.attribute("timestep");
        const auto time = step != nullptr ? parse_number<double>(*step) : std::optional<double>(0);
        if (source == nullptr || !time)
            file.fail(fmt::format("<DataSet> number {} has no file, or a timestep that is no number", files.size()));
        const auto* name = element.attribute("name");
        const auto* part = element.attribute("part");
        const auto* group = element.attribute("group");
        files.push_back({*time,
                         name != nullptr && !name->empty()
                             ? *name
                             : "part" + (part != nullptr ? *part : std::to_string(files.size())),
                         *source, group != nullptr ? *group : ""});
    }
    return files;
}

class CollectionReader {
public:
    CollectionReader(const std::filesystem::path& path, const ReadOptions& options, const MemberReader& read_member)
        : path_(path), where_("read_mesh: " + path.string()), options_(options), read_member_(read_member)
    {
    }

    std::vector<MeshBlock> read()
    {
        if (lower_extension(path_) == ".series") {
            read_timed(timed_files(path_));
        } else {
            const VtkXmlFile file(path_);
            if (file.type() == "Collection")
                read_timed(required(files_of_pvd(file), where_));
            else if (file.type() == "vtkMultiBlockDataSet" || file.type() == "vtkPartitionedDataSetCollection")
                read_blocks(file);
            else
                file.fail("expected a VTKFile of type vtkMultiBlockDataSet, vtkPartitionedDataSetCollection or "
                          "Collection, found '" +
                          file.type() + "'");
        }
        if (!options_.blocks.empty())
            choose_blocks(std::move(all_names_), options_.blocks, where_);  // throws if there is no such block
        return std::move(blocks_);
    }

private:
    void read_timed(std::vector<TimedFile> files)
    {
        files = files_of_time(std::move(files), options_.time, where_);
        for (const TimedFile& file : files) {
            const std::size_t first = blocks_.size();
            add_file(files.size() == 1 ? "" : file.name, file.file);
            for (std::size_t i = first; i < blocks_.size(); ++i)
                if (auto& arrays = blocks_[i].mesh.field_data; find_array(arrays, "TimeValue") == nullptr)
                    arrays.push_back(DataArray::from("TimeValue", std::vector<double>{file.time}));
        }
    }

    void read_blocks(const VtkXmlFile& file)
    {
        const XmlElement& root = file.require_child(file.root(), file.type());
        add_children(file, root, "");
        // foamToVTK writes the time in the root's FieldData.
        const XmlElement* shared = file.root().child("FieldData");
        if (shared == nullptr) shared = root.child("FieldData");
        if (shared == nullptr || blocks_.empty()) return;
        for (const XmlElement& element : shared->children)
            if (element.name == "DataArray" || element.name == "Array")
                if (DataArray array = file.read_array(element, -1);
                    find_array(blocks_.front().mesh.field_data, array.name()) == nullptr)
                    blocks_.front().mesh.field_data.push_back(std::move(array));
    }

    static std::string name_of(const XmlElement& element, const std::string& prefix, std::size_t number)
    {
        const auto* name = element.attribute("name");
        const auto* index = element.attribute("index");
        return prefix + (name != nullptr && !name->empty()
                             ? *name
                             : "block" + (index != nullptr ? *index : std::to_string(number)));
    }

    void add_children(const VtkXmlFile& file, const XmlElement& parent, const std::string& prefix)
    {
        std::size_t number = 0;
        for (const XmlElement& element : parent.children) {
            if (element.name == "Block" || element.name == "Piece") {
                add_children(file, element, name_of(element, prefix, number++) + "/");
            } else if (element.name == "DataSet") {
                const std::string name = name_of(element, prefix, number++);
                if (const auto* source = element.attribute("file")) add_file(name, *source);
            } else if (element.name == "Partitions") {
                add_partitions(element, name_of(element, prefix, number++));
            }
        }
    }

    bool is_worth_reading(const std::string& name) const
    {
        return is_wanted_block(name, options_.blocks) ||
               std::ranges::any_of(options_.blocks, [&](const std::string& wish) {
                   return name.empty() || wish.starts_with(name + "/");
               });
    }

    std::vector<MeshBlock> read_file(const std::string& source)
    {
        constexpr std::size_t most_files = 100000;
        if (++num_files_ > most_files) throw IoError("{}: it names more than 100000 files.", where_);
        return read_member_(listed_file(path_, source));
    }

    void add_file(const std::string& name, const std::string& source)
    {
        if (!is_worth_reading(name)) {
            all_names_.push_back({name, {}});
            return;
        }
        for (MeshBlock& block : read_file(source)) {
            if (!name.empty()) block.name = block.name.empty() ? name : name + "/" + block.name;
            all_names_.push_back({block.name, {}});
            if (is_wanted_block(block.name, options_.blocks)) blocks_.push_back(std::move(block));
        }
    }

    void add_partitions(const XmlElement& element, const std::string& name)
    {
        all_names_.push_back({name, {}});
        if (!is_wanted_block(name, options_.blocks)) return;
        std::vector<Mesh> pieces;
        for (const XmlElement& child : element.children)
            if (const auto* source = child.attribute("file"); child.name == "DataSet" && source != nullptr)
                pieces.push_back(join_blocks(read_file(*source), true, where_));
        if (pieces.empty()) return;
        const MeshKind kind = pieces.front().kind;
        if (std::ranges::any_of(pieces, [&](const Mesh& mesh) { return mesh.kind != kind; }))
            throw IoError("{}: the partitions of '{}' are of different kinds.", where_, name);
        blocks_.push_back({name, pieces.size() == 1 ? std::move(pieces.front())
                                                    : merge_pieces(std::move(pieces), kind, where_, options_)});
    }

    std::filesystem::path path_;
    std::string where_;
    const ReadOptions& options_;
    const MemberReader& read_member_;
    std::vector<MeshBlock> blocks_, all_names_;
    std::size_t num_files_ = 0;
};

}  // namespace

bool is_collection(const std::filesystem::path& path)
{
    const auto extension = lower_extension(path);
    return extension == ".vtm" || extension == ".vtmb" || extension == ".vtpc" || extension == ".pvd" ||
           extension == ".series";
}

std::vector<TimedFile> timed_files(const std::filesystem::path& path)
{
    const std::string where = "read_mesh: " + path.string();
    if (lower_extension(path) == ".series") return required(files_of_series(path, where), where);
    const VtkXmlFile file(path);
    if (file.type() != "Collection") file.fail("expected a VTKFile of type Collection, found '" + file.type() + "'");
    return required(files_of_pvd(file), where);
}

std::vector<MeshBlock> read_collection(const std::filesystem::path& path, const ReadOptions& options,
                                       const MemberReader& read_member)
{
    return CollectionReader(path, options, read_member).read();
}

}  // namespace meshard
