// SPDX-License-Identifier: Apache-2.0
// Operators of the stand-in accelerator: those of the CPU, on tensors of the CPU that share the device's memory.
#include "tests/support/standin/any_order.h"
#include "tests/support/standin/device_graph.h"
#include "tests/support/standin/device_memory.h"
#include "tests/support/standin/device_runtime.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>

namespace meshard::standin {
namespace {

c10::Device device_at(int index)
{
    return c10::Device(kType, static_cast<c10::DeviceIndex>(index));
}

bool is_here(const at::Tensor& tensor)
{
    return tensor.defined() && tensor.device().type() == kType;
}

void take_shape(const at::Tensor& tensor, const at::Tensor& shape)
{
    auto* const impl = tensor.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(shape.sizes(), shape.strides(), shape.storage_offset());
    if (shape.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    if (shape.is_conj()) tensor._set_conj(true);
    if (shape.is_neg()) tensor._set_neg(true);
}

/// A tensor over a storage with the shape of another.
at::Tensor tensor_over(c10::Storage storage, const at::Tensor& shape, c10::DispatchKey key)
{
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), shape.dtype());
    take_shape(tensor, shape);
    return tensor;
}

/// A view of a tensor with the shape of another.
at::Tensor view_of(const at::Tensor& base, const at::Tensor& shape)
{
    const auto keys = base.key_set().remove(c10::DispatchKey::Conjugate).remove(c10::DispatchKey::Negative);
    auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), keys,
                                                         shape.dtype());
    take_shape(view, shape);
    return view;
}

c10::Storage new_storage(std::size_t bytes, int device)
{
    const int before = current_device();
    set_current_device(device);
    auto memory = device_allocator().allocate(bytes);
    set_current_device(before);
    return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                              std::move(memory), &device_allocator(), true));
}

c10::Storage host_storage(const c10::Storage& storage)
{
    auto* const memory = host_view(storage.data());
    return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
                                                              c10::DataPtr(memory, c10::Device(c10::kCPU)),
                                                              c10::GetAllocator(c10::kCPU), true));
}

/// Tensors that the operators of the CPU get in place of the device's, and what becomes of the results.
class HostCall {
public:
    explicit HostCall(int device) : device_(device) {}

    at::Tensor to_host(const at::Tensor& tensor)
    {
        if (!is_here(tensor)) return tensor;
        for (const auto& known : tensors_) {
            if (known.device.is_same(tensor)) return known.host;
        }
        reads_memory(device_, tensor.storage().data());
        tensors_.push_back({tensor, tensor_over(host_of(tensor.storage()), tensor, c10::DispatchKey::CPU)});
        return tensors_.back().host;
    }

    /// A result of the CPU on the device: the argument that it is, a view of one, or a new tensor.
    at::Tensor to_device(const at::Tensor& result, bool is_written)
    {
        if (!result.defined()) return result;
        for (const auto& known : tensors_) {
            if (known.host.is_same(result) && is_written) return known.device;
        }
        if (is_written) return result;  // a tensor of the CPU that was given
        for (const auto& known : tensors_) {
            if (known.host.storage().is_alias_of(result.storage())) return view_of(known.device, result);
        }
        for (const auto& known : storages_) {  // results that share memory
            if (known.host.is_alias_of(result.storage()))
                return tensor_over(known.device, result, c10::DispatchKey::PrivateUse1);
        }
        auto storage = new_storage(result.storage().nbytes(), device_);
        if (result.storage().nbytes() > 0)
            std::memcpy(host_view(storage.data()), result.storage().data(), result.storage().nbytes());
        storages_.push_back({storage, result.storage()});
        return tensor_over(storage, result, c10::DispatchKey::PrivateUse1);
    }

    /// Gives arguments on the device the shape and memory that the operator has given those of the CPU. Call it before
    /// `to_device`.
    void second_half()
    {
        for (auto& known : storages_) {
            if (known.host.data() == known.given) continue;
            auto grown = new_storage(known.host.nbytes(), device_);
            if (known.host.nbytes() > 0) std::memcpy(host_view(grown.data()), known.host.data(), known.host.nbytes());
            auto* const impl = known.device.unsafeGetStorageImpl();
            impl->set_data_ptr_noswap(std::move(grown.unsafeGetStorageImpl()->mutable_data_ptr()));
            impl->set_nbytes(known.host.nbytes());
            grown_.push_back({known.device, known.host});
        }
        for (auto& known : tensors_) {
            auto* const impl = known.device.unsafeGetTensorImpl();
            if (known.device.sizes() == known.host.sizes() && known.device.strides() == known.host.strides() &&
                known.device.storage_offset() == known.host.storage_offset())
                continue;
            impl->set_sizes_and_strides(known.host.sizes(), known.host.strides(), known.host.storage_offset());
        }
    }

