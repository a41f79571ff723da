// SPDX-License-Identifier: Apache-2.0
// Reads damaged mesh files until the time is over: each must be read or refused with an Error. A file that crashes a reader, takes
// more than 20 seconds or throws anything else stays where the message says.
//
//   reader_fuzz [--seconds 10] [--seed 0] [--only .vtu]
//   reader_fuzz FILE...                  reads files, e.g. those that were kept
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/block_codec.h"
#include "io/mesh_io.h"
#include "partition/error.h"
#include "tests/support/foam_case.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

namespace meshard {
namespace {

std::string base64(std::string_view bytes)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        std::uint32_t bits = 0;
        for (std::size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0);
        for (std::size_t k = 0; k < 4; ++k) text += i + k <= bytes.size() ? alphabet[bits >> (18 - 6 * k) & 63] : '=';
    }
    return text;
}

/// The text of a compressed <DataArray format="binary">, in blocks of 24 bytes.
std::string compressed_text(const std::string& bytes)
{
    std::vector<std::uint32_t> words{static_cast<std::uint32_t>((bytes.size() + 23) / 24), 24, static_cast<std::uint32_t>(bytes.size() % 24)};
    std::string blocks;
    for (std::size_t at = 0; at < bytes.size(); at += 24) {
        const std::string part = bytes.substr(at, 24);
        std::vector<std::byte> block(compressed_bound(Compression::Zlib, part.size()));
        words.push_back(static_cast<std::uint32_t>(compress_block(Compression::Zlib, std::as_bytes(std::span(part)), block)));
        blocks.append(reinterpret_cast<const char*>(block.data()), words.back());
    }
    return base64({reinterpret_cast<const char*>(words.data()), 4 * words.size()}) + base64(blocks);
}

struct Sample {
    std::filesystem::path damaged;   ///< the file whose bytes change
    std::filesystem::path opened;    ///< the file or folder that is read
    std::string bytes;
};

class Fuzzer {
public:
    explicit Fuzzer(std::uint32_t seed) : random_(seed) {}

