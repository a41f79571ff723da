// SPDX-License-Identifier: Apache-2.0
#include "apps/training/prediction.h"

#include "apps/program/command_line.h"
#include "apps/training/case_tensors.h"
#include "io/bytes/interruption.h"
#include "io/mesh_io.h"
#include "io/shards/piece_io.h"
#include "io/shards/subdomain_io.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/error.h"
#include "partition/mesh/mesh_graph.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/torch.h>

#include <algorithm>
#include <numeric>
#include <unistd.h>

namespace meshard {
namespace {

constexpr const char* kSuffix = "_predicted";

bool has_array(const Mesh& mesh, bool on_cells, const std::string& name)
{
    return find_array(on_cells ? mesh.cell_data : mesh.point_data, name) != nullptr;
}

/// Adds the channels of `values`, (rows, channels), as arrays. Refuses what is not finite.
void add_fields(Mesh& mesh, const at::Tensor& values, const Predictor& predictor)
{
    const auto& data = predictor.data();
    std::int64_t channel = 0;
    for (std::size_t f = 0; f < data.fields.size(); ++f) {
        const auto count = predictor.channels()[f];
        const auto field = values.narrow(1, channel, count).contiguous();
        channel += count;
        auto name = data.fields[f].name;
        if (!torch::isfinite(field).all().item<bool>())
            throw Error("the predicted field '" + name + "' is not finite everywhere: the model of this run is broken.");
        if (has_array(mesh, data.on_cells, name)) name += kSuffix;
        auto& arrays = data.on_cells ? mesh.cell_data : mesh.point_data;
        std::erase_if(arrays, [&](const DataArray& array) { return array.name() == name; });  // of an earlier prediction
        const auto* begin = field.data_ptr<float>();
        arrays.push_back(DataArray::from(name, std::vector<float>(begin, begin + field.numel()), static_cast<std::int32_t>(count)));
    }
}

CaseFrame frame_of(const DataConfig& data, const std::array<double, 6>& bounds, const std::string& name, const std::map<std::string, double>& values,
                   bool is_speaker)
{
    auto config = data.frame;
    CaseSource source{name, {}, {}};
    if (const auto value = values.find(config.length); value != values.end()) {
        config.length = "none";
        auto frame = case_frame(config, bounds, source);
        if (!(value->second > 0)) throw UsageError("--set " + value->first + " must be above 0.");
        frame.lengths.fill(value->second);
        return frame;
    }
    if (is_column(config.length)) {
        if (is_speaker) {
            warn("predict",
                 name + ": no value for '" + config.length + "'; the longest edge of the bounding box is taken. Give it with --set " + config.length + "=...");
        }
        config.length = "bounds";
    }
    return case_frame(config, bounds, source);
}

/// Adds what the model is told of the case besides its points.
void tell_of_case(PointInputs& inputs, const Predictor& predictor, const std::map<std::string, double>& values)
{
    const auto value_of = [&](const std::string& name) {
        const auto found = values.find(name);
        if (found == values.end()) throw UsageError("the model is told '" + name + "' of a case. Give it with --set " + name + "=...");
        return found->second;
    };
    auto constants = predictor.constants();
    for (const auto& name : predictor.data().constants) constants.push_back(value_of(name));
    if (!constants.empty()) inputs.constants = torch::tensor(std::vector<float>(constants.begin(), constants.end())).unsqueeze(0);

    auto time = predictor.time();
    if (!predictor.data().time.empty()) time = value_of(predictor.data().time);
    if (time) inputs.time = torch::tensor({static_cast<float>(*time)});
}

/// What a rank holds of the input.
struct Part {
    Subdomain subdomain;
    std::array<double, 6> bounds{};  ///< of the whole
};

/// A folder of shards for the time of a run: gone when this ends, also by an error or an interruption. `path` is empty where there is none.
class TemporaryShards {
public:
    explicit TemporaryShards(std::filesystem::path path) : path_(std::move(path)) {}
    ~TemporaryShards()
    {
        std::error_code ignored;
        if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
    }
    TemporaryShards(const TemporaryShards&) = delete;
    TemporaryShards& operator=(const TemporaryShards&) = delete;

private:
    UnfinishedOutput unfinished_;
    std::filesystem::path path_;
};

/// Cuts on the first rank, hands over by files beside the output, so that no other rank needs the whole.
Part distribute(const Mesh& whole, const std::filesystem::path& output, World& world, const DeviceMesh& device_mesh)
{
    if (world.size() == 1) {
        Partition partition;
        partition.owners.assign(whole.num_rows(), 0);
        return {extract_subdomain(whole, Csr{}, partition, 0, 0), point_bounds(whole)};
    }
    // The first rank's process is in the name: two runs may write the same output.
    const std::array<std::int64_t, 1> own_process{getpid()};
    const auto process = device_mesh.all().all_gather_integers(own_process)[0][0];
    const auto folder = output.parent_path() / ("." + output.filename().string() + ".parts-" + std::to_string(process));
    const TemporaryShards temporary(world.rank() == 0 ? folder : std::filesystem::path());
    if (world.rank() == 0) {
        const auto graph = mesh_graph(whole);
        const auto partition = partition_with_metis(graph, {.num_parts = world.size()});
        save_subdomains(folder, extract_subdomains(whole, graph, partition, 0), {});
    }
    device_mesh.all().barrier();
    const auto manifest = read_manifest(folder);
    Part part{load_subdomain(folder, manifest, world.rank()), manifest.bounds};
    device_mesh.all().barrier();  // arrays are views into mapped files, which outlive their names
    return part;
}

/// All rows on every rank, in the order of the whole.
at::Tensor gather_rows_by_id(const at::Tensor& rows, std::span<const std::int64_t> ids, const RankGroup& group)
{
    const std::array<std::int64_t, 1> own{rows.size(0)};
    std::vector<std::int64_t> counts;
    for (const auto& count : group.all_gather_integers(own)) counts.push_back(count[0]);
    const auto own_ids = torch::tensor(std::vector<std::int64_t>(ids.begin(), ids.end()), torch::kLong);
    const auto all_rows = group.all_gather_rows(rows.contiguous(), counts);
    const auto all_ids = group.all_gather_rows(own_ids, counts);
    auto ordered = torch::empty_like(all_rows);
    ordered.index_copy_(0, all_ids, all_rows);
    return ordered;
}

std::int64_t machine_memory_bytes()
{
    return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

MeshKind kind_of_output(const std::filesystem::path& output)
{
    const auto extension = output.extension();
    if (extension == ".vtp" || extension == ".pvtp") return MeshKind::Surface;
    if (extension == ".vtu" || extension == ".pvtu") return MeshKind::Unstructured;
    throw UsageError("the output " + output.string() + " must end in .vtp, .vtu, .pvtp or .pvtu.");
}

}  // namespace

bool is_column(const std::string& length)
{
    return length != "bounds" && length != "none" && length.find_first_not_of("0123456789.+-eE,") != std::string::npos;
}

void predict_file(Predictor& predictor, const std::filesystem::path& input, const std::filesystem::path& output, const std::map<std::string, double>& values,
                  std::optional<MemoryMode> memory, World& world)
{
    const auto kind = kind_of_output(output);
    const bool in_pieces = output.extension() == ".pvtp" || output.extension() == ".pvtu";
    const auto folder = std::filesystem::absolute(output).parent_path();
    const auto device_mesh = DeviceMesh::create(world, {world.size()}, {"domain"});
    const auto& data = predictor.data();

    Mesh whole;
    if (world.rank() == 0) {
        whole = read_mesh(input);
        whole.kind = kind;
        if ((data.on_cells ? whole.num_cells() : whole.num_points()) == 0) {
            throw InvalidInput(input.string() + " has no " + (data.on_cells ? "cells" : "points") + " to predict on.");
        }
    }
    auto part = distribute(whole, output, world, *device_mesh);
    auto& subdomain = part.subdomain;
    const auto rows = data.on_cells ? subdomain.cells.owned() : subdomain.points.owned();
    const auto frame = frame_of(data, part.bounds, input.filename().string(), values, world.rank() == 0);

    const auto told = point_inputs(subdomain.mesh, rows, data, frame, input.filename().string());
    const auto num_rows = static_cast<std::int64_t>(rows.size());
    predictor.set_memory(memory ? *memory : predictor.memory_for(num_rows, machine_memory_bytes() / 4 / world.size()));
    auto inputs = sharded_inputs(told, rows, device_mesh);
    tell_of_case(inputs, predictor, values);
    const auto fields = to_local(predictor.predict(inputs)).squeeze(0);  // (rows, channels)

    if (!in_pieces) {
        const auto all = gather_rows_by_id(fields, rows, device_mesh->all());
        if (world.rank() == 0) {
            add_fields(whole, all, predictor);
            write_mesh(output, whole);
        }
        device_mesh->all().barrier();
        return;
    }
    add_fields(subdomain.mesh, fields, predictor);
    const auto pieces = output.stem().string() + "_pieces";
    const auto piece_name = [&](int rank) {
        auto number = std::to_string(rank);
        number.insert(0, 4 - std::min<std::size_t>(4, number.size()), '0');
        return pieces + "/piece_" + number + extension_of(kind);
    };
    if (world.rank() == 0) std::filesystem::remove(output);  // an earlier index must not name pieces of two runs, should this one end early
    device_mesh->all().barrier();
    std::filesystem::create_directories(folder / pieces);
    write_piece(folder / piece_name(world.rank()), subdomain);
    device_mesh->all().barrier();
    if (world.rank() == 0) {
        std::vector<std::string> sources;
        for (int rank = 0; rank < world.size(); ++rank) sources.push_back(piece_name(rank));
        write_piece_index(output, subdomain, sources);
    }
    device_mesh->all().barrier();
}

}  // namespace meshard
