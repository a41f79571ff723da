// SPDX-License-Identifier: Apache-2.0
#include "sharding/ranks/device_mesh.h"

#include "partition/error.h"
#include "partition/lists.h"
#include "sharding/ranks/value_hash.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <numeric>

namespace meshard {
namespace {

std::string join(const std::vector<std::string>& words)
{
    std::string text;
    for (const auto& word : words) text += (text.empty() ? "'" : ", '") + word + "'";
    return text;
}

void require_ranks(const std::vector<std::int64_t>& shape, std::int64_t num_ranks)
{
    if (std::ranges::min(shape) < 1)
        throw InvalidInput("DeviceMesh: an axis of {} ranks. An axis has one rank or more.", std::ranges::min(shape));
    const auto product = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    if (product == num_ranks) return;
    throw InvalidInput("DeviceMesh: {} makes {} ranks, but there are {}. Start as many ranks as the axes multiply to.",
                       fmt::join(shape, " x "), product, num_ranks);
}

void require_names(const std::vector<std::string>& names)
{
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (names[i].empty()) throw InvalidInput("DeviceMesh: axis {} has no name.", i);
        if (std::find(names.begin(), names.begin() + i, names[i]) != names.begin() + i)
            throw InvalidInput("DeviceMesh: two axes are named '{}'.", names[i]);
        if (names[i] == "all" && names.size() > 1)
            throw InvalidInput("DeviceMesh: axis {} is named 'all', as all ranks together are. Give it another name.",
                               i);
    }
}

void require_agreement(const RankGroup& all, const std::vector<std::int64_t>& shape,
                       const std::vector<std::string>& names)
{
    std::uint64_t hash = 0;
    for (std::size_t i = 0; i < shape.size(); ++i)
        hash = mix(mix(hash, static_cast<std::uint64_t>(shape[i])), std::hash<std::string>()(names[i]));
    const auto hashes = all.all_gather_integers(static_cast<std::int64_t>(hash));
    for (std::size_t r = 1; r < hashes.size(); ++r) {
        if (hashes[r] != hashes[0])
            throw InvalidInput("DeviceMesh: ranks 0 and {} ask for other axes; here: {} ({}). Pass the same "
                               "sizes and names on every rank.",
                               r, fmt::join(shape, " x "), join(names));
    }
}

}  // namespace

std::shared_ptr<const DeviceMesh> DeviceMesh::single()
{
    auto mesh = std::shared_ptr<DeviceMesh>(new DeviceMesh);
    mesh->shape_ = {1};
    mesh->axis_names_ = {"domain"};
    mesh->ranks_ = {{0}};
    mesh->groups_.resize(1);
    return mesh;
}

std::shared_ptr<const DeviceMesh> DeviceMesh::create(GroupFactory& factory, std::vector<std::int64_t> shape,
                                                     std::vector<std::string> axis_names)
{
    if (shape.size() != axis_names.size() || shape.empty()) {
        throw InvalidInput("DeviceMesh: {} sizes for {} axis names; give one size an axis.", shape.size(),
                           axis_names.size());
    }
    require_ranks(shape, factory.size());
    require_names(axis_names);

    auto mesh = std::shared_ptr<DeviceMesh>(new DeviceMesh);
    mesh->own_generator_ = factory.generator();

    auto everyone = numbers_from<int>(0, factory.size());
    mesh->all_ = factory.make_group(everyone, "all", mesh->counter_);

    require_agreement(mesh->all_, shape, axis_names);
    mesh->counter_->reset();

    std::int64_t stride = factory.size();
    for (std::size_t axis = 0; axis < shape.size(); ++axis)
        mesh->add_axis(factory, shape[axis], stride /= shape[axis], axis_names[axis]);
    if (mesh->num_axes() > 1) {
        for (std::int64_t axis = 0; axis < mesh->num_axes(); ++axis)
            mesh->sub_meshes_.push_back(mesh->line_of(mesh->groups_[axis], mesh->own_axis(axis)));
        mesh->in_a_row_ = mesh->line_of(mesh->all_, {"all", everyone});
    }
    return mesh;
}