    void make_samples(const std::filesystem::path& folder)
    {
        const auto add = [&](const std::string& name, const Mesh& mesh, Compression compression) {
            write_mesh(folder / name, mesh, {.compression = compression});
            keep(folder / name, folder / name);
        };
        add("raw.vtu", mixed_cells(), Compression::None);
        add("zlib.vtu", mixed_cells(), Compression::Zlib);
        if (is_available(Compression::Lz4)) add("lz4.vtu", mixed_cells(), Compression::Lz4);
        add("raw.vtp", surface_of_all_kinds(), Compression::None);
        text(folder, "ascii.vtu",
             "<VTKFile type=\"UnstructuredGrid\" header_type=\"UInt64\"><UnstructuredGrid><FieldData><Array type=\"String\" Name=\"n\" format=\"ascii\">97 98 0</Array></FieldData>"
             "<Piece NumberOfPoints=\"4\" NumberOfCells=\"1\"><Points><DataArray type=\"Float32\" NumberOfComponents=\"3\" format=\"ascii\">0 0 0 1 0 0 0 1 0 0 0 1</DataArray></Points>"
             "<Cells><DataArray type=\"Int32\" Name=\"connectivity\" format=\"ascii\">0 1 2 3</DataArray><DataArray type=\"Int32\" Name=\"offsets\" format=\"ascii\">4</DataArray>"
             "<DataArray type=\"UInt8\" Name=\"types\" format=\"ascii\">42</DataArray><DataArray type=\"Int64\" Name=\"faces\" format=\"ascii\">4 3 0 1 2 3 0 1 3 3 1 2 3 3 0 2 3</DataArray>"
             "<DataArray type=\"Int64\" Name=\"faceoffsets\" format=\"ascii\">17</DataArray></Cells><CellData><DataArray type=\"Float64\" Name=\"p\" format=\"binary\">CAAAAAAAAAAAAAAAAADwPw==</DataArray>"
             "</CellData></Piece></UnstructuredGrid></VTKFile>");
        text(folder, "base64.vtu",
             "<VTKFile type=\"UnstructuredGrid\" compressor=\"vtkZLibDataCompressor\"><UnstructuredGrid><Piece NumberOfPoints=\"8\" NumberOfCells=\"0\"><Points>"
             "<DataArray type=\"Float64\" NumberOfComponents=\"3\" format=\"binary\">" + compressed_text(std::string(192, '\1')) + "</DataArray></Points><Cells>"
             "<DataArray type=\"Int64\" Name=\"connectivity\" format=\"ascii\"/><DataArray type=\"Int64\" Name=\"offsets\" format=\"ascii\"/>"
             "<DataArray type=\"UInt8\" Name=\"types\" format=\"ascii\"/></Cells></Piece></UnstructuredGrid></VTKFile>");
        text(folder, "index.pvtu", "<VTKFile type=\"PUnstructuredGrid\"><PUnstructuredGrid GhostLevel=\"0\"><Piece Source=\"raw.vtu\"/><Piece Source=\"zlib.vtu\"/></PUnstructuredGrid></VTKFile>");
        text(folder, "tree.vtm", "<VTKFile type=\"vtkMultiBlockDataSet\"><vtkMultiBlockDataSet><Block name=\"a\"><DataSet name=\"b\" file=\"raw.vtu\"/></Block><DataSet index=\"1\" file=\"raw.vtp\"/>"
                                 "</vtkMultiBlockDataSet></VTKFile>");
        text(folder, "run.pvd", "<VTKFile type=\"Collection\"><Collection><DataSet timestep=\"1\" part=\"0\" file=\"raw.vtu\"/><DataSet timestep=\"2\" part=\"0\" file=\"raw.vtp\"/></Collection></VTKFile>");
        text(folder, "run.series", R"({"file-series-version": "1.0", "files": [{"name": "raw.vtu", "time": 1}, {"name": "raw.vtp", "time": 2e0}]})");
        text(folder, "a.stl", "solid one\nfacet normal 0 0 1\nouter loop\nvertex 0 0 0\nvertex 1 0 0\nvertex 0 1e-1 0\nendloop\nendfacet\nendsolid one\nsolid two\nendsolid\n");
        text(folder, "b.stl", std::string(80, ' ') + std::string("\1\0\0\0", 4) + std::string(50, '\0'));
        text(folder, "a.ply", "ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\nproperty float y\nproperty float z\nproperty int id\nelement face 1\nproperty list uchar int vertex_indices\n"
                              "property float q\nend_header\n0 0 0 7\n1 0 0 8\n0 1 0 9\n3 0 1 2 0.5\n");
        text(folder, "b.ply", "ply\nformat binary_little_endian 1.0\nelement vertex 3\nproperty float x\nproperty float y\nproperty float z\nelement face 1\nproperty list uchar int vertex_indices\nend_header\n" +
                                  std::string(36, '\0') + std::string("\3\0\0\0\0\1\0\0\0\2\0\0\0", 13));
        text(folder, "a.obj", "v 0 0 0\nv 1 0 0\nv 0 1 0\ng one two\nf 1/2/3 2//1 -1\nl 1 2 \\\n3\np 1\no three\nf 1 2 3\n");
        for (const auto& [name, style] : {std::pair<const char*, FoamCaseStyle>{"ascii", {}}, {"binary", {.binary = true}}, {"gz", {.compressed = true}}}) {
            write_foam_case(folder / name, polyhedral_cube(2), style);
            for (const char* file : {"constant/polyMesh/points", "constant/polyMesh/faces", "constant/polyMesh/owner", "constant/polyMesh/neighbour", "constant/polyMesh/boundary",
                                     "constant/polyMesh/cellZones", "0.5/p", "0.5/U", "0.5/T", "0.5/S", "0.5/D"})
                keep(folder / name / (std::string(file) + (style.compressed ? ".gz" : "")), folder / name);
        }
    }

    /// Of a decomposed case the files that say how its processors fit together.
    void make_decomposed_samples(const std::filesystem::path& folder)
    {
        for (const bool with_addressing : {false, true}) {
            const auto path = folder / (with_addressing ? "addressed" : "bare");
            write_decomposed_foam_case(path, cube(2), std::vector<std::int32_t>{0, 0, 1, 1, 2, 2, 0, 1}, with_addressing);
            for (const char* file : {"boundary", "faces", "pointProcAddressing", "faceProcAddressing", "cellProcAddressing"})
                if (const auto damaged = path / "processor1/constant/polyMesh" / file; std::filesystem::exists(damaged)) keep(damaged, path);
        }
    }

    /// One damaged file more. Gives the name of the file that was read.
    void step(const std::string& only)
    {
        const Sample* sample = nullptr;
        do sample = &samples_[random_() % samples_.size()];
        while (sample->damaged.string().find(only) == std::string::npos);
        std::string bytes = sample->bytes;
        for (std::uint32_t i = random_() % 6; i < 6; ++i) damage(bytes);
        std::filesystem::remove(sample->damaged);       // arrays of the last one may still be mapped
        write_bytes(sample->damaged, bytes);
        describe(*sample, bytes);
        ReadOptions options;
        if (random_() % 4 == 0) options.blocks = {random_() % 2 == 0 ? "boundary" : "a"};
        read(sample->opened, options);
        write_bytes(sample->damaged, sample->bytes);
    }

