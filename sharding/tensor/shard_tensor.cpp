// SPDX-License-Identifier: Apache-2.0
#include "sharding/tensor/shard_tensor.h"

#include "partition/error.h"
#include "partition/lists.h"
#include "sharding/ranks/value_hash.h"
#include "sharding/tensor/boxed_arguments.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "sharding/tensor/with_backward.h"

#include <ATen/ATen.h>
#include <c10/core/AutogradState.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace meshard {
namespace {

/// State that a base tensor and its views, which share memory, have in common. Equal on every rank.
struct SharedMemory : c10::intrusive_ptr_target {
    std::uint32_t num_writes = 0;
    bool is_shared = false;        // views exist or have existed: ranks may free views at different times
    bool has_plain_views = false;  // the caller has the local part, or a view of it
};

struct MovedCopy;

/// Local part and layout of a sharded tensor. Detached and saved copies share it, so that a change of layout applies to
/// all of them.
struct ShardValue : c10::intrusive_ptr_target {
    at::Tensor local;
    SpecPtr spec;
    c10::intrusive_ptr<SharedMemory> memory;  // null while no other tensor shares the memory

    /// Mark of a view of rows that one rank owns (`mark_row_copy`).
    struct RowCopy {
        std::int64_t axis;
        int owner;
        std::uint32_t num_writes;  // value of `num_writes` of the memory when the rows were last fetched
    };
    std::vector<RowCopy> rows;
    c10::intrusive_ptr<MovedCopy> moved;  // the copy that this tensor is, or is a view of
    bool is_fresh = false;                // the tensor is the result of an operator and shares no memory on any rank

    bool shares_memory() const { return memory && (memory->has_plain_views || memory->is_shared); }
};

/// A copy, in another layout, of a tensor whose memory other tensors share (`move_copy`).
struct MovedCopy : c10::intrusive_ptr_target {
    at::Tensor local;
    SpecPtr spec;
    c10::intrusive_ptr<ShardValue> original;
    std::uint32_t num_writes = 0;  // value of the original's `num_writes` when the copy was last updated
    bool is_conjugate = false;     // the copy holds the conjugates of the original's numbers

    at::Tensor conjugated(const at::Tensor& numbers) const { return is_conjugate ? numbers.conj() : numbers; }
};

/// Storage of a sharded tensor, which has no memory of the whole: reading its data throws.
const c10::Storage& no_memory()
{
    static const c10::Storage storage = [] {
        c10::Storage empty(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::kCPU), nullptr, false);
        empty.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
            "a sharded tensor has no memory of the whole; use to_local or full_tensor");
        return empty;
    }();
    return storage;
}

/// Result of `storage()`: an empty storage on the meta device, so that LibTorch can query it (is it shared between
/// processes?) without reading it; code that needs its bytes, such as `torch::save`, gets an error.
const c10::Storage& no_storage()
{
    static const c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::kMeta), nullptr,
                                      false);
    static const c10::Storage second_holder =
        storage;  // a use count above one, so that autograd does not treat it as owned by one tensor alone
    return storage;
}

/// The autocast keys are included, since autocast decides by a tensor's dispatch keys whether to convert it.
c10::DispatchKeySet keys_for(const c10::Device& device)
{
    return c10::DispatchKeySet(c10::DispatchKey::PrivateUse2) |
           c10::getAutocastRelatedKeySetFromBackend(
               c10::toBackendComponent(c10::TensorOptions(device).computeDispatchKey()));
}

class ShardTensorImpl : public c10::TensorImpl {
public:
    ShardTensorImpl(at::Tensor local, SpecPtr spec, c10::IntArrayRef strides)
        : TensorImpl(keys_for(local.device()), local.dtype(), local.device()), value_(c10::make_intrusive<ShardValue>())
    {
        show_shape(local, *spec, strides);
        storage_ = no_memory();
        value_->local = std::move(local);
        value_->spec = std::move(spec);
    }