    /// The device's memory that the call has used: a call that is done again writes to the same.
    std::vector<c10::Storage> storages() const
    {
        std::vector<c10::Storage> all;
        for (const auto& known : storages_) all.push_back(known.device);
        return all;
    }

    /// The memory that operators have given to tensors in place of theirs: the device's, and the host's, to which a
    /// call that is done again writes.
    const std::vector<std::pair<c10::Storage, c10::Storage>>& grown() const { return grown_; }

private:
    struct Tensors {
        at::Tensor device, host;
    };
    struct Storages {
        c10::Storage device, host;
        const void* given = nullptr;  // of an argument: the host's memory before the call
    };

    const c10::Storage& host_of(const c10::Storage& storage)
    {
        for (const auto& known : storages_) {
            if (known.device.is_alias_of(storage)) return known.host;
        }
        auto host = host_storage(storage);
        const auto* const given = host.data();
        storages_.push_back({storage, std::move(host), given});
        return storages_.back().host;
    }

    int device_;
    std::vector<Tensors> tensors_;
    std::vector<Storages> storages_;
    std::vector<std::pair<c10::Storage, c10::Storage>> grown_;
};

/// Operators that on GPUs take tensors of the CPU that hold one number, because they go over elements
/// (native_functions.yaml: TensorIterator).
bool takes_numbers(const std::string& name)
{
    static const std::unordered_set<std::string> names{"__and__",
                                                       "__iand__",
                                                       "__ilshift__",
                                                       "__ior__",
                                                       "__irshift__",
                                                       "__ixor__",
                                                       "__lshift__",
                                                       "__or__",
                                                       "__rshift__",
                                                       "__xor__",
                                                       "add",
                                                       "addcdiv",
                                                       "addcmul",
                                                       "atan2",
                                                       "arctan2",
                                                       "bitwise_and",
                                                       "bitwise_left_shift",
                                                       "bitwise_or",
                                                       "bitwise_right_shift",
                                                       "bitwise_xor",
                                                       "clamp",
                                                       "clamp_max",
                                                       "clamp_min",
                                                       "copysign",
                                                       "div",
                                                       "divide",
                                                       "true_divide",
                                                       "eq",
                                                       "fill",
                                                       "floor_divide",
                                                       "fmax",
                                                       "fmin",
                                                       "fmod",
                                                       "gcd",
                                                       "lcm",
                                                       "ge",
                                                       "gt",
                                                       "le",
                                                       "lt",
                                                       "ne",
                                                       "heaviside",
                                                       "hypot",
                                                       "igamma",
                                                       "igammac",
                                                       "index_fill",
                                                       "index_put",
                                                       "_index_put_impl",
                                                       "ldexp",
                                                       "lerp",
                                                       "logaddexp",
                                                       "logaddexp2",
                                                       "logical_and",
                                                       "logical_or",
                                                       "logical_xor",
                                                       "masked_fill",
                                                       "maximum",
                                                       "minimum",
                                                       "mul",
                                                       "nextafter",
                                                       "polar",
                                                       "complex",
                                                       "pow",
                                                       "remainder",
                                                       "rsub",
                                                       "sub",
                                                       "where",
                                                       "xlogy",
                                                       "special_xlog1py",
                                                       "special_xlogy",
                                                       "special_zeta",
                                                       "float_power"};
    auto base = name.substr(name.find("::") + 2);
    if (names.count(base)) return true;
    if (!base.empty() && base.back() == '_') base.pop_back();
    return names.count(base) > 0;
}

