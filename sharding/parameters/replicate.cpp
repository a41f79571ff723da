// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/replicate.h"

#include "partition/error.h"
#include "sharding/parameters/gradient_share.h"
#include "sharding/parameters/lasting_hook.h"
#include "sharding/parameters/module_sync.h"
#include "sharding/ranks/type_limits.h"
#include "sharding/tensor/graph_node.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace meshard {
namespace {

struct Bucket {
    std::vector<std::size_t> parameters;  // in the order in which backward is expected to complete them
    std::size_t num_ready = 0;
    at::Tensor buffer;
    PendingCollective pending;
};

}  // namespace

/// Ends the backward when the engine calls it; if it is destroyed uncalled, backward has failed.
class ReplicatedModule::EndOfBackward {
public:
    explicit EndOfBackward(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
    ~EndOfBackward();
    void reach();

private:
    std::shared_ptr<Impl> impl_;
};

using AfterAccumulation = std::unique_ptr<torch::autograd::PostAccumulateGradHook>;

struct ReplicatedModule::Impl : std::enable_shared_from_this<ReplicatedModule::Impl> {
    std::shared_ptr<const DeviceMesh> mesh;
    std::vector<std::string> names;
    std::vector<at::Tensor> parameters;
    std::vector<std::pair<std::string, at::Tensor>> frozen;  // parameters that took no gradients at the start
    std::vector<GraphNode> pinned;            // nodes that accumulate into grad() and carry our hooks; kept alive
    std::vector<AfterAccumulation> deferred;  // users' hooks that must run with the reduced gradient
    std::vector<char> ready;                  // whether this backward has added this rank's share
    std::vector<char> complete;               // whether grad() is the same on all ranks: not since a backward that
                                              // has added this rank's share
    std::vector<Bucket> buckets;
    std::vector<std::size_t> bucket_of;
    std::vector<PlainGradientSum> plain;  // for each parameter, since its last reduction
    std::optional<GradientOrigins> origins;
    std::size_t next_bucket = 0;
    std::int64_t num_data = 1;
    bool first_of_its_domain = true;
    bool sync = true;
    bool in_backward = false;
    int outer_task = -1;      // the graph task whose end ends the backward
    bool has_nested = false;  // a reentrant checkpoint has differentiated parameters within it

    void make_buckets(std::int64_t bucket_bytes)
    {
        bucket_of.resize(parameters.size());
        std::int64_t bytes = 0;
        for (std::size_t k = parameters.size(); k-- > 0;) {  // backward completes the last parameters first
            const auto& parameter = parameters[k];
            const auto size = parameter.numel() * static_cast<std::int64_t>(parameter.element_size());
            const bool same_type = !buckets.empty() && parameters[buckets.back().parameters.front()].scalar_type() ==
                                                           parameter.scalar_type();
            if (buckets.empty() || !same_type || (bytes > 0 && bytes + size > bucket_bytes)) {
                buckets.emplace_back();
                bytes = 0;
            }
            bytes += size;
            bucket_of[k] = buckets.size() - 1;
            buckets.back().parameters.push_back(k);
        }
    }

    /// Puts our hooks on the node that accumulates into grad(), after users' hooks on the parameter: those see the
    /// gradient of the whole, and so does `autograd::grad`. Each graph makes a new such node. It must not be kept,
    /// since it belongs to the stream on which the graph was made, which a recording on another stream does not allow.
    void attach(std::size_t k);
    void pin(std::size_t k);
    void check_is_free(std::size_t k) const;

    /// Returns whether one of the hooks belongs to a module that is still replicated.
    template <class Hook>
    static bool has_living(const std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& hooks)
    {
        return std::ranges::any_of(hooks, [](const auto& hook) {
            const auto* one = dynamic_cast<const Hook*>(hook.get());
            return one && !one->impl.expired();
        });
    }