    /// Another handle on the same value; the caller copies the metadata.
    explicit ShardTensorImpl(const ShardTensorImpl* from)
        : TensorImpl(keys_for(from->device()), from->dtype(), from->device()), value_(from->value_)
    {
        storage_ = no_memory();
    }

    const char* tensorimpl_type_name() const override { return "ShardTensor"; }

    /// Autograd adds gradients in place if the use count of their storage shows that no other tensor holds it. During
    /// backward, this returns the local part's own storage if this tensor alone holds the part, otherwise one with a
    /// higher use count. Whether others hold a gradient may differ between ranks (a hook on one of them). Therefore
    /// the part's own storage is returned only if every axis is a Shard: then both ways of adding send the same
    /// messages, and a sum keeps this layout.
    const c10::Storage& storage() const override
    {
        const auto& axes = value_->spec->axes;
        const bool alone = value_->is_fresh && torch::autograd::get_current_graph_task_id() >= 0 &&
                           !value_->shares_memory() && value_.use_count() == 1 && value_->local.use_count() == 1 &&
                           value_->local.has_storage() &&
                           std::ranges::all_of(axes, [](const AxisLayout& axis) { return axis.is_shard(); });
        return alone ? value_->local.storage() : no_storage();
    }

    c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                           bool allow) const override
    {
        return copy(version, allow);
    }

    c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version, bool allow) const override
    {
        return copy(std::move(version), allow);
    }

    void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& other) override
    {
        const auto* from = static_cast<const ShardTensorImpl*>(other.get());
        copy_tensor_metadata(from, this, version_counter(), allow_tensor_metadata_change());
        value_ = from->value_;
    }

    ShardValue& value() const { return *value_; }
    const at::Tensor& local() const { return value_->local; }
    const SpecPtr& spec() const { return value_->spec; }

    void become(const ShardTensorImpl& other)
    {
        set_sizes_and_strides(other.sizes(), other.strides());
        value_ = other.value_;
    }

    void replace(at::Tensor local, SpecPtr spec)
    {
        value_->local = std::move(local);
        value_->spec = std::move(spec);
        value_->rows.clear();
        value_->moved.reset();
        value_->is_fresh = false;
    }

private:
    template <class Version>
    c10::intrusive_ptr<TensorImpl> copy(Version&& version, bool allow) const
    {
        auto impl = c10::make_intrusive<ShardTensorImpl>(this);
        copy_tensor_metadata(this, impl.get(), std::forward<Version>(version), allow);
        return impl;
    }

    /// Sets the shape of the whole. Strides are the caller's or those of a contiguous tensor, never those of the local
    /// part: autograd's decisions by strides must be the same on every rank.
    void show_shape(const at::Tensor& local, const ShardSpec& spec, c10::IntArrayRef strides)
    {
        const auto local_sizes = local.sizes();
        c10::SmallVector<std::int64_t, 6> sizes(local_sizes.begin(), local_sizes.end());
        for (const auto& axis : spec.axes) {
            if (axis.is_shard()) sizes[axis.placement.dim] = axis.blocks * axis.total();
        }
        if (strides.empty())
            set_sizes_contiguous(sizes);
        else
            set_sizes_and_strides(sizes, strides);
    }

    c10::intrusive_ptr<ShardValue> value_;
};

ShardTensorImpl* impl_of(const at::Tensor& tensor)
{
    return static_cast<ShardTensorImpl*>(tensor.unsafeGetTensorImpl());
}

/// The state shared by all tensors that share this tensor's memory.
const c10::intrusive_ptr<SharedMemory>& memory_of(const at::Tensor& tensor)
{
    auto& memory = impl_of(tensor)->value().memory;
    if (!memory) memory = c10::make_intrusive<SharedMemory>();
    return memory;
}

