// SPDX-License-Identifier: Apache-2.0
// meshard merge: merges a shards folder into one mesh file, and compares it with the source on request.
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/output_file.h"
#include "apps/program/verbs.h"
#include "io/bytes/content_hash.h"
#include "io/bytes/made_folders.h"
#include "io/mesh_io.h"
#include "io/shards/manifest.h"
#include "io/shards/subdomain_io.h"
#include "partition/nearest_name.h"

#include <filesystem>
#include <iostream>

namespace meshard {

namespace {

void check_output(const std::filesystem::path& output, const Manifest& manifest)
{
    const std::string extension = lower_extension(output);
    if (extension == ".vtu" || (extension == ".vtp" && manifest.kind == MeshKind::Surface)) return;
    if (extension == ".vtp")
        throw UsageError(
            "-o is '{}', but these shards are of an unstructured grid; use .vtu, and meshard convert for others.",
            output.string());
    throw UsageError("-o is '{}'; expected a name that ends in {}.", output.string(), extension_of(manifest.kind));
}

/// Returns a possible reason why the source differs: the file was changed after the cut. Empty if it was not.
std::string hint_of_change(const std::string& source, const Manifest& manifest)
{
    const std::string& hash = manifest.info.source_hash;
    if (hash.empty() || !std::filesystem::is_regular_file(source) || hash == hash_file(source)) return "";
    return " '" + source + "' is not the file that was cut: its hash differs from the manifest's.";
}

}  // namespace

int merge_command(std::span<const std::string> arguments)
{
    std::string folder;
    std::string output;
    std::string source;
    std::string compress = "none";
    CLI::App app(
        "Merges the shards of a folder into one mesh, in the order of the source. With --verify the result must equal\n"
        "the source bit for bit (points, cells, types, every array), otherwise the exit code is 1 and nothing is "
        "written.",
        "merge");
    add_named(app, "dir", folder, "DIR", "shards folder to merge")->required();
    add_named(app, "-o,--output", output, "FILE",
              "mesh to write: .vtu, for surfaces also .vtp; may be left out with --verify");
    add_named(app, "--verify", source, "SOURCE",
              "file from which the shards were cut: the result must equal it bit for bit");
    add_compress_option(app, compress);
    bool no_verify = false;
    add_verify_option(app, no_verify);
    InputAsOutput input_as_output{};
    add_overwrite_option(app, input_as_output);
    if (!parse_arguments(app, arguments)) return exit_code::ok;
    const WriteOptions options{.compression = parse_compression(compress)};
    if (output.empty() && source.empty())
        throw UsageError("nothing to do: name an output with -o, or a source with --verify.");

    const Manifest manifest = read_manifest(folder);
    if (!output.empty()) {
        check_output(output, manifest);
        require_output(output, {folder, source}, input_as_output);
    }
    show_progress("merging ...");
    const Mesh mesh = merge_subdomains(load_subdomains(folder, check_of(!no_verify)));
    if (!source.empty()) {
        const std::string found = difference(mesh, read_mesh(source));
        if (!found.empty()) {
            show_progress("");
            std::cout.flush();
            std::cerr << "meshard merge: '" << folder << "' (a) is not '" << source << "' (b): " << found
                      << hint_of_change(source, manifest) << std::endl;
            return exit_code::check_failed;
        }
    }
    if (!output.empty()) {
        const MadeFolders folders(output);
        write_mesh(output, mesh, options);
    }
    show_progress("");

    std::cout << folder << ": " << manifest.num_parts() << (manifest.num_parts() == 1 ? " part" : " parts")
              << " merged, " << mesh.num_cells() << " cells, " << mesh.num_points() << " points\n";
    if (!source.empty()) std::cout << "equal to " << source << " bit for bit\n";
    if (!output.empty()) std::cout << "written to " << output << '\n';
    return exit_code::ok;
}

}  // namespace meshard