    /// This rank's share of the gradient, which is the sum of the shares of all ranks of a domain.
    at::Tensor share_of(std::size_t k, const at::Tensor& gradient)
    {
        if (at::GradMode::is_enabled())
            throw InvalidInput("replicate: a backward with create_graph records no graph of the gradients in grad(). "
                               "Give torch::autograd::grad the parameters (torch.autograd.grad).");
        auto& after = torch::autograd::impl::post_acc_grad_hooks(parameters[k]);
        if (sync && mesh->num_ranks() > 1 && after) deferred[k] = std::move(after);
        // A grad() from an earlier backward is already complete: it counts on one rank of the domain only, so that sums
        // stay right.
        if (complete[k] && parameters[k].grad().defined() && !first_of_its_domain) parameters[k].mutable_grad().zero_();
        complete[k] = false;
        if (sync && ready[k] && bucket_of[k] < next_bucket)
            throw InvalidInput("replicate: the gradient of '" + names[k] +
                               "' was being summed over the ranks when a checkpoint added to it. Use checkpoints with "
                               "use_reentrant=False.");
        if (mesh->num_ranks() == 1) return gradient_share(gradient, *mesh, {});
        if (!origins || !origins->are_of(torch::autograd::get_current_graph_task_id())) origins.emplace();
        const auto origin = origins->of_leaf(parameters[k]);
        check_origin(origin, names[k]);
        if (!is_sharded(gradient) && origin.share_axes.empty()) plain[k].add(gradient);
        return gradient_share(gradient, *mesh, origin);
    }

    void on_accumulated(std::size_t k)
    {
        if (!sync || mesh->num_ranks() == 1) return;
        const auto task = torch::autograd::get_current_graph_task_id();
        has_nested = in_backward && (has_nested || task != outer_task);
        if (!in_backward) {
            in_backward = true;
            outer_task = task;
            torch::autograd::Engine::get_default_engine().queue_callback(
                [end = std::make_shared<EndOfBackward>(shared_from_this())] { end->reach(); });
        }
        if (ready[k]) return;
        ready[k] = true;
        auto& bucket = buckets[bucket_of[k]];
        ++bucket.num_ready;
        // Reductions start in bucket order on every rank, in whatever order buckets become ready, the last one at the
        // end. Reentrant checkpoints differentiate a parameter that is used in several of them once in each: then all
        // start at the end.
        while (!has_nested && next_bucket + 1 < buckets.size() &&
               buckets[next_bucket].num_ready == buckets[next_bucket].parameters.size()) {
            start(buckets[next_bucket++]);
        }
    }

    void start(Bucket& bucket)
    {
        const torch::NoGradGuard no_grad;
        std::vector<at::Tensor> flat;
        for (const auto k : bucket.parameters) {
            const auto& gradient = parameters[k].grad();
            // A gradient that is complete from an earlier backward and unused in this one counts on one rank of the
            // domain only.
            const bool counts = gradient.defined() && (ready[k] || !complete[k] || first_of_its_domain);
            flat.push_back(counts ? gradient.reshape({-1})
                                  : at::zeros({parameters[k].numel()}, parameters[k].options()));
        }
        // The last bucket, which begins when this rank knows all its plain gradients, tells others whether there are
        // some.
        if (&bucket == &buckets.back()) flat.push_back(at::full({1}, has_plain() ? 1 : 0, flat.front().options()));
        // Added and divided in a wide type, and rounded once. Adding 0.0 removes negative zeros, which mark a missing
        // gradient.
        bucket.buffer = at::cat(flat).to(sum_type(flat.front().scalar_type())).add_(0.0);
        std::int64_t offset = 0;
        for (const auto k : bucket.parameters) {
            if (!parameters[k].grad().defined()) fill_as_absent(bucket.buffer.narrow(0, offset, parameters[k].numel()));
            offset += parameters[k].numel();
        }
        bucket.pending = mesh->all().start_all_reduce(bucket.buffer);
    }

    bool has_plain() const
    {
        return std::ranges::any_of(plain, [](const PlainGradientSum& one) { return one.exists; });
    }

