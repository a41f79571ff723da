// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/vtk_bridge.h"

#ifdef MESHARD_WITH_VTK_COMPOSITES
#include <fmt/core.h>
#include <vtkAlgorithm.h>
#include <vtkAppendFilter.h>
#include <vtkCGNSReader.h>
#include <vtkCompositeDataSet.h>
#include <vtkEnSightGoldBinaryReader.h>
#include <vtkEnSightGoldReader.h>
#include <vtkExodusIIReader.h>
#include <vtkGenericEnSightReader.h>
#include <vtkMultiBlockDataSet.h>
#include <vtkStreamingDemandDrivenPipeline.h>
#endif
#include "io/bytes/ascii_numbers.h"
#include "io/bytes/mapped_file.h"
#include "io/bytes/text_encoding.h"
#include "io/bytes/time_choice.h"
#include "io/vtk/ensight_sizes.h"
#include "io/vtk/legacy_text.h"
#include "io/vtk/vtk_xml_reader.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <vtkCellArray.h>
#include <vtkCellData.h>
#include <vtkDataArray.h>
#include <vtkDataObject.h>
#include <vtkDataSetAttributes.h>
#include <vtkFieldData.h>
#include <vtkGenericDataObjectReader.h>
#include <vtkIdList.h>
#include <vtkInformation.h>
#include <vtkInformationStringKey.h>
#include <vtkLogger.h>
#include <vtkNew.h>
#include <vtkOutputWindow.h>
#include <vtkPointData.h>
#include <vtkPoints.h>
#include <vtkPolyData.h>
#include <vtkSmartPointer.h>
#include <vtkStringArray.h>
#include <vtkUnstructuredGrid.h>
#include <vtkXMLGenericDataObjectReader.h>

#include <algorithm>
#include <fcntl.h>
#include <iterator>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <utility>

namespace meshard {

namespace {

/// A guard: collects VTK's messages instead of printing them. VTK has one output window for each process, so that only
/// one guard may exist at a time.
class CapturedMessages {
public:
    CapturedMessages()
        : lock_(mutex()), previous_(vtkOutputWindow::GetInstance()), verbosity_(vtkLogger::GetCurrentVerbosityCutoff())
    {
        vtkOutputWindow::SetInstance(window_);
        vtkLogger::SetStderrVerbosity(vtkLogger::VERBOSITY_OFF);  // the log also prints to the terminal
    }
    ~CapturedMessages()
    {
        vtkLogger::SetStderrVerbosity(verbosity_);
        vtkOutputWindow::SetInstance(previous_);
    }
    CapturedMessages(const CapturedMessages&) = delete;
    CapturedMessages& operator=(const CapturedMessages&) = delete;

    const std::string& errors() const { return window_->errors; }
    const std::vector<std::string>& warnings() const { return window_->warnings; }

private:
    class Window : public vtkOutputWindow {
    public:
        static Window* New() { return new Window; }  // required by vtkNew; no factory may replace it
        void DisplayText(const char*) override {}
        void DisplayErrorText(const char* text) override { errors += text; }
        void DisplayWarningText(const char* text) override { add_if_error(text); }
        void DisplayGenericWarningText(const char* text) override { add_if_error(text); }
        void DisplayDebugText(const char*) override {}

        /// The legacy readers report data that end too early as a warning.
        void add_if_error(const std::string& text)
        {
            if (text.find("Error") != std::string::npos || text.find("mismatch") != std::string::npos)
                errors += text;
            else
                warnings.push_back(text);
        }

        std::string errors;
        std::vector<std::string> warnings;
    };

    static std::mutex& mutex()
    {
        static std::mutex the_mutex;
        return the_mutex;
    }

    std::lock_guard<std::mutex> lock_;
    vtkSmartPointer<vtkOutputWindow> previous_;
    vtkLogger::Verbosity verbosity_;
    vtkNew<Window> window_;
};

/// Extracts what happened from VTK's `ERROR: In file, line n\nvtkReader (0x...): what happened\n\n`.
std::string essence(const std::string& message)
{
    const std::size_t colon = message.find("): ");
    std::string text = message.substr(colon == std::string::npos ? 0 : colon + 3);
    text = text.substr(0, text.find('\n'));
    while (!text.empty() && (text.back() == '.' || text.back() == ' ')) text.pop_back();
    return text;
}

class VtkConverter {
public:
    explicit VtkConverter(std::string where) : where_(std::move(where)) {}

