// SPDX-License-Identifier: Apache-2.0
// The module `meshard._learning` predicts with trained models, as `meshard predict` does. It is loaded at its first
// use, and takes what it shares with `meshard._core` from that module (CMakeLists.txt).
#include "apps/console/console.h"
#include "apps/console/error_text.h"
#include "apps/console/kept_warnings.h"
#include "apps/devices/rank_device.h"
#include "apps/learning/cases/mesh_handover.h"
#include "apps/learning/cases/usable_input.h"
#include "apps/learning/prediction/network_description.h"
#include "apps/learning/prediction/prediction.h"
#include "apps/learning/prediction/prediction_table.h"
#include "apps/learning/prediction/told_values.h"
#include "apps/python/python_error.h"
#include "apps/python/python_mesh.h"
#include "io/bytes/read_warnings.h"
#include "io/checkpoints/model_checkpoint.h"
#include "partition/error.h"
#include "partition/mesh/surface_facing.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace py = pybind11;

namespace meshard {
namespace {

using SharedMesh = std::shared_ptr<Mesh>;  // whose class is that of `meshard._meshes`
using MeshOrFile = std::variant<SharedMesh, std::filesystem::path>;
using MeansAndDeviations = std::map<std::string, std::pair<double, std::optional<double>>>;

/// What Python is given of a prediction.
struct Prediction {
    SharedMesh mesh;  // null but on the first rank
    std::vector<std::pair<std::string, at::Tensor>> fields, spread;
    MeansAndDeviations coefficients;  // none, and why
    std::string why;
    std::map<std::string, double> intervals;
    std::optional<double> isolation, feature_isolation;
    bool is_far = false;
    std::vector<ShapeSensitivity> sensitivities;
    std::vector<std::string> warnings;
};

/// Copies a whole tensor.
template <class T>
py::array_t<T> copied(const at::Tensor& tensor)
{
    const auto whole = tensor.contiguous();
    const std::vector<py::ssize_t> shape(whole.sizes().begin(), whole.sizes().end());
    return py::array_t<T>(shape, whole.const_data_ptr<T>());
}

py::array_t<float> to_numpy(const at::Tensor& rows)
{
    return copied<float>(rows.size(1) == 1 ? rows.squeeze(1) : rows);
}

py::dict to_numpy(const std::vector<std::pair<std::string, at::Tensor>>& fields)
{
    py::dict named;
    for (const auto& [name, rows] : fields) named[py::str(name)] = to_numpy(rows);
    return named;
}

/// Copies a mesh with the values of its arrays, which are the caller's and may change.
Mesh own_copy(const Mesh& mesh)
{
    auto own = mesh;
    const auto take = [](DataArray& array) {
        if (array.type() != ScalarType::String) array.mutable_bytes();
    };
    take(own.points);
    for (auto* arrays : {&own.point_data, &own.cell_data, &own.field_data}) std::ranges::for_each(*arrays, take);
    return own;
}

void add(MeansAndDeviations& all, const std::string& name, const std::vector<double>& values)
{
    const MeanOfPredictions found(values);
    if (found.mean) all[name] = {*found.mean, found.deviation};
}

/// Returns all rows on every rank, in the order of their ids; as they are where there is one rank, or none are defined.
/// Collective.
at::Tensor rows_on_all_ranks(const at::Tensor& rows, std::span<const std::int64_t> ids, const RankGroup& ranks)
{
    if (ranks.size() == 1 || !rows.defined()) return rows;
    auto whole = rows_on_first_rank(rows, ids, ranks);
    const auto num_rows = ranks.all_gather_integers(whole.size(0))[0];
    if (ranks.rank() != 0) whole = rows.new_empty({num_rows, rows.size(1)});
    ranks.broadcast(whole, 0);
    return whole;
}

/// While it exists, this thread computes as `meshard predict` does: without the caller's autocast, not in its inference
/// mode, since sensitivities need gradients, and with new tensors in single precision, which is said for all threads.
class OwnNumerics {
public:
    OwnNumerics()
    {
        const std::lock_guard lock(mutex_);
        if (num_inside_++ > 0) return;
        callers_type_ = torch::get_default_dtype();
        torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
    }
    ~OwnNumerics()
    {
        const std::lock_guard lock(mutex_);
        if (--num_inside_ == 0) torch::set_default_dtype(callers_type_);
    }
    OwnNumerics(const OwnNumerics&) = delete;
    OwnNumerics& operator=(const OwnNumerics&) = delete;

private:
    // Several threads may compute: the first to begin takes note of the caller's type, the last to end sets it again.
    static inline std::mutex mutex_;
    static inline int num_inside_ = 0;
    static inline caffe2::TypeMeta callers_type_;
    c10::impl::ExcludeDispatchKeyGuard without_autocast_{c10::autocast_dispatch_keyset};
    c10::InferenceMode for_gradients_too_{false};
};

/// @param index   of the device; beyond those that there are it is refused, as by torch
at::Device device_named(const std::string& type, int index)
{
    const auto device = device_of_rank(type, {.local_rank = std::max(0, index)});
    if (!device.is_cpu() && device.index() != index)
        throw InvalidInput("load: there is no device '{}:{}' here.", type, index);
    return device;
}

/// Trained models that predict together.
class Models {
public:
    /// @param in_volume   of runs with surface and volume, predict on the volume
    /// @param orient      as of `--orient`; empty: as the runs did
    /// @param ranks       that share each mesh; null: this one alone
    Models(const std::vector<std::filesystem::path>& runs, bool in_volume, const std::string& orient,
           const std::string& device, int device_index, const PythonMesh* ranks)
        : device_(device_named(device, device_index)), device_mesh_(ranks ? ranks->mesh : DeviceMesh::single())
    {
        const OwnNumerics whatever_the_caller_set;
        const KeptWarnings warnings;
        for (const auto& run : runs) {
            const std::size_t part = in_volume && num_trained_parts(run) > 1 ? 1 : 0;
            const bool is_file = std::filesystem::is_regular_file(run) && is_checkpoint_file(run);
            models_.push_back(is_file ? Predictor::from_file(run, {}, part) : Predictor::from_run(run, part));
            if (!orient.empty()) models_.back().set_orient(parse_orient(orient));
            const auto& data = models_.back().data();
            if (data.is_grid || data.series.is_on)
                throw InvalidInput("{} learnt {}, on which Python does not predict yet. Use `meshard predict`.",
                                   run.string(), data.is_grid ? "regular grids" : "simulations in time");
        }
        require_same_fields(models_, false);
        for (const auto& note : models_.front().notes()) warn("predict", note);
        for (const auto& doubt : ensemble_warnings(models_)) warn("predict", doubt);
        warnings_ = warnings.texts();
    }

