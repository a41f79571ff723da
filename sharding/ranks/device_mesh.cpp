// SPDX-License-Identifier: Apache-2.0
#include "sharding/ranks/device_mesh.h"

#include "partition/error.h"
#include "sharding/ranks/value_hash.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <fmt/core.h>

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

}  // namespace

std::shared_ptr<const DeviceMesh> DeviceMesh::single()
{
    auto mesh = std::shared_ptr<DeviceMesh>(new DeviceMesh);
    mesh->shape_ = {1};
    mesh->axis_names_ = {"domain"};
    mesh->groups_.resize(1);
    return mesh;
}

std::shared_ptr<const DeviceMesh> DeviceMesh::create(GroupFactory& factory, std::vector<std::int64_t> shape,
                                                     std::vector<std::string> axis_names)
{
    const auto product = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    if (shape.size() != axis_names.size() || shape.empty()) {
        throw InvalidInput(fmt::format("DeviceMesh: {} sizes for {} axis names; give one size an axis.", shape.size(),
                                       axis_names.size()));
    }
    if (product != factory.size() || *std::min_element(shape.begin(), shape.end()) < 1) {
        std::string text;
        for (const auto size : shape) text += (text.empty() ? "" : " x ") + std::to_string(size);
        throw InvalidInput(
            fmt::format("DeviceMesh: {} makes {} ranks, but there are {}. Start as many ranks as the axes multiply to.",
                        text, product, factory.size()));
    }

    auto mesh = std::shared_ptr<DeviceMesh>(new DeviceMesh);
    mesh->shape_ = std::move(shape);
    mesh->axis_names_ = std::move(axis_names);
    mesh->own_generator_ = factory.generator();

    std::vector<int> everyone(factory.size());
    std::iota(everyone.begin(), everyone.end(), 0);
    mesh->all_ = factory.make_group(everyone, "all", "all", mesh->counter_);

    std::int64_t stride = product;
    for (std::int64_t axis = 0; axis < mesh->num_axes(); ++axis) {
        stride /= mesh->shape_[axis];
        // The group on this axis consists of the ranks that differ from this one in this coordinate only.
        const std::int64_t coordinate = factory.rank() / stride % mesh->shape_[axis];
        const std::int64_t first = factory.rank() - coordinate * stride;
        std::vector<int> line;
        for (std::int64_t i = 0; i < mesh->shape_[axis]; ++i) line.push_back(static_cast<int>(first + i * stride));
        const auto& name = mesh->axis_names_[axis];
        mesh->groups_.push_back(factory.make_group(line, fmt::format("{}.{}", name, first), name, mesh->counter_));
    }
    if (mesh->num_axes() > 1) {
        for (std::int64_t axis = 0; axis < mesh->num_axes(); ++axis) {
            auto line = std::shared_ptr<DeviceMesh>(new DeviceMesh);
            line->shape_ = {mesh->shape_[axis]};
            line->axis_names_ = {mesh->axis_names_[axis]};
            line->groups_ = {mesh->groups_[axis]};
            line->all_ = mesh->groups_[axis];
            line->counter_ = mesh->counter_;
            line->own_generator_ = mesh->own_generator_;
            mesh->sub_meshes_.push_back(std::move(line));
        }
    }
    return mesh;
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
    const std::vector<std::int64_t> own{hash_of_values(state)};
    const auto hashes = all_.all_gather_integers(own);
    for (std::size_t r = 0; r < hashes.size(); ++r) {
        if (hashes[r] != hashes[0]) {
            throw InvalidInput(fmt::format("random numbers on a device mesh: the generators of rank 0 and rank {} are "
                                           "in different states; the parts of a random tensor would not fit together. "
                                           "Call torch::manual_seed with the same number on every rank first.",
                                           r));
        }
    }
    compared_.insert(device.type());
    return generator;
}

bool DeviceMesh::has_axis(std::string_view name) const
{
    return std::find(axis_names_.begin(), axis_names_.end(), name) != axis_names_.end();
}

std::int64_t DeviceMesh::axis(std::string_view name) const
{
    const auto found = std::find(axis_names_.begin(), axis_names_.end(), name);
    if (found == axis_names_.end()) {
        throw InvalidInput("DeviceMesh: no axis '" + std::string(name) + "'. The axes are " + join(axis_names_) + ".");
    }
    return found - axis_names_.begin();
}

std::shared_ptr<const DeviceMesh> DeviceMesh::sub_mesh(std::string_view axis_name) const
{
    const auto index = axis(axis_name);
    if (num_axes() == 1) return shared_from_this();
    return sub_meshes_[index];
}

}  // namespace meshard