    void finish()
    {
        const torch::NoGradGuard no_grad;
        in_backward = false;
        const auto used = ready;
        while (next_bucket < buckets.size()) start(buckets[next_bucket++]);
        // Ranks that have used all parameters have plain gradients together or not at all; others ask.
        bool checks_plain = has_plain();
        for (auto& bucket : buckets) {
            bucket.pending.wait();
            if (&bucket == &buckets.back() && !checks_plain && std::ranges::count(used, false) > 0)
                checks_plain = bucket.buffer[bucket.buffer.numel() - 1].item<double>() > 0;
            if (num_data > 1) bucket.buffer.div_(num_data);
            std::int64_t offset = 0;
            for (const auto k : bucket.parameters) {
                auto& parameter = parameters[k];
                const auto reduced = bucket.buffer.narrow(0, offset, parameter.numel()).view(parameter.sizes());
                offset += parameter.numel();
                if (parameter.grad().defined()) {
                    parameter.mutable_grad().copy_(reduced);
                } else if (reduced.numel() > 0 && !is_absent(reduced)) {  // another rank has used the parameter
                    parameter.mutable_grad() =
                        reduced.to(parameter.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
                }
                complete[k] = parameter.grad().defined();
                ready[k] = false;
            }
            bucket.num_ready = 0;
            bucket.buffer = at::Tensor();
        }
        next_bucket = 0;
        origins.reset();
        give_hooks_back(used);
        if (checks_plain) check_plain();
        for (const auto& [name, parameter] : frozen) {
            if (parameter.requires_grad())
                throw InvalidInput("replicate: the parameter '{}' took no gradients when its module was given to "
                                   "replicate, so that those it takes now "
                                   "are of this rank alone. Give the module to replicate again.",
                                   name);
        }
    }

    /// Gives the deferred hooks back to their parameters and runs those of the parameters that this backward has used.
    void give_hooks_back(const std::vector<char>& used)
    {
        std::vector<std::size_t> called;
        for (std::size_t k = 0; k < parameters.size(); ++k) {
            if (!deferred[k]) continue;
            auto& after = torch::autograd::impl::post_acc_grad_hooks(parameters[k]);
            if (!after) after = std::move(deferred[k]);
            deferred[k].reset();
            if (used[k]) called.push_back(k);
        }
        for (const auto k : called) {
            if (const auto& after = torch::autograd::impl::post_acc_grad_hooks(parameters[k])) (*after)(parameters[k]);
        }
    }

    /// Called when backward has thrown: the next one starts anew.
    void abandon()
    {
        if (!in_backward) return;
        in_backward = false;
        for (auto& bucket : buckets) {
            try {
                bucket.pending.wait();
            } catch (const std::exception&) {  // the error of backward is already being thrown
            }
            bucket.num_ready = 0;
            bucket.buffer = at::Tensor();
        }
        next_bucket = 0;
        origins.reset();
        std::ranges::fill(ready, false);
        give_hooks_back(ready);
    }

    /// Compares plain gradients. Called by all ranks of a domain if one of them has a plain gradient.
    void check_plain()
    {
        std::vector<at::ScalarType> types;
        for (const auto& parameter : parameters) types.push_back(parameter.scalar_type());
        const auto noted = std::exchange(plain, std::vector<PlainGradientSum>(parameters.size()));
        check_plain_gradients(noted, names, types, *mesh);
    }
};

struct ReplicatedModule::BeforeAccumulation : torch::autograd::FunctionPreHook {
    BeforeAccumulation(std::weak_ptr<Impl> impl, std::size_t k) : impl(std::move(impl)), k(k) {}

    torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override
    {
        const auto self = impl.lock();
        if (!self || !gradients[0].defined()) return gradients;
        return {self->share_of(k, gradients[0])};
    }

    std::weak_ptr<Impl> impl;
    std::size_t k;
};

/// A hook on the parameter itself, which puts our other hooks on the accumulation node of each graph before it runs.
/// LibTorch's `register_hook` removes it together with all other hooks; then the present node is pinned, with our
/// hooks.
struct ReplicatedModule::Attachment : LastingHook {
    Attachment(std::weak_ptr<Impl> impl, std::size_t k) : impl(std::move(impl)), k(k) {}
    ~Attachment() override
    {
        if (const auto self = impl.lock()) self->pin(k);
    }

    torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override
    {
        if (const auto self = impl.lock()) self->attach(k);
        return gradients;
    }

    std::weak_ptr<Impl> impl;
    std::size_t k;
};

struct ReplicatedModule::BehindAccumulation : torch::autograd::FunctionPostHook {
    BehindAccumulation(std::weak_ptr<Impl> impl, std::size_t k) : impl(std::move(impl)), k(k) {}

    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list& gradients) override
    {
        const auto self = impl.lock();
        if (self && gradients[0].defined()) self->on_accumulated(k);
        return outputs;
    }