    /// Returns `network_description` and `network_tensors` of the first model.
    std::pair<std::string, py::dict> network() const
    {
        py::dict named;
        for (const auto& [name, tensor] : network_tensors(models_.front()))
            named[py::str(name)] = copied<float>(tensor);
        return {network_description(models_.front()).dump(), std::move(named)};
    }

    /// Returns `mesh_inputs` of the first model, by name, and what is doubtful.
    std::pair<py::dict, std::vector<std::string>> network_inputs(const MeshOrFile& given,
                                                                 const PredictionOptions& options)
    {
        MeshInputs told;
        std::vector<std::string> doubts;
        {
            const py::gil_scoped_release without_gil;
            const std::lock_guard one_at_a_time(in_use_);
            const OwnNumerics whatever_the_caller_set;
            const KeptWarnings warnings;
            told = mesh_inputs(models_.front(), mesh_input(given, options), options);
            doubts = warnings.texts();
        }
        auto named = to_numpy(told.others);
        named["points"] = copied<double>(told.points);
        named["bounds"] = py::array_t<double>(std::ssize(told.bounds), told.bounds.data());
        return {std::move(named), std::move(doubts)};
    }

    /// Collective over the ranks.
    Prediction predict(const MeshOrFile& given, const PredictionOptions& options)
    {
        const py::gil_scoped_release without_gil;
        const std::lock_guard one_at_a_time(in_use_);
        const OwnNumerics whatever_the_caller_set;
        const KeptWarnings warnings;
        const auto input = mesh_input(given, options);
        auto found = predict_mesh(models_, input, options, device_mesh_, device_);

        Prediction prediction{.why = found.forces.why};
        const auto& model = models_.front();
        const auto& ranks = device_mesh_->all();
        for (auto* rows : {&found.fields, &found.spread}) *rows = rows_on_all_ranks(*rows, found.rows, ranks);
        auto& arrays = arrays_at(found.whole, on_cells());
        read_together(ranks, [&] {
            if (ranks.rank() != 0) return;
            auto replaced = add_fields(arrays, found.fields, found.spread, model);
            std::ranges::copy(add_sensitivities(found.whole, found.sensitivities), std::back_inserter(replaced));
            warn_of_replaced(input.name, replaced);
            prediction.mesh = std::make_shared<Mesh>(std::move(found.whole));
        });
        prediction.sensitivities = std::move(found.sensitivities);
        std::int64_t first = 0;
        for (std::size_t f = 0; f < model.channels().size(); ++f) {
            const auto& name = model.data().fields[f].name;
            const auto count = model.channels()[f];
            prediction.fields.emplace_back(name, found.fields.narrow(1, first, count));
            if (found.spread.defined()) prediction.spread.emplace_back(name, found.spread.narrow(1, first, count));
            first += count;
        }
        auto& coefficients = prediction.coefficients;
        for (const auto& [name, values] : found.forces.of_fields) add(coefficients, name, values);
        for (const auto& [name, values] : found.forces.of_head) add(coefficients, name + "_head", values);
        for (const auto& [name, values] : found.forces.of_shape) add(coefficients, name + "_shape", values);
        prediction.intervals = found.forces.intervals;
        prediction.isolation = MeanOfPredictions(found.forces.isolation).mean;
        prediction.feature_isolation = MeanOfPredictions(found.forces.feature_isolation).mean;
        prediction.is_far = found.forces.is_far;
        prediction.warnings = warnings.texts();
        return prediction;
    }

