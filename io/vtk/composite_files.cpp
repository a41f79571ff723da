// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/ascii_numbers.h"
#include "io/bytes/mapped_file.h"
#include "io/bytes/time_choice.h"
#include "io/vtk/ensight_sizes.h"
#include "io/vtk/vtk_bridge.h"
#include "io/vtk/vtk_conversion.h"
#include "io/vtk/vtk_xml_reader.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>
#include <vtkAlgorithm.h>
#include <vtkAppendFilter.h>
#include <vtkCGNSReader.h>
#include <vtkCompositeDataSet.h>
#include <vtkDataObject.h>
#include <vtkEnSightGoldBinaryReader.h>
#include <vtkEnSightGoldReader.h>
#include <vtkExodusIIReader.h>
#include <vtkGenericEnSightReader.h>
#include <vtkInformation.h>
#include <vtkMultiBlockDataSet.h>
#include <vtkNew.h>
#include <vtkPolyData.h>
#include <vtkSmartPointer.h>
#include <vtkStreamingDemandDrivenPipeline.h>
#include <vtkUnstructuredGrid.h>

#include <algorithm>
#include <fcntl.h>
#include <iterator>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>

namespace meshard {
namespace {

enum class CompositeFormat { Cgns, EnSight, Exodus };

CompositeFormat composite_format(const std::filesystem::path& path)
{
    const std::string extension = lower_extension(path);
    if (extension == ".cgns") return CompositeFormat::Cgns;
    if (extension == ".case" || extension == ".encas") return CompositeFormat::EnSight;
    return CompositeFormat::Exodus;
}

/// Throws IoError if two times of an EnSight case are one in single precision, in which VTK keeps them and so chooses
/// among them.
void require_times_apart(std::string_view text, const std::string& where)
{
    constexpr std::string_view kTimes = "time values:";
    for (auto at = text.find(kTimes); at != std::string_view::npos; at = text.find(kTimes, at)) {
        at += kTimes.size();
        TextScanner words(text.substr(at));
        std::optional<double> before;
        for (auto time = words.number<double>(); time; before = std::exchange(time, words.number<double>()))
            if (before && *before != *time && static_cast<float>(*before) == static_cast<float>(*time))
                throw IoError("{}: its times {} and {} are one number in single precision, in which VTK "
                              "reads them. Write times that begin near 0.",
                              where, *before, *time);
    }
}

/// Throws IoError unless the file begins as its format requires.
void require_beginning(CompositeFormat format, const std::filesystem::path& path, const std::string& where)
{
    const auto file = MappedFile::open(path, "read_mesh");
    const std::string_view text = file->text();
    const bool is_hdf5 = text.starts_with("\x89HDF\r\n");
    if (format == CompositeFormat::Exodus && !is_hdf5 && !text.starts_with("CDF"))
        throw IoError("{} begins neither as netCDF nor as HDF5: it is no Exodus file. Is the extension right?", where);
    if (format == CompositeFormat::Cgns && !is_hdf5 &&
        text.substr(0, 64).find("ADF Database") == std::string_view::npos)
        throw IoError("{} begins neither as HDF5 nor as ADF: it is no CGNS file. Is the extension right?", where);
    if (format != CompositeFormat::EnSight) return;
    if (text.find("FORMAT") == std::string_view::npos)
        throw IoError("{} has no section FORMAT: it is no EnSight case file. Is the extension right?", where);
    require_times_apart(text, where);
}

/// A guard: redirects stderr to /dev/null, since netCDF, Exodus and CGNS write to it themselves.
class SilentStderr {
public:
    SilentStderr() : saved_(::dup(STDERR_FILENO))
    {
        const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (saved_ >= 0 && nowhere >= 0) ::dup2(nowhere, STDERR_FILENO);
        if (nowhere >= 0) ::close(nowhere);
    }
    ~SilentStderr()
    {
        if (saved_ < 0) return;
        ::dup2(saved_, STDERR_FILENO);
        ::close(saved_);
    }
    SilentStderr(const SilentStderr&) = delete;
    SilentStderr& operator=(const SilentStderr&) = delete;

private:
    int saved_;
};

/// What checks of files before VTK reads them find. The error waits until VTK has ended, which frees nothing on the way
/// of an exception.
struct FileChecks {
    std::optional<IoError> error;
    std::vector<std::string>* warnings = nullptr;
};

/// VTK's reader of EnSight Gold, which checks every file before it reads it.
template <class Reader>
class CheckedEnSight : public Reader {
public:
    static CheckedEnSight* New() { return new CheckedEnSight; }  // required by vtkNew

