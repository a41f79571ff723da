// SPDX-License-Identifier: Apache-2.0
#include "apps/python/bindings.h"
#include "partition/error.h"
#include "sharding/transport/device_transport.h"
#include "sharding/transport/shared_memory_backend.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <pybind11/chrono.h>
#include <string>
#include <unistd.h>

namespace py = pybind11;

namespace meshard {
namespace {

using GroupsByAxis = std::map<std::string, c10d::ProcessGroup*>;

/// Makes rank groups from the process groups of torch.distributed, which are given by the name of their axis (`all` for
/// all ranks), for tensors of the CPU and for tensors of devices. With a store, ranks on one host communicate through
/// shared memory, and GPUs by their own transports, whose connections they make with the store; without a store torch's
/// transports carry everything. Tensors of a device that has no transport, or that ranks share, go by way of the host.
class ProcessGroups : public GroupFactory {
public:
    ProcessGroups(int rank, int size, const GroupsByAxis& groups, const GroupsByAxis& device_groups, c10d::Store* store,
                  std::chrono::milliseconds time_limit)
        : rank_(rank), size_(size), store_(c10::intrusive_ptr<c10d::Store>::reclaim_copy(store)),
          time_limit_(time_limit)
    {
        for (const auto& [axis, group] : groups) backends_[axis] = group->getBackend(c10::DeviceType::CPU);
        for (const auto& [axis, group] : device_groups)
            device_backends_[axis] = group->getBackend(c10::DeviceType::CUDA);
    }

    int rank() const override { return rank_; }
    int size() const override { return size_; }