    std::weak_ptr<Impl> impl;
    std::size_t k;
};

ReplicatedModule::EndOfBackward::~EndOfBackward()
{
    if (impl_) impl_->abandon();
}

void ReplicatedModule::EndOfBackward::reach()
{
    std::exchange(impl_, nullptr)->finish();
}

void ReplicatedModule::Impl::attach(std::size_t k)
{
    const auto accumulator = torch::autograd::impl::grad_accumulator(parameters[k]);
    if (!accumulator) return;
    for (const auto& hook : accumulator->pre_hooks()) {
        const auto* own = dynamic_cast<const BeforeAccumulation*>(hook.get());
        if (own && own->impl.lock().get() == this) return;
    }
    accumulator->add_pre_hook(std::make_unique<BeforeAccumulation>(weak_from_this(), k));
    accumulator->add_post_hook(std::make_unique<BehindAccumulation>(weak_from_this(), k));
}

void ReplicatedModule::Impl::pin(std::size_t k)
{
    pinned[k] = torch::autograd::impl::grad_accumulator(parameters[k]);
    attach(k);
}

void ReplicatedModule::Impl::check_is_free(std::size_t k) const
{
    const auto node = torch::autograd::impl::try_get_grad_accumulator(parameters[k]);
    if (has_living<Attachment>(torch::autograd::impl::hooks(parameters[k])) ||
        (node && has_living<BeforeAccumulation>(node->pre_hooks())))
        throw InvalidInput("replicate: the parameter '{}' was given to replicate before.", names[k]);
}

ReplicatedModule::ReplicatedModule(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
ReplicatedModule::ReplicatedModule(ReplicatedModule&&) noexcept = default;

ReplicatedModule::~ReplicatedModule()
{
    if (!impl_) return;
    for (std::size_t k = 0; k < impl_->parameters.size(); ++k) {
        std::erase_if(torch::autograd::impl::hooks(impl_->parameters[k]), [this](const auto& hook) {
            auto* const own = dynamic_cast<Attachment*>(hook.get());
            if (!own || own->impl.lock() != impl_) return false;
            own->impl.reset();  // so that its destructor pins no node
            return true;
        });
    }
}

void ReplicatedModule::set_sync(bool on)
{
    impl_->sync = on;
}

NoSync ReplicatedModule::no_sync()
{
    return NoSync(impl_);
}

NoSync::NoSync(std::shared_ptr<ReplicatedModule::Impl> impl)
    : impl_(std::move(impl)), before_(std::exchange(impl_->sync, false))
{
}

NoSync::~NoSync()
{
    impl_->sync = before_;
}

ReplicatedModule replicate(torch::nn::Module& module, std::shared_ptr<const DeviceMesh> device_mesh,
                           const ReplicateOptions& options)
{
    auto impl = std::make_shared<ReplicatedModule::Impl>();
    impl->mesh = std::move(device_mesh);
    const auto& mesh = *impl->mesh;
    if (mesh.has_axis("data")) impl->num_data = mesh.size(mesh.axis("data"));
    impl->first_of_its_domain = is_first_of_its_domain(mesh);
    for (const auto& item : module.named_parameters()) {
        if (is_sharded(item.value())) continue;
        if (!item.value().requires_grad()) {
            impl->frozen.emplace_back(item.key(), item.value());
            continue;
        }
        impl->names.push_back(item.key());
        impl->parameters.push_back(item.value());
    }
    if (options.verify_at_start)
        verify_module(module, mesh, options.source_rank);
    else
        broadcast_module(module, mesh, options.source_rank);

    impl->pinned.resize(impl->parameters.size());
    impl->deferred.resize(impl->parameters.size());
    impl->ready.assign(impl->parameters.size(), false);
    impl->complete.assign(impl->parameters.size(), true);
    impl->plain.resize(impl->parameters.size());
    impl->make_buckets(options.bucket_bytes);
    for (std::size_t k = 0; k < impl->parameters.size(); ++k) impl->check_is_free(k);
    for (std::size_t k = 0; k < impl->parameters.size(); ++k) {
        // Added to the list of hooks directly: `register_hook` would remove those of Python.
        torch::autograd::impl::hooks(impl->parameters[k])
            .push_back(std::make_unique<ReplicatedModule::Attachment>(impl, k));
    }
    return ReplicatedModule(std::move(impl));
}

}  // namespace meshard