/// Makes a MovedCopy whose original is the tensor's present value.
c10::intrusive_ptr<MovedCopy> moved_copy(const at::Tensor& tensor, const at::Tensor& local, const SpecPtr& spec)
{
    const auto& value = impl_of(tensor)->value();
    auto moved = c10::make_intrusive<MovedCopy>();
    moved->local = local;
    moved->spec = spec;
    moved->original = c10::make_intrusive<ShardValue>();
    moved->original->local = value.local;
    moved->original->spec = value.spec;
    moved->original->memory = memory_of(tensor);
    moved->original->rows = value.rows;
    moved->original->moved = value.moved;
    moved->num_writes = moved->original->memory->num_writes;
    return moved;
}

/// Updates a copy if its original has been written to. Collective if it has.
void refresh(ShardValue& value)
{
    const auto now = value.memory->num_writes;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (value.moved && value.moved->num_writes != now) {
        auto& moved = *value.moved;
        refresh(*moved.original);
        moved.local.copy_(
            moved.conjugated(local_of(convert(wrap(moved.original->local, moved.original->spec), moved.spec))));
        moved.num_writes = now;
    }
    for (auto& copy : value.rows) {
        if (copy.num_writes == now) continue;
        auto rows = value.local.clone(at::MemoryFormat::Contiguous);
        const auto& group = value.spec->device_mesh->group(copy.axis);
        group.broadcast(rows, copy.owner);
        if (group.rank() != copy.owner) value.local.copy_(rows);
        copy.num_writes = now;
    }
}

/// The layout of the complete gradient of a tensor with layout `spec`: the gradient of a pending sum is equal on every
/// rank.
SpecPtr gradient_spec(const SpecPtr& spec)
{
    if (!spec->has_partial()) return spec;
    return make_spec(spec->device_mesh, without_pending(spec->axes), spec->index_map);
}

std::string shape_of(const at::Tensor& tensor)
{
    return fmt::format("({})", fmt::join(tensor.sizes(), ", "));
}

thread_local PlainTensorPolicy policy = PlainTensorPolicy::Silent;

void check_fits(const at::Tensor& local, const ShardSpec& spec, const char* where)
{
    for (std::size_t a = 0; a < spec.axes.size(); ++a) {
        const auto& axis = spec.axes[a];
        if (!axis.is_shard()) continue;
        const auto dim = axis.placement.dim;
        if (dim < 0 || dim >= local.dim()) {
            throw InvalidInput("{}: {} of a tensor with {} dimensions. Shard a dimension that it has.", where,
                               to_string(spec), local.dim());
        }
        const auto expected = axis.blocks * (*axis.extents)[spec.device_mesh->coordinate(a)];
        if (local.size(dim) != expected) {
            throw InvalidInput("{}: dimension {} of the local tensor has {} entries, the layout says {} "
                               "({}). Pass the owned rows of this rank.",
                               where, dim, local.size(dim), expected, to_string(spec));
        }
    }
}

}  // namespace

bool is_sharded(const at::Tensor& tensor)
{
    return tensor.defined() &&
           tensor.unsafeGetTensorImpl()->key_set().has_backend(c10::BackendComponent::PrivateUse2Bit);
}

const SpecPtr& spec_of(const at::Tensor& tensor)
{
    if (!is_sharded(tensor))
        throw InvalidInput("spec_of: the tensor is plain. Make it sharded with from_local or distribute_rows.");
    return impl_of(tensor)->spec();
}

at::Tensor wrap(at::Tensor local, SpecPtr spec, c10::IntArrayRef strides)
{
    install_rules();
    // Autograd must replay views after in-place writes: a sharded tensor has no memory of which it could take a strided
    // view. It reads this flag after it has got a view from here. Views that are made without gradients are never
    // replayed, and recording their replay would take as long as the view.
    auto& state = c10::AutogradState::get_tls_state();
    state.set_view_replay_enabled(state.get_grad_mode());
    return at::detail::make_tensor<ShardTensorImpl>(std::move(local), std::move(spec), strides);
}

const at::Tensor& local_of(const at::Tensor& tensor)
{
    return is_sharded(tensor) ? impl_of(tensor)->local() : tensor;
}

void become(const at::Tensor& tensor, const at::Tensor& other)
{
    impl_of(tensor)->become(*impl_of(other));
}