/// Operators whose results have a shape, or are values of the host, that depend on what is in memory.
bool waits(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments)
{
    const auto length = schema.argumentIndexWithName("output_size");
    if (schema.name() == "aten::repeat_interleave" && length && !arguments[*length].isNone()) return false;
    static const std::unordered_set<std::string> names{"aten::equal",
                                                       "aten::nonzero",
                                                       "aten::nonzero_static",
                                                       "aten::masked_select",
                                                       "aten::_unique",
                                                       "aten::_unique2",
                                                       "aten::unique_dim",
                                                       "aten::unique_consecutive",
                                                       "aten::unique_dim_consecutive",
                                                       "aten::repeat_interleave",
                                                       "aten::bincount",
                                                       "aten::histc",
                                                       "aten::is_nonzero",
                                                       "aten::_linalg_check_errors",
                                                       "aten::_assert_tensor_metadata"};
    return names.count(schema.name()) > 0;
}

/// Calls `f(tensor, number)` with every tensor of an argument, in lists too; `f` may replace it.
template <class F>
void for_tensors(c10::IValue& value, const F& f)
{
    if (value.isTensor()) {
        auto tensor = value.toTensor();
        f(tensor);
        value = tensor;
    } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (at::Tensor tensor : value.toTensorVector()) {
            f(tensor);
            list.push_back(tensor);
        }
        value = list;
    } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (std::optional<at::Tensor> tensor : value.toOptionalTensorVector()) {
            if (tensor) f(*tensor);
            list.push_back(tensor);
        }
        value = list;
    }
}

/// All tensors must lie on one device, as on GPUs. @return the device, -1 if there is no tensor of one
int check_devices(const c10::FunctionSchema& schema, std::vector<c10::IValue>& arguments)
{
    int device = -1;
    for (auto& argument : arguments) {
        for_tensors(argument, [&](at::Tensor& tensor) {
            if (!is_here(tensor)) return;
            if (device < 0) device = tensor.device().index();
            TORCH_CHECK(tensor.device().index() == device, schema.name(),
                        ": Expected all tensors to be on the same device, but found at least two devices, ",
                        device_at(device), " and ", tensor.device(), "!");
        });
    }
    const bool indexes = schema.name() == "aten::index" || schema.name() == "aten::_index_put_impl_" ||
                         schema.name() == "aten::index_put_";
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        for_tensors(arguments[i], [&](at::Tensor& tensor) {
            if (!tensor.defined() || is_here(tensor)) return;
            TORCH_CHECK(tensor.device().is_cpu(), schema.name(), ": a tensor of ", tensor.device(),
                        " among tensors of ", device_at(device));
            if (indexes && arguments[i].isOptionalTensorList()) {  // as on GPUs, which copy them
                count(device, Count::HostToDevice, schema.name(), static_cast<std::int64_t>(tensor.nbytes()));
                count(device, Count::Sync, schema.name());
                return;
            }
            TORCH_CHECK(device < 0 || (tensor.dim() == 0 && takes_numbers(schema.name())), schema.name(),
                        ": Expected all tensors to be on the same device, but found at least two devices, ",
                        device_at(device), " and cpu (argument ", schema.arguments()[i].name(), ")!");
        });
    }
    return device;
}

bool is_written(const c10::Argument& result)
{
    return result.alias_info() && result.alias_info()->isWrite();
}

void replace_generators_and_devices(const c10::FunctionSchema& schema, std::vector<c10::IValue>& arguments, int device)
{
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        auto& value = arguments[i];
        if (value.isDevice() && value.toDevice().type() == kType) value = c10::Device(c10::kCPU);
        if (value.isGenerator()) value = host_generator(value.toGenerator());
        const auto& type = schema.arguments()[i].type();
        if (value.isNone() && type->kind() == c10::TypeKind::OptionalType &&
            type->castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::GeneratorType)
            value = host_generator(device);
    }
}

/// Whether a mask is among the indices, whose entries the host must count.
bool has_mask(std::vector<c10::IValue>& arguments)
{
    bool found = false;
    for (auto& argument : arguments) {
        if (!argument.isOptionalTensorList()) continue;
        for_tensors(argument, [&](at::Tensor& tensor) {
            found |= tensor.defined() && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
        });
    }
    return found;
}

/// Whether a call draws random numbers; attention without dropout does not.
bool draws(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments)
{
    const auto dropout = op.schema().argumentIndexWithName("dropout_p");
    return op.hasTag(at::Tag::nondeterministic_seeded) && !(dropout && arguments[*dropout].toDouble() == 0);
}

