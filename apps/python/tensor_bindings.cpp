// SPDX-License-Identifier: Apache-2.0
#include "apps/python/bindings.h"
#include "partition/error.h"
#include "sharding/memory/recompute.h"
#include "sharding/tensor/direct_kernel.h"
#include "sharding/tensor/distribute_rows.h"
#include "sharding/tensor/exact_mode.h"
#include "sharding/tensor/rule_table.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <tuple>

namespace py = pybind11;

namespace meshard {
namespace {

using AxisExtents = std::vector<std::optional<Extents>>;

void check_extents(const Extents& given, const DeviceMesh& mesh, std::int64_t axis, std::int64_t dim,
                   std::optional<std::int64_t> total)
{
    const auto sum = std::accumulate(given.begin(), given.end(), std::int64_t{0});
    const bool is_negative = std::ranges::any_of(given, [](auto n) { return n < 0; });
    if (std::ssize(given) == mesh.size(axis) && !is_negative && (!total || sum == *total)) return;
    throw InvalidInput(
        "extents: expected one number for each of the {} ranks of the axis '{}', none negative{}; found [{}].",
        mesh.size(axis), mesh.axis_names()[axis],
        total ? fmt::format(", which add up to the {} entries of dimension {}", *total, dim) : "",
        fmt::join(given, ", "));
}

/// Makes the layout of a whole tensor of `sizes`, with even extents where none are given.
SpecPtr make_layout(const PythonMesh& mesh, const std::vector<Placement>& placements, const AxisExtents& extents,
                    std::optional<c10::IntArrayRef> sizes)
{
    const auto num_axes = static_cast<std::size_t>(mesh.mesh->num_axes());
    if (placements.size() != num_axes || (!extents.empty() && extents.size() != num_axes)) {
        throw InvalidInput(
            "placements: expected one (and, with extents, one list of extents or None) for each of the {} "
            "axes of the device mesh; "
            "found {} placements{}.",
            num_axes, placements.size(),
            extents.empty() ? "" : fmt::format(" and {} entries of extents", extents.size()));
    }
    std::vector<AxisLayout> axes(num_axes);
    for (std::size_t a = 0; a < num_axes; ++a) {
        axes[a].placement = placements[a];
        if (!placements[a].is_shard()) continue;
        const auto dim = placements[a].dim;
        if (dim < 0 || (sizes && dim >= std::ssize(*sizes))) {
            throw InvalidInput("placements: {} of a tensor that has no such dimension.", to_string(placements[a]));
        }
        const auto total = sizes ? std::make_optional((*sizes)[dim]) : std::nullopt;
        if (!extents.empty() && extents[a]) {
            check_extents(*extents[a], *mesh.mesh, a, dim, total);
            axes[a].extents = std::make_shared<Extents>(*extents[a]);
        } else if (total) {
            axes[a].extents = std::make_shared<Extents>(even_extents(*total, mesh.mesh->size(a)));
        } else {
            throw InvalidInput("distribute_tensor: a rank that passes None for the tensor must pass the extents.");
        }
    }
    return make_spec(mesh.mesh, axes);
}

/// Registers the rule that gathers all arguments, once for each operator of another library (also
/// torch.library.custom_op) that says it works on any device: its kernel would read the memory of a whole tensor, which
/// a sharded one does not have. The rule table's fallback serves only operators registered for one device.
void gather_foreign_operators()
{
    static const std::set<std::string> own = {"aten",   "prim", "prims", "profiler", "c10d", "_c10d_functional",
                                              "meshard"};
    static std::set<std::string> seen;
    static std::size_t num_operators = 0;
    const auto names = c10::Dispatcher::singleton().getAllOpNames();
    if (names.size() == num_operators) return;
    num_operators = names.size();
    for (const auto& name : names) {
        if (own.count(name.name.substr(0, name.name.find(':')))) continue;
        const auto full_name = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
        if (!seen.insert(full_name).second) continue;
        const auto op = c10::Dispatcher::singleton().findOp(name);
        if (!op || !op->hasSchema() || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse2) ||
            !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) {
            continue;
        }
        const RuleRegistration registration("gathered", {full_name.c_str()}, &gathered_rule);
    }
}

at::Tensor local_to_sharded(const at::Tensor& local, const PythonMesh& mesh, const std::vector<Placement>& placements)
{
    gather_foreign_operators();
    return from_local(local, mesh.mesh, placements);
}

at::Tensor distribute(const std::optional<at::Tensor>& whole, const PythonMesh& mesh,
                      const std::vector<Placement>& placements, const AxisExtents& extents, int source_rank)
{
    gather_foreign_operators();
    const auto sizes = whole ? std::make_optional(whole->sizes()) : std::nullopt;
    const bool is_source = mesh.mesh->all().rank() == source_rank;
    return distribute_rows(is_source && whole ? *whole : at::Tensor(), source_rank,
                           make_layout(mesh, placements, extents, sizes));
}

at::Tensor place_again(const at::Tensor& tensor, const std::vector<Placement>& placements, const AxisExtents& extents)
{
    if (extents.empty()) return redistribute(tensor, placements);
    return redistribute(tensor, make_layout({spec_of(tensor)->device_mesh}, placements, extents, tensor.sizes()));
}

AxisExtents extents_of(const at::Tensor& tensor)
{
    AxisExtents extents;
    for (const auto& axis : spec_of(tensor)->axes)
        extents.push_back(axis.is_shard() ? std::make_optional(*axis.extents) : std::nullopt);
    return extents;
}

std::vector<Placement> placements_of(const at::Tensor& tensor)
{
    std::vector<Placement> placements;
    for (const auto& axis : spec_of(tensor)->axes) placements.push_back(axis.placement);
    return placements;
}

/// Returns this rank's part as it lies, without reducing or gathering.
at::Tensor held_part(const at::Tensor& tensor)
{
    return local_of(tensor).detach();
}

/// The layout of one axis in Python's own types, for files: kind, reduction, dimension, extents (None where it is not
/// cut) and blocks.
using PortableAxis = std::tuple<int, int, std::int64_t, std::optional<Extents>, std::int64_t>;

std::vector<PortableAxis> portable_layout(const at::Tensor& tensor)
{
    std::vector<PortableAxis> axes;
    for (const auto& axis : spec_of(tensor)->axes) {
        axes.emplace_back(static_cast<int>(axis.placement.kind), static_cast<int>(axis.placement.reduction),
                          axis.placement.dim, axis.extents ? std::make_optional(*axis.extents) : std::nullopt,
                          axis.blocks);
    }
    return axes;
}

/// Makes a sharded tensor of this rank's part from what `portable_layout` returned, and from sizes and strides of the
/// whole.
/// @throws InvalidInput where they do not fit
at::Tensor with_portable_layout(const at::Tensor& part, const PythonMesh& mesh, const std::vector<PortableAxis>& axes,
                                const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides)
{
    std::vector<AxisLayout> layouts;
    for (const auto& [kind, reduction, dim, extents, blocks] : axes) {
        if (kind < 0 || kind > 2 || reduction < 0 || reduction > 2 || blocks < 1 || dim < 0 ||
            dim > std::ssize(sizes)) {
            throw InvalidInput("a sharded tensor's saved layout is damaged.");
        }
        layouts.push_back({{static_cast<Placement::Kind>(kind), static_cast<Reduction>(reduction), dim},
                           extents ? std::make_shared<const Extents>(*extents) : nullptr,
                           blocks});
    }
    const auto spec = make_spec(mesh.mesh, layouts);
    if (part.dim() != std::ssize(sizes) || strides.size() != sizes.size() ||
        spec->global_shape(part.sizes()) != sizes || spec->local_shape(sizes) != part.sizes().vec()) {
        throw InvalidInput("a sharded tensor's saved part does not fit its layout, {}.", to_string(*spec));
    }
    return wrap(part.detach(), spec, strides);
}

Placement partial_of(const std::string& op)
{
    if (op == "sum") return Partial();
    if (op == "max") return Partial(Reduction::Max);
    if (op == "min") return Partial(Reduction::Min);
    throw InvalidInput("Partial: expected the reduction 'sum', 'max' or 'min', found '{}'.", op);
}

void set_policy(const std::string& policy)
{
    if (policy == "silent")
        set_gather_policy(GatherPolicy::Silent);
    else if (policy == "warn")
        set_gather_policy(GatherPolicy::Warn);
    else if (policy == "refuse")
        set_gather_policy(GatherPolicy::Refuse);
    else
        throw InvalidInput("set_gather_policy: expected 'silent', 'warn' or 'refuse', found '{}'.", policy);
}

/// Keeps the events that the rule table reports.
class Recorder : public RuleObserver {
public:
    void called(const RuleEvent& event) override
    {
        events.push_back(event);
        if (outer) outer->called(event);
    }
    void refused(const std::string& op, const std::string& message) override
    {
        refusals.push_back(op);
        if (outer) outer->refused(op, message);
    }