void mark_fresh(const at::Tensor& tensor)
{
    impl_of(tensor)->value().is_fresh = true;
}

void share_memory(const at::Tensor& base, c10::ArrayRef<c10::IValue> views)
{
    if (!is_sharded(base)) return;
    const auto& memory = memory_of(base);
    for (const auto& view : views) {
        for_each_tensor(view, [&](const at::Tensor& tensor) {
            if (!is_sharded(tensor)) return;
            memory->is_shared = true;
            impl_of(tensor)->value().memory = memory;
        });
    }
}

bool shares_memory(const at::Tensor& tensor)
{
    return impl_of(tensor)->value().shares_memory();
}

void move_copy(const at::Tensor& tensor, at::Tensor local, SpecPtr spec)
{
    auto moved = shares_memory(tensor) ? moved_copy(tensor, local, spec) : nullptr;
    impl_of(tensor)->replace(std::move(local), std::move(spec));
    impl_of(tensor)->value().moved = std::move(moved);
}

void mark_moved_copy(c10::ArrayRef<c10::IValue> views, const at::Tensor& base, const at::Tensor& local,
                     const SpecPtr& spec, bool is_conjugate)
{
    const auto moved = moved_copy(base, local, spec);
    moved->is_conjugate = is_conjugate;
    for (const auto& view : views) {
        for_each_tensor(view, [&](const at::Tensor& tensor) { impl_of(tensor)->value().moved = moved; });
    }
}

void mark_row_copy(const at::Tensor& view, const at::Tensor& base, std::int64_t axis, int owner)
{
    impl_of(view)->value().rows.push_back({axis, owner, memory_of(base)->num_writes});
}

bool is_copy(const at::Tensor& tensor)
{
    return is_sharded(tensor) && (!impl_of(tensor)->value().rows.empty() || impl_of(tensor)->value().moved);
}

void inherit_copy(const at::Tensor& from, c10::ArrayRef<c10::IValue> views)
{
    const auto& source = impl_of(from)->value();
    for (const auto& view : views) {
        for_each_tensor(view, [&](const at::Tensor& tensor) {
            if (!is_sharded(tensor) || tensor.is_same(from)) return;
            auto& value = impl_of(tensor)->value();
            if (value.moved) return;  // a copy of `from`, whose original has these marks
            append(value.rows, source.rows);
            value.moved = source.moved;
        });
    }
}

void refresh_copy(const at::Tensor& tensor)
{
    if (is_copy(tensor)) refresh(impl_of(tensor)->value());
}

bool is_stale(const at::Tensor& tensor)
{
    if (!is_copy(tensor)) return false;
    for (const auto* value = &impl_of(tensor)->value();; value = value->moved->original.get()) {
        const auto now = value->memory->num_writes;
        if (std::ranges::any_of(value->rows, [&](const auto& copy) { return copy.num_writes != now; })) return true;
        if (!value->moved) return false;
        if (value->moved->num_writes != now) return true;
    }
}

void note_write(const at::Tensor& tensor)
{
    if (!is_sharded(tensor)) return;
    auto& value = impl_of(tensor)->value();
    if (!value.memory) return;
    const auto now = ++value.memory->num_writes;
    for (auto& rows : value.rows) rows.num_writes = now;  // every rank has written the same value
    for (auto* moved = value.moved.get(); moved; moved = moved->original->moved.get()) {
        const auto& original = *moved->original;
        const auto back = make_spec(original.spec->device_mesh, without_pending(original.spec->axes));
        fill_pending(original.local, *original.spec,
                     moved->conjugated(local_of(convert(wrap(moved->local, moved->spec), back))));
        moved->num_writes = now;
        for (auto& rows : moved->original->rows) rows.num_writes = now;
    }
}

void fill_pending(const at::Tensor& local, const ShardSpec& spec, const at::Tensor& value)
{
    bool counts = true;  // in a pending sum, the first rank's part is the value, the others' are zero
    for (std::size_t a = 0; a < spec.axes.size(); ++a) {
        if (spec.axes[a].placement == Partial() && spec.device_mesh->coordinate(static_cast<std::int64_t>(a)) > 0)
            counts = false;
    }
    if (counts)
        local.copy_(value);
    else
        local.zero_();
}

