// SPDX-License-Identifier: Apache-2.0
#include "apps/prediction.h"

#include <algorithm>
#include <numeric>

#include <unistd.h>

#include <torch/torch.h>

#include "apps/case_tensors.h"
#include "apps/checkpoint.h"
#include "apps/command_line.h"
#include "io/mesh_io.h"
#include "io/piece_io.h"
#include "io/subdomain_io.h"
#include "models/transolver.h"
#include "partition/error.h"
#include "partition/mesh_graph.h"
#include "partition/metis_partitioner.h"
#include "sharding/shard_tensor.h"

namespace meshard {
namespace {

constexpr const char* kSuffix = "_predicted";

std::filesystem::path choose_checkpoint(const std::filesystem::path& run_dir)
{
    for (const char* name : {"best", "last"}) {
        auto path = run_dir / "checkpoints" / (std::string(name) + ".safetensors");
        if (std::filesystem::exists(path)) return path;
    }
    throw IoError(run_dir.string() + " has no checkpoints/best.safetensors or last.safetensors. Is it the folder of a run, and has it trained for an epoch?");
}

DataConfig data_of_run(const std::filesystem::path& run_dir)
{
    return training_config(Settings::read(run_dir / "resolved_config.yaml", {}, training_rules())).data;
}

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
        if (!torch::isfinite(field).all().item<bool>()) throw Error("the predicted field '" + name + "' is not finite everywhere: the model of this run is broken.");
        if (has_array(mesh, data.on_cells, name)) name += kSuffix;
        auto& arrays = data.on_cells ? mesh.cell_data : mesh.point_data;
        std::erase_if(arrays, [&](const DataArray& array) { return array.name() == name; });   // of an earlier prediction
        const auto* begin = field.data_ptr<float>();
        arrays.push_back(DataArray::from(name, std::vector<float>(begin, begin + field.numel()), static_cast<std::int32_t>(count)));
    }
}

CaseFrame frame_of(const DataConfig& data, const std::array<double, 6>& bounds, const std::string& name,
                   const std::map<std::string, double>& values, bool is_speaker)
{
    auto config = data.frame;
    CaseSource source{name, {}, {}};
    if (const auto value = values.find(config.length); value != values.end()) {
        config.length = "none";
        auto frame = case_frame(config, bounds, source);
        if (!(value->second > 0)) throw UsageError("--set " + value->first + " must be above 0.");
        frame.length = value->second;
        return frame;
    }
    const bool is_column = config.length != "bounds" && config.length != "none" && config.length.find_first_not_of("0123456789.+-eE") != std::string::npos;
    if (is_column) {
        if (is_speaker) {
            warn("predict", name + ": no value for '" + config.length + "'; the longest edge of the bounding box is taken. Give it with --set " + config.length + "=...");
        }
        config.length = "bounds";
    }
    return case_frame(config, bounds, source);
}

/// What a rank holds of the input.
struct Part {
    Subdomain subdomain;
    std::array<double, 6> bounds{};     ///< of the whole
};

/// Cuts on the first rank, hands over by files beside the output, so that no other rank needs the whole.
Part distribute(const Mesh& whole, const std::filesystem::path& folder, World& world, const DeviceMesh& device_mesh)
{
    if (world.size() == 1) {
        Partition partition;
        partition.owners.assign(whole.num_rows(), 0);
        return {extract_subdomain(whole, Csr{}, partition, 0, 0), point_bounds(whole)};
    }
    if (world.rank() == 0) {
        const auto graph = mesh_graph(whole);
        const auto partition = partition_with_metis(graph, {.num_parts = world.size()});
        std::filesystem::remove_all(folder);
        save_subdomains(folder, extract_subdomains(whole, graph, partition, 0), {});
    }
    device_mesh.all().barrier();
    const auto manifest = read_manifest(folder);
    Part part{load_subdomain(folder, manifest, world.rank()), manifest.bounds};
    device_mesh.all().barrier();   // arrays are views into mapped files, which outlive their names
    if (world.rank() == 0) std::filesystem::remove_all(folder);
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

MeshKind kind_of_output(const std::filesystem::path& output)
{
    const auto extension = output.extension();
    if (extension == ".vtp" || extension == ".pvtp") return MeshKind::Surface;
    if (extension == ".vtu" || extension == ".pvtu") return MeshKind::Unstructured;
    throw UsageError("the output " + output.string() + " must end in .vtp, .vtu, .pvtp or .pvtu.");
}

}  // namespace

struct Predictor::Impl {
    std::filesystem::path checkpoint;
    DataConfig data;
    std::vector<std::int64_t> channels;
    Normalizer normalizer;
    Transolver model{nullptr};
};

Predictor::Predictor(const std::filesystem::path& run_dir) : impl_(std::make_unique<Impl>())
{
    impl_->checkpoint = choose_checkpoint(run_dir);
    impl_->data = data_of_run(run_dir);
    const Checkpoint checkpoint(impl_->checkpoint);
    const auto& description = checkpoint.description();
    const auto name = impl_->checkpoint.string();
    if (description.value("model_class", "") != "Transolver") {
        throw IoError(name + " holds a " + description.value("model_class", "model without a name") + "; this version predicts with Transolver.");
    }
    impl_->model = Transolver(transolver_options(description.at("model")));
    checkpoint.load_weights(*impl_->model);
    impl_->model->eval();
    impl_->normalizer = checkpoint.normalizer();
    for (const auto& field : description.at("fields")) impl_->channels.push_back(field.at("channels").get<std::int64_t>());
    if (impl_->channels.size() != impl_->data.fields.size()) throw IoError(name + " and resolved_config.yaml disagree in the number of fields.");
}

Predictor::~Predictor() = default;

const DataConfig& Predictor::data() const
{
    return impl_->data;
}

const std::vector<std::int64_t>& Predictor::channels() const
{
    return impl_->channels;
}

const std::filesystem::path& Predictor::checkpoint() const
{
    return impl_->checkpoint;
}

at::Tensor Predictor::predict(const at::Tensor& fx, const at::Tensor& embedding)
{
    torch::NoGradGuard no_grad;
    return impl_->normalizer.denormalize(impl_->model->forward(fx, embedding));
}

void predict_file(Predictor& predictor, const std::filesystem::path& input, const std::filesystem::path& output,
                  const std::map<std::string, double>& values, World& world)
{
    const auto kind = kind_of_output(output);
    const bool in_pieces = output.extension() == ".pvtp" || output.extension() == ".pvtu";
    const auto folder = std::filesystem::absolute(output).parent_path();
    if (!std::filesystem::is_directory(folder)) throw IoError("the output " + output.string() + " cannot be written: there is no folder " + folder.string() + ".");
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
    auto temporary = output;
    temporary += ".parts";
    auto part = distribute(whole, temporary, world, *device_mesh);
    auto& subdomain = part.subdomain;
    const auto rows = data.on_cells ? subdomain.cells.owned() : subdomain.points.owned();
    const auto frame = frame_of(data, part.bounds, input.filename().string(), values, world.rank() == 0);

    const auto inputs = point_inputs(subdomain.mesh, rows, data, frame, input.filename().string()).unsqueeze(0);
    const auto embedding = from_local(inputs, device_mesh, {Shard(1)});
    const auto fx = from_local(torch::ones({1, inputs.size(1), 1}), spec_of(embedding));
    const auto fields = to_local(predictor.predict(fx, embedding)).squeeze(0);   // (rows, channels)

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