std::shared_ptr<const DeviceMesh> DeviceMesh::folded(GroupFactory& factory, std::string_view axis_name,
                                                     std::vector<std::int64_t> shape) const
{
    const auto line = sub_mesh(axis_name);
    require_ranks(shape, line->num_ranks());
    if (shape.size() == 1) return line;
    const auto index = axis(axis_name);
    auto stride = std::accumulate(shape_.begin() + index, shape_.end(), std::int64_t{1}, std::multiplies<>());

    auto mesh = line_of(line->all_, line->own_axis(0));
    mesh->shape_.clear();
    mesh->axis_names_.clear();
    mesh->ranks_.clear();
    mesh->groups_.clear();
    mesh->in_a_row_ = line;
    for (std::size_t i = 0; i < shape.size(); ++i)
        mesh->add_axis(factory, shape[i], stride /= shape[i], fmt::format("{}.{}", axis_name, i));
    for (std::int64_t i = 0; i < mesh->num_axes(); ++i)
        mesh->sub_meshes_.push_back(mesh->line_of(mesh->groups_[i], mesh->own_axis(i)));
    return mesh;
}

/// A mesh of one axis, of ranks of this one, with its counter and generator.
std::shared_ptr<DeviceMesh> DeviceMesh::line_of(const RankGroup& group, const MeshAxis& axis) const
{
    auto line = std::shared_ptr<DeviceMesh>(new DeviceMesh);
    line->shape_ = {group.size()};
    line->axis_names_ = {axis.name};
    line->ranks_ = {axis.ranks};
    line->groups_ = {group};
    line->all_ = group;
    line->counter_ = counter_;
    line->own_generator_ = own_generator_;
    return line;
}

/// Adds the axis whose group consists of the ranks that differ from this one in one coordinate only, of that stride.
void DeviceMesh::add_axis(GroupFactory& factory, std::int64_t size, std::int64_t stride, const std::string& name)
{
    const std::int64_t coordinate = factory.rank() / stride % size;
    const std::int64_t first = factory.rank() - coordinate * stride;
    std::vector<int> line;
    for (std::int64_t i = 0; i < size; ++i) line.push_back(static_cast<int>(first + i * stride));
    shape_.push_back(size);
    axis_names_.push_back(name);
    groups_.push_back(factory.make_group(line, name, counter_));
    ranks_.push_back(std::move(line));
}

at::Generator DeviceMesh::generator(const at::Device& device) const
{
    auto generator = device.is_cpu() && own_generator_ ? *own_generator_ : at::globalContext().defaultGenerator(device);
    if (num_ranks() == 1 || compared_.contains(device.type())) return generator;
    at::Tensor state;
    {
        const std::lock_guard lock(generator.mutex());
        state = generator.get_state().contiguous();
    }
    const auto hashes = all_.all_gather_integers(hash_of_values(state));
    for (std::size_t r = 0; r < hashes.size(); ++r) {
        if (hashes[r] != hashes[0]) {
            throw InvalidInput("random numbers on a device mesh: the generators of rank 0 and rank {} are "
                               "in different states; the parts of a random tensor would not fit together. "
                               "Call torch::manual_seed with the same number on every rank first.",
                               r);
        }
    }
    compared_.insert(device.type());
    return generator;
}

bool DeviceMesh::has_axis(std::string_view name) const
{
    return contains(axis_names_, name);
}

bool DeviceMesh::is_folded() const
{
    return num_axes() > 1 && axis_names_.front() == in_a_row()->axis_names_.front() + ".0";
}

MeshAxis DeviceMesh::known_axis(std::int64_t axis) const
{
    return is_folded() ? in_a_row()->own_axis(0) : own_axis(axis);
}

bool DeviceMesh::has_axis(const MeshAxis& axis) const
{
    return std::ranges::any_of(numbers_from<std::int64_t>(0, num_axes()),
                               [&](std::int64_t a) { return known_axis(a) == axis || own_axis(a) == axis; });
}

std::int64_t DeviceMesh::axis(std::string_view name) const
{
    const auto found = std::ranges::find(axis_names_, name);
    if (found == axis_names_.end()) {
        throw InvalidInput("DeviceMesh: no axis '{}'. The axes are {}.", name, join(axis_names_));
    }
    return found - axis_names_.begin();
}

std::shared_ptr<const DeviceMesh> DeviceMesh::sub_mesh(std::string_view axis_name) const
{
    const auto index = axis(axis_name);
    if (num_axes() == 1) return shared_from_this();
    return sub_meshes_[index];
}

std::shared_ptr<const DeviceMesh> DeviceMesh::in_a_row() const
{
    return num_axes() == 1 ? shared_from_this() : in_a_row_;
}

}  // namespace meshard