at::Tensor from_local(const at::Tensor& local, const SpecPtr& spec)
{
    if (is_sharded(local)) throw InvalidInput("from_local: the tensor is sharded already. Use redistribute.");
    if (local.layout() != at::kStrided || local.is_meta())
        throw InvalidInput("from_local: expected a dense tensor with memory, found a sparse or a meta tensor.");
    if (!spec) throw InvalidInput("from_local: there is no spec. Make one with make_spec or shard_spec.");
    spec->validate();
    check_fits(local, *spec, "from_local");
    // Messages send memory, which does not tell of conjugation.
    auto tensor = wrap(local.detach().resolve_conj().resolve_neg(), spec);
    memory_of(tensor)->has_plain_views = true;
    return with_backward(std::move(tensor), local, "FromLocalBackward", [spec](const at::Tensor& gradient) {
        return to_local(is_sharded(gradient) ? redistribute(gradient, gradient_spec(spec)) : gradient);
    });
}

at::Tensor from_local(const at::Tensor& local, const std::shared_ptr<const DeviceMesh>& device_mesh,
                      c10::ArrayRef<Placement> placements)
{
    if (!device_mesh) throw InvalidInput("from_local: there is no device mesh. Pass that of the ranks with parts.");
    if (std::ssize(placements) != device_mesh->num_axes()) {
        throw InvalidInput("from_local: {} placements for a device mesh of {} axes. Give one placement an axis.",
                           placements.size(), device_mesh->num_axes());
    }
    std::vector<AxisLayout> axes(placements.size());
    std::uint64_t hash = 0;
    for (const auto& placement : placements) {
        const auto dim = !placement.is_shard() ? 0 : placement.dim < 0 ? placement.dim + local.dim() : placement.dim;
        for (const auto number :
             {static_cast<std::int64_t>(placement.kind), dim, static_cast<std::int64_t>(placement.reduction)})
            hash = mix(hash, static_cast<std::uint64_t>(number));
    }
    // Ranks whose parts have other numbers of dimensions send equally many numbers, up to eight dimensions.
    std::vector<std::int64_t> form{static_cast<std::int64_t>(local.scalar_type()), local.dim(),
                                   static_cast<std::int64_t>(hash)};
    append(form, local.sizes());
    form.resize(std::max<std::size_t>(form.size(), 3 + 8));
    for (std::size_t a = 0; a < placements.size(); ++a) {
        axes[a].placement = placements[a];
        auto shapes = device_mesh->group(a).all_gather_integers(form);
        for (std::size_t r = 0; r < shapes.size(); ++r) {
            const auto type = [&](std::size_t rank) { return static_cast<at::ScalarType>(shapes[rank][0]); };
            if (type(r) != type(0) || shapes[r][1] != shapes[0][1]) {
                throw InvalidInput("from_local: {} of {} dimensions on rank 0 and {} of {} on rank {} of "
                                   "axis '{}'. All parts have the same type and number of dimensions.",
                                   c10::toString(type(0)), shapes[0][1], c10::toString(type(r)), shapes[r][1], r,
                                   device_mesh->axis_names()[a]);
            }
            if (shapes[r][2] != shapes[0][2]) {
                throw InvalidInput("from_local: ranks 0 and {} of axis '{}' pass different placements. Pass "
                                   "the same on every rank.",
                                   r, device_mesh->axis_names()[a]);
            }
        }
        for (auto& shape : shapes) shape.erase(shape.begin(), shape.begin() + 3);
        if (placements[a].is_shard()) {
            auto& dim = axes[a].placement.dim;
            if (dim < 0) dim += local.dim();
            if (dim < 0 || dim >= local.dim()) {
                throw InvalidInput("from_local: {} of a tensor with {} dimensions.", to_string(placements[a]),
                                   local.dim());
            }
            auto extents = std::make_shared<Extents>();
            for (const auto& shape : shapes) extents->push_back(shape[dim]);
            axes[a].extents = std::move(extents);
        }
        for (std::size_t r = 0; r < shapes.size(); ++r) {
            for (std::int64_t d = 0; d < local.dim(); ++d) {
                const bool cut = placements[a].is_shard() && d == axes[a].placement.dim;
                if (!cut && shapes[r][d] != shapes[0][d]) {
                    throw InvalidInput("from_local: dimension {} has {} entries on rank 0 and {} on rank "
                                       "{} of axis '{}'. Only the dimension that is cut may differ.",
                                       d, shapes[0][d], shapes[r][d], r, device_mesh->axis_names()[a]);
                }
            }
        }
    }
    return from_local(local, make_spec(device_mesh, axes));
}