/// Adds a call to the work that is recorded: `compute` does it again and returns tensors of the CPU, which become the
/// results on the device.
void record(const HostCall& call, const std::vector<at::Tensor>& results,
            std::function<std::vector<at::Tensor>()> compute)
{
    std::vector<c10::Storage> targets;
    for (const auto& result : results) targets.push_back(result.defined() ? result.storage() : c10::Storage());
    record_here()->launches.push_back(
        [used = call.storages(), grown = call.grown(), targets, compute = std::move(compute)] {
            const auto values = compute();
            for (const auto& [there, here] : grown) std::memcpy(host_view(there.data()), here.data(), here.nbytes());
            for (std::size_t i = 0; i < values.size(); ++i) {
                if (!targets[i]) continue;
                auto* const to = host_view(targets[i].data());
                const auto* const from = values[i].storage().data();
                if (to != from && values[i].storage().nbytes() > 0) std::memcpy(to, from, values[i].storage().nbytes());
            }
        });
}

/// Calls an operator's kernel of the CPU in the place of one of the device. `other`: the operator to call instead, with
/// the same arguments.
void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                 const std::optional<c10::OperatorHandle>& other = std::nullopt)
{
    const auto& schema = op.schema();
    const auto num_arguments = schema.arguments().size();
    std::vector<c10::IValue> arguments(
        std::make_move_iterator(stack->end() - static_cast<std::ptrdiff_t>(num_arguments)),
        std::make_move_iterator(stack->end()));
    torch::jit::drop(*stack, num_arguments);
    int device = check_devices(schema, arguments);
    if (device < 0) {
        device = current_device();
        for (const auto& argument : arguments) {
            if (argument.isDevice() && argument.toDevice().type() == kType && argument.toDevice().has_index())
                device = argument.toDevice().index();
            if (argument.isGenerator() && argument.toGenerator().device().type() == kType)
                device = argument.toGenerator().device().index();
        }
    }
    const bool is_view =
        !schema.returns().empty() && schema.returns()[0].alias_info() && !schema.returns()[0].alias_info()->isWrite();
    if (!is_view) count(device, Count::Launch, schema.name());
    const bool counts_mask = schema.name() == "aten::_index_put_impl_" && has_mask(arguments);
    if (counts_mask || waits(schema, arguments)) synchronize(current_stream(device), schema.name());

    tell_of_any_order(schema.name(), arguments);
    HostCall call(device);
    for (auto& argument : arguments) {
        for_tensors(argument, [&](at::Tensor& tensor) { tensor = call.to_host(tensor); });
    }
    replace_generators_and_devices(schema, arguments, device);
    torch::jit::Stack inner(arguments.begin(), arguments.end());
    const auto compute = [op, other](torch::jit::Stack& values) {
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
        if (other)
            other->callBoxed(&values);
        else
            op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &values);
    };
    compute(inner);
    for (auto& result : inner)
        for_tensors(result, [&](at::Tensor& tensor) { reorder_sums(schema.name(), arguments, tensor); });
    call.second_half();
    std::vector<at::Tensor> results;
    for (std::size_t i = 0; i < inner.size(); ++i) {
        const bool written = is_written(schema.returns()[i]);
        for_tensors(inner[i], [&](at::Tensor& tensor) {
            tensor = call.to_device(tensor, written);
            if (!written) results.push_back(tensor);
            if (!is_view && is_here(tensor)) writes_memory(device, tensor.storage().data());
        });
        stack->push_back(std::move(inner[i]));
    }
    if (is_view || !record_here()) return;
    TORCH_CHECK(!draws(op, arguments), "standin: ", schema.name(), " draws random numbers while work is recorded");
    record(call, results, [compute, arguments, schema] {
        auto values = arguments;
        compute(values);
        std::vector<at::Tensor> again;
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (!is_written(schema.returns()[i]))
                for_tensors(values[i], [&](at::Tensor& tensor) { again.push_back(tensor); });
        }
        return again;
    });
}

void boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack)
{
    run_on_host(op, stack);
}