    Mesh convert(vtkDataObject& object)
    {
        if (auto* surface = vtkPolyData::SafeDownCast(&object)) return convert_surface(*surface);
        if (auto* grid = vtkUnstructuredGrid::SafeDownCast(&object)) return convert_grid(*grid);
        fail(std::string("holds a ") + object.GetClassName() +
             ", expected polygonal data or an unstructured grid. Convert it in ParaView (File, Save Data, .vtu)");
    }

private:
    [[noreturn]] void fail(const std::string& what) const { throw IoError("{} {}.", where_, what); }

    static ScalarType scalar_type(int vtk_type, bool& known)
    {
        known = true;
        switch (vtk_type) {
        case VTK_CHAR:
        case VTK_SIGNED_CHAR:
            return ScalarType::Int8;
        case VTK_UNSIGNED_CHAR:
            return ScalarType::UInt8;
        case VTK_SHORT:
            return ScalarType::Int16;
        case VTK_UNSIGNED_SHORT:
            return ScalarType::UInt16;
        case VTK_INT:
            return ScalarType::Int32;
        case VTK_UNSIGNED_INT:
            return ScalarType::UInt32;
        case VTK_LONG:
        case VTK_LONG_LONG:
        case VTK_ID_TYPE:
            return ScalarType::Int64;
        case VTK_UNSIGNED_LONG:
        case VTK_UNSIGNED_LONG_LONG:
            return ScalarType::UInt64;
        case VTK_FLOAT:
            return ScalarType::Float32;
        case VTK_DOUBLE:
            return ScalarType::Float64;
        default:
            known = false;
            return ScalarType::Float64;
        }
    }

    DataArray convert_array(vtkAbstractArray& array) const
    {
        const std::string name = array.GetName() != nullptr ? array.GetName() : "";
        DataArray result;
        bool known = false;
        if (auto* strings = vtkStringArray::SafeDownCast(&array)) {
            std::vector<std::string> values;
            for (vtkIdType i = 0; i < strings->GetNumberOfValues(); ++i) values.push_back(strings->GetValue(i));
            result = DataArray::from_strings(name, std::move(values), strings->GetNumberOfComponents());
        } else if (array.GetDataType() == VTK_BIT) {
            auto& bits = *vtkDataArray::SafeDownCast(&array);
            std::vector<std::uint8_t> values;
            for (vtkIdType i = 0; i < bits.GetNumberOfTuples(); ++i)
                for (int c = 0; c < bits.GetNumberOfComponents(); ++c)
                    values.push_back(static_cast<std::uint8_t>(bits.GetComponent(i, c)));
            result = DataArray::from(name, std::move(values), bits.GetNumberOfComponents());
        } else {
            const ScalarType type = scalar_type(array.GetDataType(), known);
            if (!known)
                fail("has the array '" + name + "' of type " + array.GetDataTypeAsString() +
                     ", which is not supported");
            auto keep = std::make_shared<vtkSmartPointer<vtkAbstractArray>>(&array);
            result = DataArray::view(name, type, array.GetNumberOfTuples(), array.GetNumberOfComponents(),
                                     static_cast<const std::byte*>(array.GetVoidPointer(0)), std::move(keep));
        }
        for (int c = 0; c < array.GetNumberOfComponents(); ++c)
            result.component_names.emplace_back(array.GetComponentName(c) != nullptr ? array.GetComponentName(c) : "");
        if (std::ranges::all_of(result.component_names, &std::string::empty)) result.component_names.clear();
        if (array.HasInformation() && array.GetInformation()->Has(vtkDataArray::UNITS_LABEL()) != 0)
            result.unit = array.GetInformation()->Get(vtkDataArray::UNITS_LABEL());
        return result;
    }

    std::vector<DataArray> convert_arrays(vtkFieldData& data, std::int64_t num_rows) const
    {
        std::vector<DataArray> arrays;
        auto* attributes = vtkDataSetAttributes::SafeDownCast(&data);
        for (int i = 0; i < data.GetNumberOfArrays(); ++i) {
            vtkAbstractArray* from = data.GetAbstractArray(i);
            DataArray array = convert_array(*from);
            if (array.name().empty()) array.rename(fmt::format("Array{}", i));
            if (num_rows >= 0 && array.num_rows() != num_rows)
                fail(fmt::format("has the array '{}' with {} rows, expected {}. It is truncated or damaged",
                                 array.name(), array.num_rows(), num_rows));
            for (int role = 0; attributes != nullptr && role < vtkDataSetAttributes::NUM_ATTRIBUTES; ++role)
                if (attributes->GetAbstractAttribute(role) == from)
                    add_role(array, vtkDataSetAttributes::GetAttributeTypeAsString(role));
            add_array(arrays, std::move(array), where_);
        }
        return arrays;
    }

