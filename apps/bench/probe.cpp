// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/probe.h"

#include "apps/console/error_text.h"
#include "apps/devices/rank_device.h"
#include "apps/learning/checkpoints/tensor_file.h"
#include "partition/error.h"
#include "sharding/parameters/move_module.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"

#include <fmt/core.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>

namespace meshard {
namespace {

/// Counts the calls of operators that the rule table reports.
class Recorder : public RuleObserver {
public:
    void called(const RuleEvent& event) override
    {
        const auto same = [&](const ProbedOperator& known) {
            return known.name == event.op && known.inputs == event.inputs && known.outputs == event.outputs &&
                   known.gathered == event.gathered;
        };
        auto found = std::ranges::find_if(operators, same);
        if (found == operators.end()) {
            operators.push_back({event.op, event.family, event.inputs, event.outputs, 0, 0, 0, event.gathered});
            found = operators.end() - 1;
        }
        ++found->num_calls;
        found->num_messages += event.num_messages;
        found->num_bytes += event.num_bytes;
    }

    void refused(const std::string& op, const std::string& message) override
    {
        if (!refusal.empty()) return;
        refused_operator = op;
        refusal = message;
    }

    std::vector<ProbedOperator> operators;
    std::string refused_operator, refusal;
};

/// Makes the rule table report this thread's operators to `recorder` while it lives.
class Recording {
public:
    explicit Recording(Recorder& recorder) { set_rule_observer(&recorder); }
    ~Recording() { set_rule_observer(nullptr); }
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
};

std::string first_line(const std::string& text)
{
    return text.substr(0, std::min<std::size_t>(text.find('\n'), 300));
}

/// Returns the last line that is neither empty nor part of a stack trace.
std::string last_line(const std::string& text)
{
    std::istringstream lines(text);
    std::string line, last;
    while (std::getline(lines, line)) {
        if (!line.empty() && !line.starts_with("frame #") && !line.starts_with("Exception raised from"))
            last = line.substr(0, 300);
    }
    return last;
}

torch::jit::Module load(const ProbeRequest& request, const at::Device& device)
{
    if (request.model.extension() == ".pt2")
        throw InvalidInput("{0} is a program of torch.export, which LibTorch runs in Python only. There the probe is "
                           "meshard.probe(torch.export.load('{0}').module(), inputs, mesh), as in docs/python.md.",
                           request.model.string());
    try {
        auto model = torch::jit::load(request.model.string(), torch::kCPU);
        if (request.train)
            model.train();
        else if (model.hasattr("training"))
            model.eval();
        for (const auto& parameter : model.parameters()) move_in_place(parameter, device);
        for (const auto& buffer : model.buffers()) move_in_place(buffer, device);
        return model;
    } catch (const std::exception& error) {
        throw IoError(
            "{} cannot be read as a TorchScript model: {}. Write it in Python with torch.jit.script(model).save(path).",
            request.model.string(), first_line(error_text(error)));
    }
}

/// Finds the arguments of forward, in order, among the file's tensors.
std::vector<at::Tensor> arguments_of(const torch::jit::Module& model, const NamedArrays& file,
                                     const ProbeRequest& request)
{
    std::vector<at::Tensor> inputs;
    const auto& arguments = model.get_method("forward").function().getSchema().arguments();
    for (std::size_t k = 1; k < arguments.size(); ++k) {  // after self
        const auto* array = file.find(arguments[k].name());
        if (!array && k == 1) array = file.find("input");
        if (array) {
            inputs.push_back(to_tensor(*array));
            continue;
        }
        if (arguments[k].default_value()) break;
        std::string names;
        for (const auto& known : file.arrays) names += (names.empty() ? "'" : ", '") + known.name + "'";
        throw InvalidInput("{} has no tensor '{}'{}, an argument of {}; it has {}. Add it.", request.input.string(),
                           arguments[k].name(), k == 1 ? " or 'input'" : "", request.model.string(),
                           names.empty() ? "none" : names);
    }
    if (inputs.empty())
        throw InvalidInput("{}: its forward takes no tensor, so that there is nothing to cut.", request.model.string());
    return inputs;
}

/// Collects all tensors of a result that may be nested.
void collect(const c10::IValue& value, std::vector<at::Tensor>& tensors)
{
    if (value.isTensor()) {
        tensors.push_back(value.toTensor());
    } else if (value.isTuple()) {
        for (const auto& element : value.toTupleRef().elements()) collect(element, tensors);
    } else if (value.isList()) {
        for (const auto& element : value.toListRef()) collect(element, tensors);
    } else if (value.isGenericDict()) {
        for (const auto& entry : value.toGenericDict()) collect(entry.value(), tensors);
    } else if (value.isDouble() || value.isInt() || value.isBool()) {
        tensors.push_back(torch::scalar_tensor(value.toScalar(), torch::kDouble));
    }
}

std::string numbered(const std::string& name, std::size_t i)
{
    return i == 0 ? name : fmt::format("{}.{}", name, i);
}

/// Runs the model and returns all tensors that are compared, by name and in their layouts.
std::vector<std::pair<std::string, at::Tensor>> run(torch::jit::Module model, const std::vector<at::Tensor>& inputs,
                                                    const std::optional<at::Tensor>& grad_output,
                                                    const ProbeRequest& request)
{
    torch::manual_seed(0);  // the same draws in both runs
    std::vector<c10::IValue> arguments;
    for (const auto& input : inputs) arguments.emplace_back(input);
    const torch::AutoGradMode recording(request.backward);
    std::vector<at::Tensor> outputs;
    collect(model.forward(arguments), outputs);
    if (outputs.empty()) throw InvalidInput("{}: its forward returns no tensor.", request.model.string());

    std::vector<std::pair<std::string, at::Tensor>> tensors;
    if (request.backward) {
        at::Tensor loss;
        for (const auto& output : outputs) {
            if (!output.requires_grad()) continue;
            if (grad_output && grad_output->sizes() != output.sizes()) {
                throw InvalidInput("{}: 'grad_output' does not have the shape of the model's "
                                   "output. Give it one factor for each value.",
                                   request.input.string());
            }
            const auto weights =
                grad_output
                    ? *grad_output
                    : at::arange(output.numel(), at::kDouble).cos().reshape(output.sizes()).to(output.options());
            const auto sum = (output * weights).sum();
            loss = loss.defined() ? loss + sum : sum;
            if (grad_output) break;
        }
        if (!loss.defined())
            throw InvalidInput("{}: no output depends on an input or a parameter; leave --backward out.",
                               request.model.string());
        loss.backward();
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) tensors.emplace_back(numbered("output", i), outputs[i].detach());
    if (request.backward) {
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            if (inputs[i].grad().defined()) tensors.emplace_back(numbered("grad_input", i), inputs[i].grad());
        }
        for (const auto& parameter : model.named_parameters()) {
            if (parameter.value.grad().defined())
                tensors.emplace_back("grad." + parameter.name, parameter.value.grad());
        }
    }
    if (request.train) {
        for (const auto& buffer : model.named_buffers()) tensors.emplace_back("buffer." + buffer.name, buffer.value);
    }
    return tensors;
}

Extents extents_of(std::int64_t n, std::int64_t num_ranks, const std::vector<double>& shares)
{
    if (shares.empty()) {
        const auto total = 7 + 3 * (num_ranks - 1);
        Extents extents(num_ranks, n * 3 / total);
        extents[0] = n - (num_ranks - 1) * extents[0];
        return extents;
    }
    if (std::ssize(shares) != num_ranks) return even_extents(n, num_ranks);
    double sum = 0, reached = 0;
    for (const auto share : shares) sum += share;
    Extents extents;
    std::int64_t given = 0;
    for (const auto share : shares) {
        reached += share / sum;
        const auto end = std::min<std::int64_t>(n, std::llround(reached * static_cast<double>(n)));
        extents.push_back(end - given);
        given = end;
    }
    extents.back() += n - given;
    return extents;
}

at::Tensor leaf(const at::Tensor& tensor, const ProbeRequest& request)
{
    return tensor.is_floating_point() ? tensor.detach().clone().requires_grad_(request.backward) : tensor;
}

double largest_difference(const at::Tensor& found, const at::Tensor& expected)
{
    const auto f = found.to(at::kDouble), e = expected.to(at::kDouble);
    const auto same_special = at::logical_or(f.eq(e), at::logical_and(f.isnan(), e.isnan()));
    const auto distance = at::where(same_special, at::zeros_like(f), (f - e).abs().nan_to_num(INFINITY));
    return distance.numel() ? distance.max().item<double>() : 0;
}

ProbedDifference compare(const std::string& name, const at::Tensor& found, const at::Tensor& expected)
{
    ProbedDifference difference{.name = name, .largest_difference = INFINITY};
    if (!found.defined() || found.sizes() != expected.sizes() || found.scalar_type() != expected.scalar_type())
        return difference;
    const auto e = expected.to(at::kDouble), finite = e.masked_select(e.isfinite());
    difference.largest_difference = largest_difference(found, expected);
    difference.scale = finite.numel() ? finite.abs().max().item<double>() : 0;
    const double tolerance = !expected.is_floating_point() && !expected.is_complex() ? 0
                             : expected.scalar_type() == at::kDouble                 ? 1e-10
                             : at::isReducedFloatingType(expected.scalar_type())     ? 2e-2
                                                                                     : 1e-5;
    difference.equal = difference.largest_difference <= tolerance * difference.scale;
    return difference;
}

/// Moves each number by one step of its type up or down, at random; zero stays.
at::Tensor changed_in_last_bit(const at::Tensor& tensor)
{
    if (!tensor.is_floating_point()) return tensor;
    const auto sign =
        at::where(at::rand(tensor.sizes(), at::kFloat).lt(0.5), -1.0, 1.0).to(tensor.device(), tensor.scalar_type());
    const auto steps = tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble;
    if (steps) return at::where(tensor.eq(0), tensor, at::nextafter(tensor, sign * INFINITY));
    return tensor + tensor * sign * (tensor.scalar_type() == at::kHalf ? 0x1p-10 : 0x1p-7);
}

/// Marks as equal what differs by no more than rounding, which it measures by serial runs with numbers changed in their
/// last bits and by one in double precision.
void allow_rounding(ProbeReport& report, const std::vector<std::pair<std::string, at::Tensor>>& expected,
                    const std::vector<at::Tensor>& inputs, const std::optional<at::Tensor>& grad_output,
                    const ProbeRequest& request, const at::Device& device)
{
    constexpr int num_trials = 3;
    constexpr double most_roundings = 10;
    const auto take_note = [&](const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
        for (const auto& [name, tensor] : tensors)
            for (std::size_t i = 0; i < expected.size(); ++i)
                if (expected[i].first == name) {
                    auto& rounding = report.differences[i].rounding;
                    rounding = std::max(rounding, largest_difference(tensor.cpu(), expected[i].second));
                }
    };
    for (int trial = 0; trial < num_trials; ++trial) {
        torch::manual_seed(trial + 1);
        auto model = load(request, device);
        std::vector<at::Tensor> leaves;
        {
            const at::NoGradGuard no_grad;
            for (const auto& input : inputs) leaves.push_back(leaf(changed_in_last_bit(input), request));
            for (const auto& parameter : model.parameters()) parameter.copy_(changed_in_last_bit(parameter));
        }
        take_note(run(model, leaves, grad_output, request));
    }
    try {
        auto model = load(request, device);
        model.to(at::kDouble);
        std::vector<at::Tensor> leaves;
        for (const auto& input : inputs)
            leaves.push_back(leaf(input.is_floating_point() ? input.to(at::kDouble) : input, request));
        auto in_double =
            run(model, leaves, grad_output ? std::optional(grad_output->to(at::kDouble)) : std::nullopt, request);
        // Random draws may differ in double precision: then this run does not measure rounding.
        for (auto& [name, tensor] : in_double) tensor = tensor.cpu();
        const bool is_same_run = std::ranges::equal(in_double, expected, [](const auto& found, const auto& serial) {
            return found.first == serial.first && found.second.sizes() == serial.second.sizes() &&
                   (!found.first.starts_with("output") ||
                    at::allclose(found.second.to(at::kDouble), serial.second.to(at::kDouble), 1e-3, 1e-3));
        });
        if (is_same_run) take_note(in_double);
    } catch (const std::exception&) {
        // A model that fixes a type does not run in another; then the changed bits alone measure rounding.
    }
    for (auto& difference : report.differences) {
        const bool is_known = std::isfinite(difference.rounding) && std::isfinite(difference.largest_difference);
        difference.equal =
            difference.equal || (is_known && difference.largest_difference <= most_roundings * difference.rounding);
    }
}

}  // namespace