at::Tensor to_local(const at::Tensor& tensor)
{
    if (!is_sharded(tensor)) return tensor;
    refresh_copy(tensor);
    const auto spec = gradient_spec(spec_of(tensor));
    memory_of(tensor)->has_plain_views = true;
    // A new alias, since the caller may attach autograd history to it.
    return with_backward(local_of(tensor).detach(), tensor, "ToLocalBackward", [spec](const at::Tensor& gradient) {
        if (is_sharded(gradient)) return gradient;
        return gradient.requires_grad() ? from_local(gradient, spec) : wrap(gradient, spec);
    });
}

at::Tensor full_tensor(const at::Tensor& tensor)
{
    if (!is_sharded(tensor)) return tensor;
    return to_local(redistribute(tensor, replicated_spec(spec_of(tensor)->device_mesh)));
}

at::Tensor redistribute(const at::Tensor& tensor, const SpecPtr& target)
{
    target->validate();
    for (const auto& axis : target->axes) {
        if (!axis.is_shard()) continue;
        const auto dim = axis.placement.dim;
        if (dim < tensor.dim() && axis.blocks * axis.total() == tensor.size(dim)) continue;
        throw InvalidInput(
            "redistribute: {} of a tensor of shape {}. The extents must add up to the dimension that is cut.",
            to_string(*target), shape_of(tensor));
    }
    refresh_copy(tensor);
    const auto source = spec_of(tensor);
    if (*source == *target) return tensor;
    return with_backward(convert(tensor, target), tensor, "RedistributeBackward",
                         [spec = gradient_spec(source)](const at::Tensor& gradient) {
                             return is_sharded(gradient) ? redistribute(gradient, spec) : gradient;
                         });
}

at::Tensor redistribute(const at::Tensor& tensor, c10::ArrayRef<Placement> placements)
{
    const auto& source = spec_of(tensor);
    if (placements.size() != source->axes.size()) {
        throw InvalidInput("redistribute: {} placements for a device mesh of {} axes. Give one placement an axis.",
                           placements.size(), source->axes.size());
    }
    std::vector<AxisLayout> axes(placements.size());
    for (std::size_t a = 0; a < placements.size(); ++a) {
        axes[a].placement = placements[a];
        auto& dim = axes[a].placement.dim;
        if (placements[a].is_shard()) {
            if (dim < 0) dim += tensor.dim();
            if (dim < 0 || dim >= tensor.dim()) {
                throw InvalidInput("redistribute: {} of a tensor with {} dimensions.", to_string(placements[a]),
                                   tensor.dim());
            }
        }
        if (source->axes[a].placement == axes[a].placement) {
            axes[a] = source->axes[a];
        } else if (placements[a].is_shard()) {
            axes[a].extents = std::make_shared<Extents>(even_extents(tensor.size(dim), source->device_mesh->size(a)));
        }
    }
    return redistribute(tensor, make_spec(source->device_mesh, axes, source->index_map));
}

void set_plain_tensor_policy(PlainTensorPolicy value)
{
    policy = value;
}
PlainTensorPolicy plain_tensor_policy()
{
    return policy;
}

}  // namespace meshard