    std::vector<RuleEvent> events;
    std::vector<std::string> refusals;
    RuleObserver* outer = nullptr;  // the recording within which this one began, which goes on
};

void bind_placements(py::module_& module)
{
    py::class_<Placement>(module, "Placement", "How a tensor lies on the ranks of one axis of a device mesh.")
        .def(
            "is_shard",
            [](const Placement& p, std::optional<std::int64_t> dim) { return p.is_shard() && (!dim || *dim == p.dim); },
            py::arg("dim") = py::none())
        .def("is_replicate", &Placement::is_replicate)
        .def("is_partial", &Placement::is_partial)
        .def_property_readonly("dim",
                               [](const Placement& p) {
                                   if (!p.is_shard()) throw py::attribute_error("only a Shard has a dimension");
                                   return p.dim;
                               })
        .def(
            "__eq__", [](const Placement& a, const Placement& b) { return a == b; }, py::is_operator())
        .def("__hash__", [](const Placement& p) { return std::hash<std::string>()(to_string(p)); })
        .def("__repr__", [](const Placement& p) { return to_string(p); })
        .def(py::pickle(
            [](const Placement& p) {
                return py::make_tuple(static_cast<int>(p.kind), static_cast<int>(p.reduction), p.dim);
            },
            [](const py::tuple& state) {
                return Placement{static_cast<Placement::Kind>(state[0].cast<int>()),
                                 static_cast<Reduction>(state[1].cast<int>()), state[2].cast<std::int64_t>()};
            }));
    module.def("Shard", &Shard, py::arg("dim"),
               "Shard(dim: int) -> Placement\n\nEach rank holds its own extent of dimension `dim`; extents may differ "
               "and be zero.");
    module.def("Replicate", &Replicate, "Replicate() -> Placement\n\nEach rank holds the whole.");
    module.def("Partial", &partial_of, py::arg("reduce_op") = "sum",
               "Partial(reduce_op: str = 'sum') -> Placement\n\nEach rank holds a tensor of the whole's shape; the "
               "value is their sum (or 'max', 'min'), which "
               "is pending.");
}

void bind_recorder(py::module_& module)
{
    py::class_<RuleEvent>(module, "RuleEvent", "One call of an operator, as the rule table handled it.")
        .def_readonly("op", &RuleEvent::op)
        .def_readonly("family", &RuleEvent::family)
        .def_readonly("inputs", &RuleEvent::inputs)
        .def_readonly("outputs", &RuleEvent::outputs)
        .def_readonly("num_messages", &RuleEvent::num_messages)
        .def_readonly("num_bytes", &RuleEvent::num_bytes)
        .def_readonly("gathered", &RuleEvent::gathered)
        .def("__repr__", [](const RuleEvent& e) {
            return fmt::format("{}: {} -> {}, {} messages", e.op, e.inputs, e.outputs, e.num_messages);
        });
    py::class_<Recorder>(module, "Recorder", "What record_rules gives.")
        .def(py::init<>())
        .def("start", [](Recorder& r) { r.outer = set_rule_observer(&r); })
        .def("stop", [](Recorder& r) { set_rule_observer(std::exchange(r.outer, nullptr)); })
        .def_readonly("events", &Recorder::events)
        .def_readonly("refusals", &Recorder::refusals);
    module.def("num_rule_calls", &num_rule_calls);
}

std::vector<at::Tensor> recomputed(const py::function& function, const std::vector<at::Tensor>& inputs)
{
    // Backward calls the function again in a thread of autograd, which may drop its last reference, too.
    const auto held = std::shared_ptr<py::function>(new py::function(function), [](py::function* last) {
        const py::gil_scoped_acquire gil;
        delete last;
    });
    const py::gil_scoped_release without_gil;
    return checkpoint(
        [held](const std::vector<at::Tensor>& arguments) {
            const py::gil_scoped_acquire gil;
            py::tuple given(arguments.size());
            for (std::size_t i = 0; i < arguments.size(); ++i) given[i] = arguments[i];
            return (*held)(*given).cast<std::vector<at::Tensor>>();
        },
        inputs);
}

}  // namespace

void bind_tensors(py::module_& module)
{
    bind_placements(module);
    bind_recorder(module);
    module.def(
        "is_sharded", &is_sharded, py::arg("tensor"),
        "is_sharded(tensor: torch.Tensor) -> bool\n\nWhether this is a sharded tensor of meshard. Not collective.");
    module.def("placements", &placements_of);
    module.def("extents", &extents_of);
    module.def("device_mesh", [](const at::Tensor& x) { return PythonMesh{spec_of(x)->device_mesh}; });
    module.def("describe", [](const at::Tensor& x) { return to_string(*spec_of(x)); });
    module.def("held_part", &held_part);
    module.def("is_stale", &is_stale);
    module.def("portable_layout", &portable_layout);
    module.def("with_portable_layout", &with_portable_layout);
    module.def("from_local", &local_to_sharded, WithoutGil());
    module.def("distribute_tensor", &distribute, WithoutGil());
    module.def("redistribute", &place_again, WithoutGil());
    module.def("to_local", &to_local, WithoutGil());
    module.def("full_tensor", &full_tensor, WithoutGil());
    module.def("checkpoint", &recomputed);
    module.def("set_gather_policy", &set_policy);
    module.def("set_exact_mode", &set_exact_mode);
}

}  // namespace meshard