void convolution(const c10::OperatorHandle& op, torch::jit::Stack* stack)
{
    run_on_host(op, stack, c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", ""));
}

/// GPUs leave the buffer empty, and their backward step does not read it.
void log_sigmoid_forward(const c10::OperatorHandle& op, torch::jit::Stack* stack)
{
    run_on_host(op, stack);
    stack->back() = at::empty({0}, (stack->end() - 2)->toTensor().options());
}

void log_sigmoid_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack)
{
    stack->back() = (stack->end() - 2)->toTensor().abs().neg().exp();
    run_on_host(op, stack);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& gradient, const at::Tensor& input,
                                                                    const at::Tensor& weight, at::IntArrayRef stride,
                                                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                                                    bool transposed, at::IntArrayRef output_padding,
                                                                    std::int64_t groups, std::array<bool, 3> mask)
{
    const int device = gradient.device().index();
    TORCH_CHECK(is_here(input) && is_here(weight) && input.device() == gradient.device() &&
                    weight.device() == gradient.device(),
                "convolution_backward: Expected all tensors to be on the same device, but found ", gradient.device(),
                ", ", input.device(), " and ", weight.device());
    count(device, Count::Launch, "aten::convolution_backward");
    HostCall call(device);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const std::vector<std::int64_t> bias_sizes{transposed ? weight.size(1) * groups : weight.size(0)};
    const auto compute = [gradient = call.to_host(gradient), input = call.to_host(input), weight = call.to_host(weight),
                          bias_sizes, stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(),
                          transposed, output_padding = output_padding.vec(), groups, mask] {
        auto [of_input, of_weight, of_bias] =
            at::convolution_backward(gradient, input, weight, at::OptionalIntArrayRef(bias_sizes), stride, padding,
                                     dilation, transposed, output_padding, groups, mask);
        return std::vector<at::Tensor>{of_input, of_weight, of_bias};
    };
    auto results = compute();
    for (auto& result : results) {
        reorder_sums("aten::convolution_backward", {}, result);
        result = call.to_device(result, false);
        if (result.defined()) writes_memory(device, result.storage().data());
    }
    if (record_here()) record(call, results, compute);
    return {results[0], results[1], results[2]};
}

std::size_t bytes_of(at::IntArrayRef sizes, at::IntArrayRef strides, std::size_t element)
{
    std::size_t last = 1;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
        if (sizes[d] == 0) return 0;
        last += static_cast<std::size_t>((sizes[d] - 1) * strides[d]);
    }
    return last * element;
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                         std::optional<at::Layout> layout, std::optional<at::Device> device,
                         std::optional<bool> page_locked)
{
    TORCH_CHECK(!layout || *layout == at::kStrided, "standin: tensors are strided");
    TORCH_CHECK(!page_locked || !*page_locked, "Only dense CPU tensors can be pinned");
    for (const auto size : sizes)
        TORCH_CHECK(size >= 0, "Trying to create tensor with negative dimension ", size, ": ", sizes);
    const int index = device && device->has_index() ? device->index() : current_device();
    const auto meta = c10::scalarTypeToTypeMeta(type.value_or(c10::get_default_dtype_as_scalartype()));
    auto tensor =
        at::detail::make_tensor<c10::TensorImpl>(new_storage(bytes_of(sizes, strides, meta.itemsize()), index),
                                                 c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), meta);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    return tensor;
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> page_locked,
                 std::optional<at::MemoryFormat> format)
{
    std::vector<std::int64_t> strides(sizes.size());
    std::int64_t step = 1;
    for (auto d = static_cast<std::int64_t>(sizes.size()) - 1; d >= 0; --d) {
        strides[d] = step;
        step *= std::max<std::int64_t>(sizes[d], 1);
    }
    if (format == at::MemoryFormat::ChannelsLast) strides = at::get_channels_last_strides_2d(sizes);
    if (format == at::MemoryFormat::ChannelsLast3d) strides = at::get_channels_last_strides_3d(sizes);
    return empty_strided(sizes, strides, type, layout, device, page_locked);
}

/// From the device: at once if the host waits, else late, and until then the host finds no number there.
void copy_to_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking)
{
    const auto stream = current_stream(from.device().index());
    const bool is_late = non_blocking && to.numel() > 0 && is_page_locked(to.storage().data());
    count(stream.device_index(), Count::DeviceToHost, is_late ? "copy_to_host_late" : "copy_to_host",
          static_cast<std::int64_t>(from.nbytes()));
    reads_memory(stream.device_index(), from.storage().data());
    if (!is_late) {
        synchronize(stream, "copy_to_host");
        to.copy_(as_host(from));
        return;
    }
    // What is there now in the order of the stream.
    const auto values = as_host(from).to(to.scalar_type(), false, true);
    if (to.is_non_overlapping_and_dense()) std::memset(to.mutable_data_ptr(), 0xFF, to.nbytes());
    const auto write = [values, to = to.detach()] {
        const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        to.copy_(values);
    };
    do_late(stream, write, to.storage().data());
}