    Mesh convert_common(vtkPointSet& data) const
    {
        Mesh mesh;
        if (data.GetNumberOfPoints() > std::numeric_limits<std::int32_t>::max())
            fail("has more than 2147483647 points, which a mesh cannot number");
        if (data.GetPoints() != nullptr) {
            mesh.points = convert_array(*data.GetPoints()->GetData());
            mesh.points.rename("Points");
            if (mesh.points.type() != ScalarType::Float32 && mesh.points.type() != ScalarType::Float64)
                mesh.points = DataArray::from("Points", mesh.points.to_doubles(), 3);
        }
        mesh.point_data = convert_arrays(*data.GetPointData(), data.GetNumberOfPoints());
        mesh.cell_data = convert_arrays(*data.GetCellData(), data.GetNumberOfCells());
        mesh.field_data = convert_arrays(*data.GetFieldData(), -1);
        return mesh;
    }

    void append_cell(Csr& cells, vtkIdList& points, std::int64_t num_points) const
    {
        for (vtkIdType k = 0; k < points.GetNumberOfIds(); ++k) {
            const vtkIdType point = points.GetId(k);
            if (point < 0 || point >= num_points)
                fail(fmt::format("has cell {} with point {}, expected 0 to {}. It is damaged", cells.num_rows(), point,
                                 num_points - 1));
            cells.indices.push_back(static_cast<std::int32_t>(point));
        }
        cells.offsets.push_back(std::ssize(cells.indices));
    }

    Mesh convert_surface(vtkPolyData& data) const
    {
        Mesh mesh = convert_common(data);
        mesh.kind = MeshKind::Surface;
        vtkNew<vtkIdList> points;
        vtkCellArray* const groups[] = {data.GetVerts(), data.GetLines(), data.GetPolys(), data.GetStrips()};
        for (int group = 0; group < 4; ++group)
            for (vtkIdType i = 0; i < groups[group]->GetNumberOfCells(); ++i) {
                groups[group]->GetCellAtId(i, points);
                append_cell(mesh.cells, *points, mesh.num_points());
                mesh.cell_types.push_back(polydata_cell_type(group, points->GetNumberOfIds()));
            }
        return mesh;
    }

    Mesh convert_grid(vtkUnstructuredGrid& data) const
    {
        Mesh mesh = convert_common(data);
        const vtkIdType num_cells = data.GetNumberOfCells();
        for (vtkIdType i = 0; i < num_cells; ++i)
            mesh.cell_types.push_back(static_cast<std::uint8_t>(data.GetCellType(i)));
        const bool has_polyhedra = contains(mesh.cell_types, VTK_POLYHEDRON);
        vtkNew<vtkIdList> points;
        for (vtkIdType i = 0; i < num_cells; ++i) {
            data.GetCells()->GetCellAtId(i, points);
            append_cell(mesh.cells, *points, mesh.num_points());
            if (!has_polyhedra) continue;
            if (mesh.cell_types[i] == VTK_POLYHEDRON) {
                data.GetFaceStream(i, points);
                for (vtkIdType k = 0; k < points->GetNumberOfIds(); ++k)
                    mesh.face_streams.indices.push_back(static_cast<std::int32_t>(points->GetId(k)));
            }
            mesh.face_streams.offsets.push_back(std::ssize(mesh.face_streams.indices));
        }
        return mesh;
    }

