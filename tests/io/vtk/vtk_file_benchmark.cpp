// SPDX-License-Identifier: Apache-2.0
// Reading and writing .vtu files beside VTK's own reader and writer, by turns in one process; wall and CPU seconds,
// medians:
//     vtk_file_benchmark FILE.vtu [rounds, default 3] [folder for what is written, default /dev/shm]
#include "io/mesh_io.h"

#include <vtkDataSet.h>
#include <vtkNew.h>
#include <vtkSmartPointer.h>
#include <vtkUnstructuredGrid.h>
#include <vtkXMLUnstructuredGridReader.h>
#include <vtkXMLUnstructuredGridWriter.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace meshard {
namespace {

double cpu_seconds()
{
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Times {
    std::vector<double> wall, cpu;

    void add(const std::function<void()>& work)
    {
        const auto start = std::chrono::steady_clock::now();
        const double cpu_start = cpu_seconds();
        work();
        cpu.push_back(cpu_seconds() - cpu_start);
        wall.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
};

double median(std::vector<double> values)
{
    std::ranges::sort(values);
    return values[values.size() / 2];
}

std::uint64_t bytes_of(const Mesh& mesh)
{
    std::uint64_t bytes = mesh.points.bytes().size() + 9 * mesh.cell_types.size() + 8 * mesh.cells.indices.size() +
                          8 * mesh.face_streams.indices.size();
    for (const auto* group : {&mesh.point_data, &mesh.cell_data})
        for (const DataArray& array : *group) bytes += array.bytes().size();
    return bytes;
}

/// Sums what was read, so that no reader is lazy.
std::uint64_t touch(const Mesh& mesh)
{
    std::uint64_t sum = mesh.cells.indices.size();
    for (const auto* group : {&mesh.point_data, &mesh.cell_data})
        for (const DataArray& array : *group)
            for (std::size_t i = 0; i < array.bytes().size(); i += 4096)
                sum += static_cast<std::uint64_t>(array.bytes()[i]);
    return sum;
}

void write_with_vtk(vtkDataSet* data, const std::string& path, const std::string& kind)
{
    vtkNew<vtkXMLUnstructuredGridWriter> writer;
    writer->SetFileName(path.c_str());
    writer->SetInputData(data);
    if (kind == "lz4") {
        writer->SetCompressorTypeToLZ4();
        writer->EncodeAppendedDataOff();
    } else if (kind == "raw") {
        writer->SetCompressorTypeToNone();
        writer->EncodeAppendedDataOff();
    } else if (kind == "zlib") {
        writer->EncodeAppendedDataOff();
    }  // else as VTK writes by itself: zlib, base64
    writer->Write();
}

void run(const std::string& file, int rounds, const std::filesystem::path& folder)
{
    const Mesh mesh = read_mesh(file);
    const double megabytes = static_cast<double>(bytes_of(mesh)) / 1e6;
    std::printf("%s: %s, %.1f MB of arrays\n", file.c_str(), to_string(mesh).c_str(), megabytes);
    vtkNew<vtkXMLUnstructuredGridReader> source;
    source->SetFileName(file.c_str());
    source->Update();
    std::map<std::string, Times> times;
    std::map<std::string, std::uintmax_t> sizes;
    std::uint64_t sum = 0;
    const std::map<std::string, Compression> ours{
        {"raw", Compression::None}, {"zlib", Compression::Zlib}, {"lz4", Compression::Lz4}};
    for (int round = 0; round < rounds; ++round) {
        for (const std::string kind : {"default", "zlib", "lz4", "raw"}) {
            const std::string theirs = folder / ("vtk_" + kind + ".vtu");
            times["write " + kind + ", VTK"].add([&] { write_with_vtk(source->GetOutput(), theirs, kind); });
            sizes["write " + kind + ", VTK"] = std::filesystem::file_size(theirs);
            if (ours.contains(kind)) {
                const std::string path = folder / ("meshard_" + kind + ".vtu");
                times["write " + kind + ", meshard"].add(
                    [&] { write_mesh(path, mesh, {.compression = ours.at(kind), .sync = false}); });
                sizes["write " + kind + ", meshard"] = std::filesystem::file_size(path);
            }
            times["read VTK's " + kind + ", VTK"].add([&] {
                vtkNew<vtkXMLUnstructuredGridReader> reader;
                reader->SetFileName(theirs.c_str());
                reader->Update();
                sum += static_cast<std::uint64_t>(reader->GetOutput()->GetNumberOfCells());
            });
            times["read VTK's " + kind + ", meshard"].add([&] { sum += touch(read_mesh(theirs)); });
        }
    }
    for (const auto& [name, time] : times) {
        const double wall = median(time.wall), cpu = median(time.cpu);
        std::printf("%-30s %8.3f s wall %8.3f s CPU %8.0f MB/s of CPU time", name.c_str(), wall, cpu, megabytes / cpu);
        if (sizes.contains(name)) std::printf(" %8.1f MB", static_cast<double>(sizes[name]) / 1e6);
        std::printf("\n");
    }
    for (const std::string kind : {"default", "zlib", "lz4", "raw"})
        for (const std::string who : {"vtk_", "meshard_"}) std::filesystem::remove(folder / (who + kind + ".vtu"));
    if (sum == 0) std::printf("nothing was read\n");
}

}  // namespace
}  // namespace meshard

int main(int argc, char** argv)
{
    if (argc < 2) {
        std::fprintf(stderr, "vtk_file_benchmark FILE.vtu [rounds] [folder]\n");
        return 2;
    }
    meshard::run(argv[1], argc > 2 ? std::atoi(argv[2]) : 3, argc > 3 ? argv[3] : "/dev/shm");
}