/// To the device. A source in page-locked memory must stay as it is until the host knows that it was read.
void copy_to_device(const at::Tensor& from, const at::Tensor& to, bool non_blocking)
{
    const auto stream = current_stream(to.device().index());
    const bool page_locked = from.numel() > 0 && is_page_locked(from.storage().data());
    const bool is_late = non_blocking && page_locked;
    const char* const name = is_late       ? "copy_to_device_late"
                             : page_locked ? "copy_to_device"
                                           : "copy_to_device_pageable";
    count(stream.device_index(), Count::HostToDevice, name, static_cast<std::int64_t>(to.nbytes()));
    writes_memory(stream.device_index(), to.storage().data());
    if (!non_blocking) synchronize(stream, "copy_to_device");
    if (is_late) finish_writes_to(from.storage().data(), stream);
    as_host(to).copy_(from);
    if (!is_late) return;
    do_late(stream, [read = from.detach(), values = from.detach().clone()] {
        const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        const auto bytes = [](const at::Tensor& x) { return x.contiguous().reshape(-1).view(at::kByte); };
        TORCH_CHECK(at::equal(bytes(read), bytes(values)),
                    "standin: page-locked memory was written to before the device had read it; wait for an event "
                    "recorded after the copy");
    });
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking)
{
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    if (is_here(from) && is_here(to)) {
        count(to.device().index(), Count::Launch,
              from.device() == to.device() ? "aten::copy_" : "aten::copy_between_devices");
        if (from.device() == to.device()) reads_memory(from.device().index(), from.storage().data());
        writes_memory(to.device().index(), to.storage().data());
        const auto copy = [target = as_host(to), source = as_host(from)] { target.copy_(source); };
        copy();
        if (auto* const all = record_here()) all->launches.push_back(copy);
    } else if (is_here(from)) {
        copy_to_host(from, to, non_blocking);
    } else {
        copy_to_device(from.is_cpu() ? from : from.cpu(), to, non_blocking);
    }
    return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to)
{
    const_cast<at::Tensor&>(to).resize_(from.sizes());
    return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor)
{
    const int device = tensor.device().index();
    count(device, Count::DeviceToHost, "aten::_local_scalar_dense", static_cast<std::int64_t>(tensor.element_size()));
    reads_memory(device, tensor.storage().data());
    synchronize(current_stream(device), "aten::_local_scalar_dense");
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return at::_local_scalar_dense(as_host(tensor));
}

at::Tensor& set_storage(at::Tensor& tensor, at::Storage storage, std::int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides)
{
    TORCH_CHECK(storage.device().type() == kType, "set_: a storage of ", storage.device(), " for a tensor of ",
                tensor.device());
    auto* const impl = tensor.unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(std::move(storage));
    if (strides.empty() && !sizes.empty()) {
        impl->set_sizes_contiguous(sizes);
        impl->set_storage_offset(offset);
    } else {
        impl->set_sizes_and_strides(sizes, strides, offset);
    }
    return tensor;
}

at::Tensor& set_whole_storage(at::Tensor& tensor, at::Storage storage)
{
    const auto numel = static_cast<std::int64_t>(storage.nbytes() / tensor.itemsize());
    return set_storage(tensor, std::move(storage), 0, {numel}, {1});
}