std::vector<std::int64_t> probe_mesh_shape(int num_ranks, std::size_t num_dims)
{
    if (num_dims == 1) return {num_ranks};
    auto side = static_cast<std::int64_t>(std::sqrt(num_ranks));
    while (num_ranks % side != 0) --side;
    return {num_ranks / side, side};
}

ProbeReport probe(const ProbeRequest& request, World& world)
{
    // Without fused and differentiated graphs the rule table sees every operator.
    torch::jit::setGraphExecutorOptimize(false);
    torch::jit::getProfilingMode() = false;

    const auto device = world.device();
    const auto model = load(request, device);  // the sharded run loads its own, with gradients and buffers apart
    const auto file = read_safetensors(request.input);
    auto inputs = arguments_of(model, file, request);
    for (auto& input : inputs) input = input.to(device);
    std::optional<at::Tensor> grad_output;
    if (const auto* array = file.find("grad_output")) grad_output = to_tensor(*array).to(device);
    for (const auto dim : request.dims) {
        if (dim >= inputs[0].dim()) {
            throw InvalidInput("--shard {}: the input has {} dimensions, 0 to {}.", dim, inputs[0].dim(),
                               inputs[0].dim() - 1);
        }
    }

    ProbeReport report;
    report.num_ranks = world.size();
    report.device = device_name(device);
    report.mesh_shape = probe_mesh_shape(world.size(), request.dims.size());
    const auto mesh = DeviceMesh::create(world, report.mesh_shape,
                                         request.dims.size() == 1 ? std::vector<std::string>{"domain"}
                                                                  : std::vector<std::string>{"rows", "columns"});
    std::vector<AxisLayout> axes(request.dims.size());
    for (std::size_t a = 0; a < axes.size(); ++a) {
        const auto dim = request.dims[a];
        axes[a] = {Shard(dim),
                   std::make_shared<Extents>(
                       extents_of(inputs[0].size(dim), mesh->size(static_cast<std::int64_t>(a)), request.shares)),
                   1};
    }
    const auto cut_as_the_first = [&](const at::Tensor& input) {
        return std::ranges::all_of(request.dims, [&](std::int64_t dim) {
            return dim < input.dim() && input.size(dim) == inputs[0].size(dim);
        });
    };

    // The serial run comes first and on one rank only: memory for it is needed once, and the model's random draws are
    // the same in both.
    std::vector<std::pair<std::string, at::Tensor>> expected;
    if (world.rank() == 0) {
        std::vector<at::Tensor> leaves;
        for (const auto& input : inputs) leaves.push_back(leaf(input, request));
        try {
            expected = run(model, leaves, grad_output, request);
        } catch (const InvalidInput&) {
            throw;
        } catch (const std::exception& error) {
            throw InvalidInput("{} does not run on {}, without sharding either: {}", request.model.string(),
                               request.input.string(), last_line(error_text(error)));
        }
    }
    mesh->all().barrier();

    Recorder recorder;
    std::vector<at::Tensor> sharded;
    for (const auto& input : inputs) {
        auto spec = replicated_spec(mesh);
        auto local = input;
        if (cut_as_the_first(input)) {
            spec = make_spec(mesh, axes);
            local = own_part(input, *spec);
        }
        sharded.push_back(leaf(from_local(local.clone(), spec), request));
    }
    report.input_layout = to_string(*spec_of(sharded[0]));
    std::vector<std::pair<std::string, at::Tensor>> found;
    try {
        set_gather_policy(GatherPolicy::Silent);
        const Recording recording(recorder);
        found = run(load(request, device), sharded, grad_output, request);
    } catch (const std::exception& error) {
        // TorchScript's interpreter hides the type of an error, and shows its text last.
        if (recorder.refusal.empty())
            throw std::runtime_error(request.model.string() +
                                     " failed with sharded inputs: " + last_line(error_text(error)));
    }
    report.operators = std::move(recorder.operators);
    report.refused_operator = std::move(recorder.refused_operator);
    report.refusal = std::move(recorder.refusal);
    if (!report.refusal.empty()) return report;

    for (auto& [name, tensor] : found) tensor = full_tensor(tensor).detach().cpu().contiguous();
    for (auto& [name, tensor] : expected) tensor = tensor.cpu();
    bool equal = true;
    if (world.rank() == 0) {
        for (const auto& [name, tensor] : expected) {
            at::Tensor other;
            for (const auto& [found_name, found_tensor] : found) {
                if (found_name == name) other = found_tensor;
            }
            report.differences.push_back(compare(name, other, tensor));
        }
        const auto all_equal = [&] {
            return std::ranges::all_of(report.differences, [](const auto& one) { return one.equal; });
        };
        if (!all_equal()) allow_rounding(report, expected, inputs, grad_output, request, device);
        for (auto& [name, tensor] : found) {
            // A gradient that the serial run does not have must be zero.
            const bool known =
                std::ranges::any_of(expected, [&, &name = name](const auto& item) { return item.first == name; });
            if (!known) {
                report.differences.push_back(compare(name, tensor, at::zeros_like(tensor)));
            }
            report.tensors[name] = tensor;
        }
        equal = all_equal();
    }
    report.equal = mesh->all().all_agree(equal);
    return report;
}

}  // namespace meshard