    /// Whether a prediction needs to know a surface that is not the mesh.
    bool needs_wall() const
    {
        return std::ranges::any_of(models_, [](const auto& m) { return m.data().needs_wall() || m.needs_body(); });
    }
    bool on_cells() const { return models_.front().data().on_cells; }
    const std::vector<std::string>& warnings() const { return warnings_; }

    /// Returns name and number of components of each field.
    std::vector<std::pair<std::string, std::int64_t>> targets() const
    {
        std::vector<std::pair<std::string, std::int64_t>> all;
        const auto& model = models_.front();
        for (std::size_t f = 0; f < model.channels().size(); ++f)
            all.emplace_back(model.data().fields[f].name, model.channels()[f]);
        return all;
    }

    std::vector<ToldValue> inputs() const { return told_values(models_); }

    /// Returns what drag and lift need and neither the runs nor the values give.
    std::vector<std::string> missing_for_forces(const std::map<std::string, double>& values) const
    {
        return meshard::missing_for_forces(models_.front(), values);
    }

    std::vector<std::filesystem::path> checkpoints() const
    {
        std::vector<std::filesystem::path> all;
        for (const auto& model : models_) all.push_back(model.checkpoint());
        return all;
    }

    std::string device() const { return device_.str(); }
    std::int64_t num_ranks() const { return device_mesh_->num_ranks(); }

private:
    /// Finds a mesh, and checks that the models are told of it all that they need to know.
    MeshInput mesh_input(const MeshOrFile& given, const PredictionOptions& options) const
    {
        const auto list = [](const std::filesystem::path& file) {
            return file.empty() ? std::vector<std::string>() : std::vector{file.string()};
        };
        require_asked_for(models_, options, list(options.wall), list(options.other_part));
        // Several ranks hand over their parts of a mesh by files there.
        MeshInput input{.name = "the mesh", .output = std::filesystem::temp_directory_path() / "meshard"};
        const auto* const mesh = std::get_if<SharedMesh>(&given);
        if (mesh) {
            input.read = [mesh = *mesh] { return own_copy(*mesh); };
        } else {
            input.file = std::get<std::filesystem::path>(given);
            input.name = input.file.filename().string();
        }
        const auto& ranks = device_mesh_->all();
        // What the first rank reads the others need not have.
        if (ranks.all_gather_integers(!mesh && !std::filesystem::exists(input.file))[0] != 0)
            throw IoError(input.file.string() +
                          (ranks.rank() == 0 ? " does not exist." : " does not exist where the first rank reads it."));
        read_together(ranks, [&] {
            if (ranks.rank() == 0 && mesh && options.wall.empty() &&
                std::ranges::any_of(models_, [](const auto& m) { return m.data().needs_wall(); }))
                throw InvalidInput(
                    "the patches of the wall are read from the mesh's file. Give the path of the mesh, or "
                    "of the wall.");
        });
        return input;
    }