    std::string where_;
};

Mesh validated(Mesh mesh, const std::string& where)
{
    try {
        mesh.validate();
    } catch (const InvalidInput& error) {
        throw IoError("{} is damaged: {}", where, error.what());
    }
    return mesh;
}

/// Lets VTK read, and turns what it throws or says into an error. @param read   returns the messages of VTK's errors
/// @throws IoError
template <class Read>
void read_by_vtk(const std::string& where, const Read& read)
{
    std::string errors;
    try {
        errors = read();
    } catch (const std::bad_alloc&) {
        throw IoError("{} announces more data than fits into memory. It is truncated or damaged.", where);
    } catch (const std::length_error&) {
        throw IoError("{} announces more data than can be. It is truncated or damaged.", where);
    }
    if (!errors.empty())
        throw IoError("{} cannot be read; VTK says: {}. It is truncated or damaged.", where, essence(errors));
}

template <class Reader>
Mesh converted_by_vtk(Reader& reader, const std::string& where)
{
    vtkSmartPointer<vtkDataObject> object;
    read_by_vtk(where, [&] {
        const CapturedMessages messages;
        reader.Update();
        object = reader.GetOutput();
        return messages.errors();
    });
    if (object == nullptr) throw IoError("{} holds no data set that VTK knows.", where);
    return validated(VtkConverter(where).convert(*object), where);
}

vtkSmartPointer<vtkGenericDataObjectReader> legacy_reader()
{
    auto reader = vtkSmartPointer<vtkGenericDataObjectReader>::New();
    reader->ReadAllScalarsOn();
    reader->ReadAllVectorsOn();
    reader->ReadAllNormalsOn();
    reader->ReadAllTensorsOn();
    reader->ReadAllColorScalarsOn();
    reader->ReadAllTCoordsOn();
    reader->ReadAllFieldsOn();
    return reader;
}

Mesh read_xml_with_vtk(const std::filesystem::path& path, const std::string& where)
{
    vtkNew<vtkXMLGenericDataObjectReader> reader;
    reader->SetFileName(path.c_str());
    return converted_by_vtk(*reader, where);
}

#ifdef MESHARD_WITH_VTK_COMPOSITES

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
        blocks.push_back({name, validated(VtkConverter(where_block).convert(*set), where_block)});
        return;
    }
    vtkNew<vtkAppendFilter> as_unstructured;
    as_unstructured->AddInputData(set);
    as_unstructured->Update();
    blocks.push_back({name, validated(VtkConverter(where_block).convert(*as_unstructured->GetOutput()), where_block)});
}

/// A block of an Exodus file has the points of the whole file.
Mesh without_other_points(const Mesh& block)
{
    auto points = block.cells.indices;
    sort_unique(points);
    auto cells = numbers_from<std::int32_t>(0, block.num_cells());
    return extract_mesh(block, cells, points);
}

#endif

}  // namespace

Mesh read_with_vtk(const std::filesystem::path& path)
{
    const std::string where = "read_mesh: " + path.string();
    const bool is_legacy = lower_extension(path) != ".vtu" && lower_extension(path) != ".vtp";
    if (!is_legacy) return read_xml_with_vtk(path, where);
    const auto file = MappedFile::open(path, "read_mesh");
    const std::string_view text = without_byte_order_mark(file->text());
    if (!text.starts_with("# vtk DataFile"))
        throw IoError("{} does not begin with '# vtk DataFile': it is no legacy VTK file. Is the extension right?",
                      where);
    // VTK's reader stops at NaN, and what it takes the rest for may crash it.
    if (LegacyText::may_be_needed(text)) {
        for (int attempt = 0; attempt < LegacyText::most_attempts; ++attempt) {
            const LegacyText finite(text, attempt);
            if (!finite.has_stand_ins()) break;
            const auto reader = legacy_reader();
            reader->ReadFromInputStringOn();
            reader->SetBinaryInputString(finite.text().data(), static_cast<int>(finite.text().size()));
            if (Mesh mesh = converted_by_vtk(*reader, where); finite.restore(mesh)) return mesh;
        }
    }
    const auto reader = legacy_reader();
    std::string own_text;  // the reader keeps a pointer to it
    if (text.size() == file->text().size()) {
        reader->SetFileName(path.c_str());
    } else {
        own_text = text;
        reader->ReadFromInputStringOn();
        reader->SetBinaryInputString(own_text.data(), static_cast<int>(own_text.size()));
    }
    return converted_by_vtk(*reader, where);
}

#ifdef MESHARD_WITH_VTK_COMPOSITES

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

#else

std::vector<double> times_with_vtk(const std::filesystem::path& path)
{
    read_blocks_with_vtk(path, {});  // throws
    return {};
}

std::vector<MeshBlock> read_blocks_with_vtk(const std::filesystem::path& path, const ReadOptions&)
{
    throw IoError("read_mesh: {} needs VTK's readers of CGNS, EnSight and Exodus, and this build has none. "
                  "Convert it to .vtu in ParaView.",
                  path.string());
}

#endif

}  // namespace meshard