    static void read(const std::filesystem::path& path, const ReadOptions& options)
    {
        ::alarm(20);
        try {
            read_mesh(path, options).validate();
        } catch (const Error&) {
        }
        ::alarm(0);
    }

private:
    void keep(const std::filesystem::path& damaged, const std::filesystem::path& opened) { samples_.push_back({damaged, opened, read_bytes(damaged)}); }

    void text(const std::filesystem::path& folder, const std::string& name, const std::string& bytes)
    {
        write_bytes(folder / name, bytes);
        keep(folder / name, folder / name);
    }

    void damage(std::string& bytes)
    {
        static const char* const numbers[] = {"-1", "0", "1", "2147483647", "2147483648", "4294967295", "-9223372036854775808", "18446744073709551615", "1e400", "nan", "99999999999999999999"};
        if (bytes.empty()) return;
        const std::size_t at = random_() % bytes.size();
        const std::size_t length = std::min<std::size_t>(bytes.size() - at, 1 + random_() % 40);
        switch (random_() % 8) {
        case 0: bytes[at] = static_cast<char>(random_()); break;
        case 1: bytes[at] ^= static_cast<char>(1 << random_() % 8); break;
        case 2: bytes.erase(at, length); break;
        case 3: bytes.insert(at, bytes.substr(at, length)); break;
        case 4: bytes.resize(at); break;
        case 5: {   // another number where there is one
            const std::size_t digit = bytes.find_first_of("0123456789", at);
            if (digit == std::string::npos) break;
            const std::size_t end = bytes.find_first_not_of("0123456789.", digit);
            bytes.replace(digit, (end == std::string::npos ? bytes.size() : end) - digit, numbers[random_() % std::size(numbers)]);
            break;
        }
        case 6: bytes.insert(at, 1, "<>\"/(){}[];#$ \n&'"[random_() % 17]); break;
        default: {  // a binary word of a value that is often wrong
            const std::uint64_t values[] = {0, 1, ~std::uint64_t{0}, std::uint64_t{1} << 31, std::uint64_t{1} << 32, std::uint64_t{1} << 62, 255};
            const std::uint64_t value = values[random_() % std::size(values)];
            std::memcpy(bytes.data() + at, &value, std::min<std::size_t>(bytes.size() - at, random_() % 2 == 0 ? 4 : 8));
        }
        }
    }

    /// For whoever finds the crash: the input, under a fixed name.
    void describe(const Sample& sample, const std::string& bytes)
    {
        const auto copy = std::filesystem::temp_directory_path() / ("reader_fuzz_last_" + sample.damaged.filename().string());
        if (copy != last_) std::filesystem::remove(last_);
        write_bytes(copy, bytes);
        last_ = copy;
        std::snprintf(last_name, sizeof last_name, "%s (as %s)", copy.c_str(), sample.damaged.c_str());
    }

    std::mt19937 random_;
    std::vector<Sample> samples_;
    std::filesystem::path last_;

public:
    static inline char last_name[2000] = "";
};

void say_which(int)
{
    const char text[] = "\nreader_fuzz: this file stopped a reader: ";
    [[maybe_unused]] auto written = ::write(2, text, sizeof text - 1);
    written = ::write(2, Fuzzer::last_name, std::strlen(Fuzzer::last_name));
    written = ::write(2, "\n", 1);
    ::_exit(1);
}

}  // namespace
}  // namespace meshard

int main(int argc, char** argv)
{
    using namespace meshard;
    double seconds = 10;
    std::uint32_t seed = 0;
    std::string only;
    bool read_files = false;
    for (int i = 1; i < argc; ++i) {
        const std::string option = argv[i];
        if (option == "--seconds" && i + 1 < argc) seconds = std::atof(argv[++i]);
        else if (option == "--seed" && i + 1 < argc) seed = static_cast<std::uint32_t>(std::atoll(argv[++i]));
        else if (option == "--only" && i + 1 < argc) only = argv[++i];
        else {
            Fuzzer::read(option, {});
            read_files = true;
        }
    }
    if (read_files) return 0;
    for (const int number : {SIGALRM, SIGABRT, SIGSEGV, SIGBUS}) ::signal(number, say_which);
    const TemporaryFolder folder;
    Fuzzer fuzzer(seed);
    fuzzer.make_samples(folder.path());
    fuzzer.make_decomposed_samples(folder.path());
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    long long count = 0;
    try {
        for (; std::chrono::steady_clock::now() < end; ++count) fuzzer.step(only);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "reader_fuzz: %s\nreader_fuzz: thrown for this file: %s\n", error.what(), Fuzzer::last_name);
        return 1;
    }
    std::printf("%lld damaged files were read or refused\n", count);
    return 0;
}