at::Tensor& set_tensor(at::Tensor& tensor, const at::Tensor& source)
{
    return set_storage(tensor, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

void record_stream(at::Tensor&, at::Stream) {}

/// LibTorch has this product of half precision with a result of single precision for GPUs alone.
at::Tensor widened_product(const at::Tensor& left, const at::Tensor& right, at::ScalarType type)
{
    return at::mm(left.to(type), right.to(type));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library)
{
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    library.impl("empty.memory_format", &empty);
    library.impl("empty_strided", &empty_strided);
    library.impl("_copy_from", &copy_from);
    library.impl("_copy_from_and_resize", &copy_from_and_resize);
    library.impl("_local_scalar_dense", &local_scalar);
    library.impl("set_.source_Storage_storage_offset", &set_storage);
    library.impl("set_.source_Storage", &set_whole_storage);
    library.impl("set_.source_Tensor", &set_tensor);
    library.impl("record_stream", &record_stream);
    library.impl("mm.dtype", &widened_product);
    library.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
    library.impl("convolution_backward_overrideable", &convolution_backward);
    library.impl("log_sigmoid_forward", torch::CppFunction::makeFromBoxedFunction<&log_sigmoid_forward>());
    library.impl("log_sigmoid_backward", torch::CppFunction::makeFromBoxedFunction<&log_sigmoid_backward>());
    // Where the CPU has a kernel of its own and other devices would get a composition, the CPU's: the same numbers.
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
        if (name.name.rfind("aten::", 0) != 0) continue;
        const auto op = dispatcher.findSchema(name);
        if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
            op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1))
            continue;
        if (!op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
            !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
            continue;
        const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
        library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&boxed>());
    }
}

// Copies see to lazy conjugates and negatives themselves; LibTorch's way would make them plain by a copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, library)
{
    for (const auto* name : {"_copy_from", "_copy_from_and_resize"})
        library.impl(name, torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, library)
{
    for (const auto* name : {"_copy_from", "_copy_from_and_resize"})
        library.impl(name, torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library)
{
    library.fallback(torch::CppFunction::makeFallthrough());
}

// Autocast converts for the operators for which it does on GPUs.
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, library)
{
    using namespace at;  // as LibTorch's lists of operators are written
    auto& m = library;
#define MESHARD_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define MESHARD_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define MESHARD_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define MESHARD_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
    AT_FORALL_LOWER_PRECISION_FP(MESHARD_LOWER)
    AT_FORALL_FP32(MESHARD_FP32)
    AT_FORALL_FP32_SET_OPT_DTYPE(MESHARD_FP32_SET_OPT_DTYPE)
    AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
    AT_FORALL_PROMOTE(MESHARD_PROMOTE)
#undef MESHARD_LOWER
#undef MESHARD_FP32
#undef MESHARD_FP32_SET_OPT_DTYPE
#undef MESHARD_PROMOTE
}

}  // namespace

/// The form that the CPU would choose.
static std::int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                     const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                                     std::optional<double> scale, bool grouped)
{
    const auto here = [](const at::Tensor& tensor) {
        return as_host(tensor).set_requires_grad(tensor.requires_grad());
    };
    return at::_fused_sdp_choice(here(query), here(key), here(value), mask ? std::optional(here(*mask)) : std::nullopt,
                                 dropout, is_causal, scale, grouped);
}

/// What LibTorch would choose on a Hopper, for those who ask: cuDNN where it can.
static std::int64_t choice_of_gpus(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                   const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                                   std::optional<double> scale, bool grouped)
{
    const bool is_half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
    const auto fits = [](const at::Tensor& x) { return x.size(-1) % 8 == 0 && x.size(-1) <= 128; };
    if (at::globalContext().userEnabledCuDNNSDP() && is_half && !mask && dropout == 0 && query.dim() == 4 &&
        fits(query) && fits(value) && key.size(2) > 1)
        return static_cast<std::int64_t>(at::SDPBackend::cudnn_attention);
    return choose_attention(query, key, value, mask, dropout, is_causal, scale, grouped);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    library.impl("_fused_sdp_choice", &choice_of_gpus);
}

at::Tensor as_host(const at::Tensor& tensor)
{
    if (!is_here(tensor)) return tensor;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    // Keeps the device's memory.
    auto* const memory = host_view(tensor.storage().data());
    auto* const holder = new c10::Storage(tensor.storage());
    c10::DataPtr shared(
        memory, holder, [](void* held) { delete static_cast<c10::Storage*>(held); }, c10::Device(c10::kCPU));
    c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), tensor.storage().nbytes(), std::move(shared), nullptr, false));
    return tensor_over(std::move(storage), tensor, c10::DispatchKey::CPU);
}

}  // namespace meshard::standin

namespace at::native {
namespace {

REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &meshard::standin::choose_attention)

}  // namespace
}  // namespace at::native