    RankGroup make_group(const std::vector<int>& ranks, const std::string& axis,
                         std::shared_ptr<CommCounter> counter) override
    {
        if (ranks.size() == 1) return {nullptr, axis, std::move(counter)};
        const auto found = backends_.find(axis);
        if (found == backends_.end())
            throw InvalidInput("DeviceMesh: there is no process group for the axis '{}'.", axis);
        const auto backend = found->second;
        if (backend->getSize() != static_cast<int>(ranks.size())) {
            throw InvalidInput("DeviceMesh: the process group of the axis '{}' has {} ranks, the mesh has {}.", axis,
                               backend->getSize(), ranks.size());
        }
        if (!store_) {
            const auto own = device_backends_.find(axis);
            return {own == device_backends_.end() ? by_way_of_host(backend)
                                                  : with_device_backend(backend, c10::DeviceType::CUDA, own->second),
                    axis, std::move(counter)};
        }
        static std::map<std::vector<int>, int> made;  // an axis of the same ranks made again needs other keys
        const auto own = c10::make_intrusive<c10d::PrefixStore>(
            fmt::format("meshard/{}#{}", fmt::join(ranks, ","), made[ranks]++), store_);
        const auto names = process_names(*own, backend->getRank(), backend->getSize());
        const auto shared = connect_shared_memory(own, backend->getRank(), backend->getSize(), time_limit_,
                                                  [names](int rank) { return has_ended(names[rank]); });
        const auto host = shared ? shared : backend;
        const auto all = with_device_transports(host, own, time_limit_, "");
        return {all == host ? by_way_of_host(host) : all, axis, std::move(counter), names};
    }

private:
    int rank_, size_;
    c10::intrusive_ptr<c10d::Store> store_;
    std::chrono::milliseconds time_limit_;
    std::map<std::string, c10::intrusive_ptr<c10d::Backend>> backends_, device_backends_;
};

struct LivingMesh {
    std::weak_ptr<const DeviceMesh> mesh;
    std::int64_t number;  // of meshes made before it: the same in processes that were forked from this
};

/// Meshes that are alive, newest last. A tensor that is loaded from a file is put on the newest that fits.
std::vector<LivingMesh> living_meshes;
std::int64_t num_made = 0;

PythonMesh remembered(std::shared_ptr<const DeviceMesh> mesh)
{
    std::erase_if(living_meshes, [](const auto& living) { return living.mesh.expired(); });
    if (std::ranges::none_of(living_meshes, [&](const auto& living) { return living.mesh.lock() == mesh; }))
        living_meshes.push_back({mesh, num_made++});
    return {std::move(mesh)};
}

std::vector<std::int64_t> shape_of(const DeviceMesh& mesh)
{
    std::vector<std::int64_t> shape;
    for (std::int64_t a = 0; a < mesh.num_axes(); ++a) shape.push_back(mesh.size(a));
    return shape;
}

std::vector<std::int64_t> coordinate_of(const DeviceMesh& mesh)
{
    std::vector<std::int64_t> coordinate;
    for (std::int64_t a = 0; a < mesh.num_axes(); ++a) coordinate.push_back(mesh.coordinate(a));
    return coordinate;
}

std::optional<PythonMesh> living_mesh(const std::vector<std::string>& names, const std::vector<std::int64_t>& shape,
                                      const std::vector<std::int64_t>& coordinate, std::int64_t number)
{
    std::optional<PythonMesh> newest;
    for (auto held = living_meshes.rbegin(); held != living_meshes.rend(); ++held) {
        const auto mesh = held->mesh.lock();
        if (!mesh) continue;
        for (const auto& fitting : {mesh, mesh->in_a_row()}) {
            if (fitting->axis_names() != names || shape_of(*fitting) != shape || coordinate_of(*fitting) != coordinate)
                continue;
            if (held->number == number) return PythonMesh{fitting};
            if (!newest) newest = PythonMesh{fitting};
        }
    }
    return newest;
}

/// The number of a mesh among those that were made; -1 if it is not remembered.
std::int64_t number_of_mesh(const PythonMesh& mesh)
{
    const auto found =
        std::ranges::find_if(living_meshes, [&](const auto& living) { return living.mesh.lock() == mesh.mesh; });
    return found == living_meshes.end() ? -1 : found->number;
}

PythonMesh make_mesh(std::vector<std::int64_t> shape, std::vector<std::string> names, int rank, int size,
                     const GroupsByAxis& groups, const GroupsByAxis& device_groups, c10d::Store* store,
                     std::chrono::milliseconds time_limit)
{
    ProcessGroups factory(rank, size, groups, device_groups, store, time_limit);
    std::shared_ptr<const DeviceMesh> mesh;
    {
        const py::gil_scoped_release without_gil;
        mesh = DeviceMesh::create(factory, std::move(shape), std::move(names));
    }
    return remembered(std::move(mesh));
}

std::string transport_of(const PythonMesh& mesh, const std::string& device)
{
    const auto& backend = mesh.mesh->all().backend();
    return backend ? carrier_of(*backend, at::Device(device)).text() : "none";
}

std::int64_t axis_of(const PythonMesh& mesh, const std::variant<std::int64_t, std::string>& dim)
{
    if (const auto* name = std::get_if<std::string>(&dim)) return mesh.mesh->axis(*name);
    const auto num_axes = mesh.mesh->num_axes();
    const auto axis = std::get<std::int64_t>(dim);
    if (axis < -num_axes || axis >= num_axes) {
        throw InvalidInput("DeviceMesh: there is no axis {} among {}.", axis, num_axes);
    }
    return axis < 0 ? axis + num_axes : axis;
}

std::string describe(const PythonMesh& mesh)
{
    std::string text;
    for (std::int64_t a = 0; a < mesh.mesh->num_axes(); ++a) {
        text += fmt::format("{}={}, ", mesh.mesh->axis_names()[a], mesh.mesh->size(a));
    }
    return fmt::format("DeviceMesh({}rank {})", text, mesh.mesh->all().rank());
}

using Dim = std::variant<std::int64_t, std::string>;

}  // namespace

std::vector<std::string> process_names(c10d::Store& store, int rank, int size)
{
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    const auto own = fmt::format("{}:{}", host, getpid());
    store.set(fmt::format("process.{}", rank), std::vector<std::uint8_t>(own.begin(), own.end()));
    std::vector<std::string> names;
    for (int r = 0; r < size; ++r) {
        const auto bytes = store.get(fmt::format("process.{}", r));
        names.emplace_back(bytes.begin(), bytes.end());
    }
    return names;
}

void bind_device_mesh(py::module_& module)
{
    py::class_<PythonMesh>(module, "DeviceMesh",
                           "A grid of ranks with named axes. Made by init_device_mesh or from_torch_mesh.")
        .def(py::init(&make_mesh), py::arg("shape"), py::arg("mesh_dim_names"), py::arg("rank"), py::arg("num_ranks"),
             py::arg("groups"), py::arg("device_groups") = GroupsByAxis(), py::arg("store") = nullptr,
             py::arg("time_limit") = std::chrono::milliseconds(300'000))
        .def_static(
            "single", [] { return remembered(DeviceMesh::single()); },
            "One rank by itself, with the axis `domain`; needs no torch.distributed.")
        .def_property_readonly("mesh_dim_names",
                               [](const PythonMesh& m) { return py::tuple(py::cast(m.mesh->axis_names())); })
        .def_property_readonly("shape", [](const PythonMesh& m) { return py::tuple(py::cast(shape_of(*m.mesh))); })
        .def_property_readonly("ndim", [](const PythonMesh& m) { return m.mesh->num_axes(); })
        .def(
            "size",
            [](const PythonMesh& m, const std::optional<Dim>& dim) {
                return dim ? m.mesh->size(axis_of(m, *dim)) : m.mesh->num_ranks();
            },
            py::arg("mesh_dim") = py::none(), "Number of ranks, of one axis if it is given.")
        .def(
            "get_rank", [](const PythonMesh& m) { return m.mesh->all().rank(); }, "This rank's number in the mesh.")
        .def(
            "get_local_rank", [](const PythonMesh& m, const Dim& dim) { return m.mesh->coordinate(axis_of(m, dim)); },
            py::arg("mesh_dim") = Dim(0), "This rank's position along one axis.")
        .def(
            "get_coordinate", [](const PythonMesh& m) { return coordinate_of(*m.mesh); },
            "This rank's position along each axis.")
        .def(
            "__getitem__",
            [](const PythonMesh& m, const std::string& axis) { return remembered(m.mesh->sub_mesh(axis)); },
            py::arg("mesh_dim"), "The ranks along one axis that include this one, as a mesh of that axis alone.")
        .def(
            "__eq__", [](const PythonMesh& a, const PythonMesh& b) { return a.mesh == b.mesh; }, py::is_operator())
        .def("__hash__", [](const PythonMesh& m) { return std::hash<const void*>()(m.mesh.get()); })
        .def("__repr__", &describe)
        .def(
            "barrier", [](const PythonMesh& m) { m.mesh->all().barrier(); }, WithoutGil(),
            "Waits for all ranks. Collective.")
        .def("transport", &transport_of, py::arg("device") = "cpu", WithoutGil(),
             "What carries tensors of a device, such as `nccl` or `shm, by way of the host`; `none` on one rank. "
             "Collective: connects what is not connected "
             "yet.")
        .def_property_readonly(
            "num_messages", [](const PythonMesh& m) { return m.mesh->counter().num_calls(); },
            "How many collectives this rank has called on this mesh.")
        .def_property_readonly(
            "num_bytes", [](const PythonMesh& m) { return m.mesh->counter().total_bytes(); },
            "Bytes of those, of this rank.");
    module.def("living_mesh", &living_mesh);
    module.def("number_of_mesh", &number_of_mesh);
}

}  // namespace meshard
