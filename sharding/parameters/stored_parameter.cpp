// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/stored_parameter.h"

#include "partition/error.h"
#include "sharding/tensor/boxed_arguments.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <mutex>

namespace meshard {
namespace {

constexpr auto kKey = c10::DispatchKey::PrivateUse3;

/// Functions that return the value, and the flattened value as a sharded tensor (none for views); copied with a
/// tensor's metadata, so that detached and saved copies have them too.
struct Source : c10::BackendMeta {
    std::function<at::Tensor()> value, flat;
};

const Source& source_of(const at::Tensor& tensor)
{
    return *static_cast<const Source*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

at::Tensor value_of(const at::Tensor& tensor)
{
    return source_of(tensor).value();
}

/// A tensor without memory that shows the metadata of `like`.
c10::intrusive_ptr<c10::TensorImpl> stored_impl(const at::Tensor& like, std::function<at::Tensor()> value,
                                                std::function<at::Tensor()> flat = nullptr)
{
    auto impl = c10::make_intrusive<c10::TensorImpl>(c10::DispatchKeySet(kKey), like.dtype(), like.device());
    impl->set_sizes_and_strides(like.sizes(), like.strides());
    auto source = c10::make_intrusive<Source>();
    source->value = std::move(value);
    source->flat = std::move(flat);
    impl->set_backend_meta(std::move(source));
    return impl;
}

at::Tensor stored_view(const at::Tensor& like, std::function<at::Tensor()> value)
{
    return at::Tensor(stored_impl(like, std::move(value)));
}

/// Writes this rank's part of a stored tensor from the whole of `value`.
void assign(const at::Tensor& stored, const at::Tensor& value)
{
    const auto flat = flat_values(stored);
    const auto other = is_stored(value) ? flat_values(value) : at::Tensor();
    auto part = other;
    if (!other.defined() || stored.sizes() != value.sizes() || !(*spec_of(other) == *spec_of(flat)))
        part = (is_stored(value) ? value_of(value) : full_tensor(value)).expand(stored.sizes()).reshape({-1});
    for (std::int64_t a = 0; !is_sharded(part) && a < spec_of(flat)->device_mesh->num_axes(); ++a) {
        const auto& axis = spec_of(flat)->axes[a];
        if (axis.is_shard()) part = narrow_to_shard(part, axis, spec_of(flat)->device_mesh->coordinate(a));
    }
    local_of(flat).copy_(local_of(part));
    local_of(flat).unsafeGetTensorImpl()->bump_version();
}

/// Returns whether argument 0 is stored and all results are views of it.
bool is_view_of_stored(const c10::OperatorHandle& op, const torch::jit::Stack& arguments)
{
    const auto& schema = op.schema();
    if (arguments.empty() || !arguments[0].isTensor() || !is_stored(arguments[0].toTensor())) return false;
    const auto* alias = schema.arguments()[0].alias_info();
    if (!alias || alias->isWrite() || schema.returns().size() != 1) return false;
    for (std::size_t i = 1; i < arguments.size(); ++i) {
        if (arguments[i].isTensor() || arguments[i].isTensorList()) return false;
    }
    return schema.returns()[0].alias_info() != nullptr;
}

class StoredKernel : public c10::OperatorKernel {
public:
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack)
    {
        const c10::impl::ExcludeDispatchKeyGuard guard(recording_layers());
        const auto& schema = op.schema();
        const auto num_args = schema.arguments().size();
        torch::jit::Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(num_args), stack->end());
        if (is_view_of_stored(op, arguments)) {
            torch::jit::drop(*stack, num_args);
            stack->push_back(view(op, std::move(arguments)));
            return;
        }
        if (schema.name() == "aten::copy_" && is_stored(arguments[0].toTensor()) && !at::GradMode::is_enabled() &&
            flat_values(arguments[0].toTensor()).defined()) {
            assign(arguments[0].toTensor(), arguments[1].toTensor());
            torch::jit::drop(*stack, num_args);
            stack->push_back(arguments[0]);
            return;
        }
        for (std::size_t i = 0; i < num_args; ++i) {
            const auto* alias = schema.arguments()[i].alias_info();
            const bool writes = alias && alias->isWrite();
            map_tensors((*stack)[stack->size() - num_args + i],
                        [&](const at::Tensor& tensor) { return with_value(tensor, writes, schema.name()); });
        }
        op.callBoxed(stack);
    }

private:
    static at::Tensor with_value(const at::Tensor& tensor, bool writes, const std::string& name)
    {
        if (!is_stored(tensor)) return tensor;
        if (writes) {
            throw InvalidInput("{}: writes to a parameter that is stored in parts on several ranks (fully_shard). "
                               "Write to its part in local_parameters(), or copy_ a whole value within no_grad.",
                               name);
        }
        return value_of(tensor);
    }

    /// Runs the view once for the metadata of its results, which later fetch the value and run the view again.
    static c10::IValue view(const c10::OperatorHandle& op, torch::jit::Stack arguments)
    {
        // In inference mode, too, the view is one of an ordinary tensor.
        const BelowRecording below;
        const auto base = arguments[0].toTensor();
        if (op.schema().name() == "aten::detach")
            return at::Tensor(stored_impl(base, source_of(base).value, source_of(base).flat));
        const auto run = [op, arguments, base] {
            const BelowRecording below;
            auto stack = arguments;
            stack[0] = value_of(base);
            op.callBoxed(&stack);
            return stack.back();
        };
        const auto result = run();
        if (result.isTensor()) return stored_view(result.toTensor(), [run] { return run().toTensor(); });
        c10::List<at::Tensor> list;
        std::size_t i = 0;
        for (const at::Tensor& tensor : result.toTensorList()) {
            list.push_back(stored_view(tensor, [run, i] { return run().toTensorList().get(i); }));
            ++i;
        }
        return list;
    }
};

void install()
{
    static std::once_flag once;
    std::call_once(once, [] {
        static torch::Library library(torch::Library::IMPL, "aten", std::make_optional(kKey), __FILE__, __LINE__);
        for_each_aten_operator([](const c10::OperatorHandle& op) {
            const auto registered = full_name_of(op.operator_name()).substr(6);  // without `aten::`
            library.impl(registered.c_str(),
                         torch::CppFunction::makeFromBoxedFunctor(std::make_unique<StoredKernel>()));
        });
    });
}

}  // namespace

bool is_stored(const at::Tensor& tensor)
{
    return tensor.defined() &&
           tensor.unsafeGetTensorImpl()->key_set().has_backend(c10::BackendComponent::PrivateUse3Bit);
}

void store_parameter(const at::Tensor& parameter, std::function<at::Tensor()> gather, std::function<at::Tensor()> flat)
{
    install();
    // Modules store their parameters' TensorImpl in several places: only its content can be changed.
    parameter.unsafeGetTensorImpl()->shallow_copy_from(stored_impl(parameter, std::move(gather), std::move(flat)));
}

at::Tensor stored_tensor(const at::Tensor& flat, at::IntArrayRef shape)
{
    install();
    const auto value = [flat, size = shape.vec()] { return full_tensor(flat).view(size); };
    auto impl = stored_impl(local_of(flat), value, [flat] { return flat; });
    impl->set_sizes_contiguous(shape);
    return at::Tensor(std::move(impl));
}

at::Tensor flat_values(const at::Tensor& stored)
{
    const auto& flat = source_of(stored).flat;
    return flat ? flat() : at::Tensor();
}

}  // namespace meshard