    FileChecks* checks = nullptr;

protected:
    template <class Check, class... Sizes>
    bool passes(const Check& check, const char* file, int step, Sizes... expected)
    {
        if (checks->error) return false;  // an earlier file has failed
        try {
            const char* folder = this->GetFilePath();
            (sizes_.*check)(std::filesystem::path(folder != nullptr ? folder : "") / file,
                            this->GetUseFileSets() != 0 ? step : 0, expected...);
            if (checks->warnings != nullptr)
                std::ranges::move(sizes_.take_warnings(), std::back_inserter(*checks->warnings));
            return true;
        } catch (const IoError& error) {
            checks->error = error;
            return false;
        }
    }
    bool variable_passes(const char* file, int step, bool per_element, int num_components)
    {
        return passes(&EnSightSizes::check_variable, file, step, per_element, num_components);
    }
    bool node_variable_passes(const char* file, int step, bool measured, int num_components)
    {
        return measured ? passes(&EnSightSizes::check_measured_variable, file, step, num_components)
                        : variable_passes(file, step, false, num_components);
    }

    using Data = vtkMultiBlockDataSet;
    int ReadGeometryFile(const char* file, int step, Data* data) override
    {
        return passes(&EnSightSizes::check_geometry, file, step) && Reader::ReadGeometryFile(file, step, data);
    }
    int ReadMeasuredGeometryFile(const char* file, int step, Data* data) override
    {
        return passes(&EnSightSizes::check_measured_points, file, step) &&
               Reader::ReadMeasuredGeometryFile(file, step, data);
    }
    int ReadScalarsPerNode(const char* file, const char* name, int step, Data* data, int measured, int width,
                           int component) override
    {
        return node_variable_passes(file, step, measured != 0, 1) &&
               Reader::ReadScalarsPerNode(file, name, step, data, measured, width, component);
    }
    int ReadVectorsPerNode(const char* file, const char* name, int step, Data* data, int measured) override
    {
        return node_variable_passes(file, step, measured != 0, 3) &&
               Reader::ReadVectorsPerNode(file, name, step, data, measured);
    }
    int ReadTensorsPerNode(const char* file, const char* name, int step, Data* data) override
    {
        return variable_passes(file, step, false, 6) && Reader::ReadTensorsPerNode(file, name, step, data);
    }
    int ReadAsymmetricTensorsPerNode(const char* file, const char* name, int step, Data* data) override
    {
        return variable_passes(file, step, false, 9) && Reader::ReadAsymmetricTensorsPerNode(file, name, step, data);
    }
    int ReadScalarsPerElement(const char* file, const char* name, int step, Data* data, int width,
                              int component) override
    {
        return variable_passes(file, step, true, 1) &&
               Reader::ReadScalarsPerElement(file, name, step, data, width, component);
    }
    int ReadVectorsPerElement(const char* file, const char* name, int step, Data* data) override
    {
        return variable_passes(file, step, true, 3) && Reader::ReadVectorsPerElement(file, name, step, data);
    }
    int ReadTensorsPerElement(const char* file, const char* name, int step, Data* data) override
    {
        return variable_passes(file, step, true, 6) && Reader::ReadTensorsPerElement(file, name, step, data);
    }
    int ReadAsymmetricTensorsPerElement(const char* file, const char* name, int step, Data* data) override
    {
        return variable_passes(file, step, true, 9) && Reader::ReadAsymmetricTensorsPerElement(file, name, step, data);
    }

private:
    EnSightSizes sizes_{std::is_same_v<Reader, vtkEnSightGoldBinaryReader>};
};

template <class Reader>
vtkSmartPointer<vtkAlgorithm> checked_ensight(const std::filesystem::path& path, FileChecks& checks)
{
    vtkNew<CheckedEnSight<Reader>> reader;
    reader->SetCaseFileName(path.c_str());
    reader->ReadAllVariablesOn();
    reader->checks = &checks;
    return reader;
}

vtkSmartPointer<vtkAlgorithm> composite_reader(CompositeFormat format, const std::filesystem::path& path,
                                               FileChecks& checks)
{
    if (format == CompositeFormat::Cgns) {
        vtkNew<vtkCGNSReader> reader;
        reader->SetFileName(path.c_str());
        reader->SetLoadBndPatch(true);
        reader->UpdateInformation();
        reader->EnableAllBases();
        reader->EnableAllPointArrays();
        reader->EnableAllCellArrays();
        return reader;
    }
    if (format == CompositeFormat::EnSight) {
        vtkNew<vtkGenericEnSightReader> any;
        any->SetCaseFileName(path.c_str());
        const int version = any->DetermineEnSightVersion(1);
        if (version == vtkGenericEnSightReader::ENSIGHT_GOLD)
            return checked_ensight<vtkEnSightGoldReader>(path, checks);
        if (version == vtkGenericEnSightReader::ENSIGHT_GOLD_BINARY)
            return checked_ensight<vtkEnSightGoldBinaryReader>(path, checks);
        any->ReadAllVariablesOn();
        return any;
    }
    vtkNew<vtkExodusIIReader> reader;
    reader->SetFileName(path.c_str());
    reader->SetSqueezePoints(false);  // else coordinates are rounded to single precision
    reader->UpdateInformation();
    for (const int kind : {vtkExodusIIReader::NODAL, vtkExodusIIReader::ELEM_BLOCK, vtkExodusIIReader::GLOBAL})
        reader->SetAllArrayStatus(kind, 1);
    for (int i = 0; i < reader->GetNumberOfObjects(vtkExodusIIReader::SIDE_SET); ++i)
        reader->SetObjectStatus(vtkExodusIIReader::SIDE_SET, i, 1);
    return reader;
}

std::vector<double> times_of(vtkAlgorithm& reader)
{
    vtkInformation* info = reader.GetOutputInformation(0);
    auto* key = vtkStreamingDemandDrivenPipeline::TIME_STEPS();
    if (!info->Has(key)) return {};
    return {info->Get(key), info->Get(key) + info->Length(key)};
}

/// The last of the file's times, or the wanted one; none if it has no times.
std::optional<double> chosen_time(const std::vector<double>& times, std::optional<double> wanted,
                                  const std::string& where)
{
    if (times.empty()) {
        if (wanted) throw IoError("{} has no times to choose from.", where);
        return std::nullopt;
    }
    if (!wanted) return times.back();
    if (const auto found = index_of_time(times, *wanted)) return times[*found];
    throw IoError("{} has no such time; its {} times are {} to {}.", where, times.size(), times.front(), times.back());
}

/// Rows of characters end in 0; VTK 9.1 does not initialise the rest.
void clear_after_text(DataArray& array)
{
    if (array.type() != ScalarType::Int8 && array.type() != ScalarType::UInt8) return;
    const auto bytes = array.mutable_bytes();
    const auto width = static_cast<std::size_t>(array.num_components());
    for (std::size_t row = 0; row + width <= bytes.size(); row += width) {
        const auto text = bytes.subspan(row, width);
        std::fill(std::ranges::find(text, std::byte{0}), text.end(), std::byte{0});
    }
}

void collect_blocks(vtkDataObject& data, const std::string& name, const std::string& where,
                    std::vector<MeshBlock>& blocks)
{
    if (auto* tree = vtkMultiBlockDataSet::SafeDownCast(&data)) {
        for (unsigned i = 0; i < tree->GetNumberOfBlocks(); ++i) {
            if (tree->GetBlock(i) == nullptr) continue;
            const char* own =
                tree->HasMetaData(i) != 0 ? tree->GetMetaData(i)->Get(vtkCompositeDataSet::NAME()) : nullptr;
            std::string label = own != nullptr && *own != '\0' ? own : fmt::format("block{}", i);
            collect_blocks(*tree->GetBlock(i), name.empty() ? label : name + "/" + label, where, blocks);
        }
        return;
    }
    auto* set = vtkDataSet::SafeDownCast(&data);
    if (set == nullptr || (set->GetNumberOfPoints() == 0 && set->GetNumberOfCells() == 0)) return;
    const std::string where_block = where + (name.empty() ? "" : ", block " + name + ",");
    if (vtkUnstructuredGrid::SafeDownCast(set) != nullptr || vtkPolyData::SafeDownCast(set) != nullptr) {
        blocks.push_back({name, mesh_from_vtk(set, where_block)});
        return;
    }
    vtkNew<vtkAppendFilter> as_unstructured;
    as_unstructured->AddInputData(set);
    as_unstructured->Update();
    blocks.push_back({name, mesh_from_vtk(as_unstructured->GetOutput(), where_block)});
}

/// A block of an Exodus file has the points of the whole file.
Mesh without_other_points(const Mesh& block)
{
    auto points = block.cells.indices;
    sort_unique(points);
    auto cells = numbers_from<std::int32_t>(0, block.num_cells());
    return extract_mesh(block, cells, points);
}

}  // namespace

std::vector<MeshBlock> read_blocks_with_vtk(const std::filesystem::path& path, const ReadOptions& options)
{
    const std::string where = "read_mesh: " + path.string();
    const auto format = composite_format(path);
    require_beginning(format, path, where);
    vtkSmartPointer<vtkAlgorithm> reader;
    std::optional<double> time;
    std::vector<MeshBlock> blocks;
    FileChecks checks{{}, options.warnings};
    read_by_vtk(where, [&] {
        const CapturedMessages messages;
        const SilentStderr silence;
        reader = composite_reader(format, path, checks);
        reader->UpdateInformation();
        time = chosen_time(times_of(*reader), options.time, where);
        if (time)
            reader->UpdateTimeStep(*time);
        else
            reader->Update();
        if (checks.error) throw IoError(*checks.error);
        const auto errors = messages.errors();
        if (options.warnings != nullptr)
            for (const std::string& text : messages.warnings())
                options.warnings->push_back(path.string() + ": VTK says: " + essence(text));
        if (errors.empty()) {
            auto* data = reader->GetOutputDataObject(0);
            if (data == nullptr) throw IoError("{} holds no data set that VTK knows.", where);
            collect_blocks(*data, "", where, blocks);
            if (format == CompositeFormat::Exodus) {
                std::erase_if(blocks, [](const MeshBlock& block) { return block.mesh.num_cells() == 0; });
                for (auto& block : blocks) block.mesh = without_other_points(block.mesh);
            }
        }
        return errors;
    });
    if (blocks.empty()) throw IoError("{} holds no mesh.", where);
    for (MeshBlock& block : blocks)
        for (DataArray& array : block.mesh.field_data)
            if (array.name() == "QA_Records" || array.name() == "Info_Records") clear_after_text(array);
    for (MeshBlock& block : blocks)
        if (time) add_time(block.mesh.field_data, *time);
    if (options.blocks.empty()) {
        const auto is_patch = [](const MeshBlock& block) {
            return block.name.find("/Patches/") != std::string::npos || block.name.starts_with("Side Sets/");
        };
        if (!std::ranges::all_of(blocks, is_patch)) std::erase_if(blocks, is_patch);
        return blocks;
    }
    return choose_blocks(std::move(blocks), options.blocks, where);
}

std::vector<double> times_with_vtk(const std::filesystem::path& path)
{
    const std::string where = "read_mesh: " + path.string();
    const auto format = composite_format(path);
    require_beginning(format, path, where);
    std::vector<double> times;
    read_by_vtk(where, [&] {
        const CapturedMessages messages;
        const SilentStderr silence;
        FileChecks unused;
        const auto reader = composite_reader(format, path, unused);
        reader->UpdateInformation();
        times = times_of(*reader);
        return messages.errors();
    });
    return times;
}

}  // namespace meshard