    at::Device device_;
    std::shared_ptr<const DeviceMesh> device_mesh_;
    std::vector<Predictor> models_;
    std::vector<std::string> warnings_;
    std::mutex in_use_;  // predicting sets modes of the models
};

void bind_models(py::module_& module)
{
    py::class_<ToldValue>(module, "Input", "A number that a surrogate is told of a case.")
        .def_readonly("name", &ToldValue::name)
        .def_readonly("required", &ToldValue::is_required)
        .def_readonly("for_forces", &ToldValue::is_for_forces)
        .def_readonly("trained", &ToldValue::trained);
    py::class_<ShapeSensitivity>(module, "ShapeSensitivity")
        .def_readonly("value", &ShapeSensitivity::value)
        .def_property_readonly("gradient", [](const ShapeSensitivity& s) { return copied<double>(s.gradient); })
        .def_property_readonly("normal", [](const ShapeSensitivity& s) { return copied<double>(s.normal); });
    py::class_<Prediction>(module, "Prediction")
        .def_readonly("mesh", &Prediction::mesh)
        .def_property_readonly("fields", [](const Prediction& p) { return to_numpy(p.fields); })
        .def_property_readonly("spread", [](const Prediction& p) { return to_numpy(p.spread); })
        .def_readonly("coefficients", &Prediction::coefficients)
        .def_readonly("why", &Prediction::why)
        .def_readonly("intervals", &Prediction::intervals)
        .def_readonly("isolation", &Prediction::isolation)
        .def_readonly("feature_isolation", &Prediction::feature_isolation)
        .def_readonly("is_far", &Prediction::is_far)
        .def_readonly("sensitivities", &Prediction::sensitivities)
        .def_readonly("warnings", &Prediction::warnings);
    py::class_<Models>(module, "Models")
        .def(py::init<const std::vector<std::filesystem::path>&, bool, const std::string&, const std::string&, int,
                      const PythonMesh*>(),
             py::call_guard<py::gil_scoped_release>())
        .def("predict",
             [](Models& models, const MeshOrFile& mesh, const std::map<std::string, double>& values,
                const std::filesystem::path& wall, const std::filesystem::path& other_part, bool with_forces,
                const std::vector<std::string>& sensitivities, bool in_double) {
                 return models.predict(mesh, {.values = values,
                                              .wall = wall,
                                              .other_part = other_part,
                                              .with_forces = with_forces,
                                              .sensitivities = sensitivities,
                                              .in_double = in_double});
             })
        .def("network", &Models::network)
        .def("network_inputs",
             [](Models& models, const MeshOrFile& mesh, const std::map<std::string, double>& values,
                const std::filesystem::path& wall) {
                 return models.network_inputs(mesh, {.values = values, .wall = wall});
             })
        .def("missing_for_forces", &Models::missing_for_forces)
        .def_property_readonly("needs_wall", &Models::needs_wall)
        .def_property_readonly("on_cells", &Models::on_cells)
        .def_property_readonly("warnings", &Models::warnings)
        .def_property_readonly("targets", &Models::targets)
        .def_property_readonly("inputs", &Models::inputs)
        .def_property_readonly("checkpoints", &Models::checkpoints)
        .def_property_readonly("device", &Models::device)
        .def_property_readonly("num_ranks", &Models::num_ranks);
}

}  // namespace
}  // namespace meshard

PYBIND11_MODULE(_learning, module)
{
    module.doc() = "Bindings of meshard's trained models. Use `meshard.load`.";
    py::register_local_exception_translator([](std::exception_ptr error) {
        const auto throw_as = [](const char* type, const std::exception& what) {
            meshard::set_python_error(type, meshard::without_function_name(meshard::error_text(what)));
        };
        try {
            if (error) std::rethrow_exception(error);
        } catch (const meshard::UsageError& wrong) {
            throw_as("InvalidInput", wrong);
        } catch (const meshard::InvalidInput& invalid) {
            throw_as("InvalidInput", invalid);
        } catch (const meshard::IoError& failed) {
            throw_as("IoError", failed);
        } catch (const meshard::CommunicationError& failed) {
            throw_as("CommunicationError", failed);
        } catch (const meshard::Error& other) {
            throw_as("Error", other);
        }
    });
    meshard::set_read_warning_handler([](const std::string& text) { meshard::warn("predict", text); });
    meshard::bind_models(module);
}
