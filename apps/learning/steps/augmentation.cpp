// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/steps/augmentation.h"

#include "io/bytes/content_hash.h"
#include "partition/error.h"
#include "partition/random_numbers.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace meshard {
namespace {

using Matrix = std::array<std::array<double, 3>, 3>;

Matrix product(const Matrix& a, const Matrix& b)
{
    Matrix c{};
    for (int i = 0; i < 3; ++i) {
        for (int j = 0; j < 3; ++j) {
            for (int k = 0; k < 3; ++k) c[i][j] += a[i][k] * b[k][j];
        }
    }
    return c;
}

/// Returns the rotation about an axis by an angle in radians (Rodrigues' formula).
Matrix rotation(const std::array<double, 3>& axis, double angle)
{
    const auto size = std::hypot(axis[0], axis[1], axis[2]);
    const auto x = axis[0] / size, y = axis[1] / size, z = axis[2] / size;
    const auto c = std::cos(angle), s = std::sin(angle), d = 1 - c;
    return {{{c + x * x * d, x * y * d - z * s, x * z * d + y * s},
             {y * x * d + z * s, c + y * y * d, y * z * d - x * s},
             {z * x * d - y * s, z * y * d + x * s, c + z * z * d}}};
}

/// The channels of a tensor, (1, N) each, which are mapped one group after the other. Sums are written out term by
/// term, so that they have the same bits for any number of rows.
class Channels {
public:
    explicit Channels(const at::Tensor& values) : columns_(values.unbind(-1)) {}

    /// Multiplies three channels by the matrix.
    void turn(std::int64_t first, const Matrix& matrix) { turn({first, first + 1, first + 2}, matrix); }
    void turn(const std::array<std::int64_t, 3>& places, const Matrix& matrix)
    {
        const std::array<at::Tensor, 3> old{columns_[places[0]], columns_[places[1]], columns_[places[2]]};
        for (int i = 0; i < 3; ++i) {
            at::Tensor sum;
            for (int k = 0; k < 3; ++k) {
                if (matrix[i][k] == 0) continue;
                const auto term = matrix[i][k] == 1 ? old[k] : old[k] * matrix[i][k];
                sum = sum.defined() ? sum + term : term;
            }
            columns_[places[i]] = sum.defined() ? sum : torch::zeros_like(old[0]);
        }
    }
    /// Multiplies nine channels, a tensor row by row, by the matrix from the left and its transpose from the right.
    void turn_tensor(std::int64_t first, const Matrix& matrix)
    {
        for (std::int64_t column = 0; column < 3; ++column)
            turn({first + column, first + 3 + column, first + 6 + column}, matrix);
        for (std::int64_t row = 0; row < 3; ++row) turn(first + 3 * row, matrix);
    }
    void add(std::int64_t channel, double value)
    {
        if (value != 0) columns_[channel] = columns_[channel] + value;
    }
    void negate(std::int64_t channel) { columns_[channel] = -columns_[channel]; }
    at::Tensor values() const { return torch::stack(columns_, -1); }

private:
    std::vector<at::Tensor> columns_;
};

/// Applies `change` to this rank's channels.
template <class Change>
at::Tensor with_channels(const at::Tensor& tensor, const Change& change)
{
    Channels channels(to_local(tensor));
    change(channels);
    return is_sharded(tensor) ? from_local(channels.values(), spec_of(tensor)) : channels.values();
}

std::int64_t index_in(const std::vector<std::string>& names, const std::string& name)
{
    return std::ranges::find(names, name) - names.begin();
}

}  // namespace

SceneMap drawn_map(const AugmentationConfig& augmentation, const std::array<double, 3>& up, std::int64_t seed,
                   std::int64_t epoch, const std::string& case_id)
{
    RandomNumbers numbers(xxh64_of_text(fmt::format("augmentation {} {} {}", seed, epoch, case_id)));
    const auto uniform = [&] { return static_cast<double>(numbers.next() >> 11) * 0x1p-53; };  // in [0, 1)
    SceneMap map;
    // All numbers are drawn whether they are used or not, so that turning on one variation leaves the others' draws
    // unchanged.
    const auto chance = uniform(), turn = uniform();
    map.is_mirrored = augmentation.mirror_axis >= 0 && chance < augmentation.mirror_share;
    if (map.is_mirrored) map.matrix[augmentation.mirror_axis][augmentation.mirror_axis] = -1;
    if (augmentation.rotation > 0)
        map.matrix = product(rotation(up, (2 * turn - 1) * augmentation.rotation), map.matrix);
    for (int c = 0; c < 3; ++c) map.shift[c] = (2 * uniform() - 1) * augmentation.translation[c];
    return map;
}

CaseTensors mapped_case(const CaseTensors& example, const SceneMap& map, const AugmentationConfig& augmentation,
                        const DataConfig& data)
{
    auto result = example;
    const auto move = [&](Channels& channels) {
        channels.turn(0, map.matrix);
        for (int c = 0; c < 3; ++c) channels.add(c, map.shift[c]);
    };
    result.inputs.embedding = with_channels(example.inputs.embedding, [&](Channels& channels) {
        move(channels);
        for (const char* input : {"normals", "wall_direction", "box"}) {
            if (data.has_input(input)) channels.turn(first_channel(data, input), map.matrix);
        }
    });
    result.inputs.positions = with_channels(example.inputs.positions, move);

    auto of_axial = map.matrix;
    for (auto& row : of_axial) {
        for (auto& number : row) number *= map.is_mirrored ? -1 : 1;
    }
    result.target = with_channels(example.target, [&](Channels& channels) {
        std::int64_t first = 0;
        for (std::size_t f = 0; f < data.fields.size(); ++f) {
            const auto& kind = data.fields[f].kind;
            if (kind == "tensor")
                channels.turn_tensor(first, map.matrix);
            else if (is_vector(data.fields[f]))
                channels.turn(first, kind == "axial" ? of_axial : map.matrix);
            first += example.channels[f];
        }
    });

    const auto& stream = augmentation.free_stream;
    if (!stream.empty() || (map.is_mirrored && !augmentation.sided_constants.empty())) {
        result.inputs.constants = with_channels(example.inputs.constants, [&](Channels& channels) {
            if (!stream.empty())
                channels.turn({index_in(data.constants, stream[0]), index_in(data.constants, stream[1]),
                               index_in(data.constants, stream[2])},
                              map.matrix);
            for (const auto& name : augmentation.sided_constants) {
                if (map.is_mirrored) channels.negate(index_in(data.constants, name));
            }
        });
    }
    return result;
}

void require_turnable(const DataConfig& data, std::span<const std::int64_t> channels)
{
    for (std::size_t f = 0; f < data.fields.size(); ++f) {
        const auto& field = data.fields[f];
        const auto expected = is_vector(field) ? 3 : field.kind == "tensor" ? 9 : channels[f];
        const bool is_known = !field.kind.empty() || channels[f] == 1;
        if (is_known && channels[f] == expected) continue;
        const auto what = fmt::format("the field '{}' has {} component(s)", field.name, channels[f]);
        if (is_known) {
            throw InvalidInput("training.augment: {}, and its kind is {}, which has {}: how it turns is not known.",
                               what, field.kind, expected);
        }
        throw InvalidInput(
            "training.augment: {} and no kind: whether they turn with the scene is not known. Set data.fields.{}.kind "
            "to velocity, stress, vector, axial or tensor, or to scalar if they do not.",
            what, field.name);
    }
}

void require_whole_body(const std::string& case_id, const std::array<double, 6>& bounds, int axis)
{
    constexpr double kTouches = 1e-3;  // share of the box by which a half body may reach over the plane
    const auto low = bounds[2 * axis], high = bounds[2 * axis + 1], reach = kTouches * (high - low);
    if (low < -reach && high > reach) return;
    const auto name = static_cast<char>('x' + axis);
    throw InvalidInput(
        "training.augment.mirror is {0}, and case {1} lies on one side of the plane {0} = 0, from {2:f} to {3:f}: "
        "half a body, whose mirror image no prediction ever sees. Leave mirror out, or, if it is a whole one, set "
        "training.augment.half_bodies=mirrored.",
        name, case_id, low, high);
}

}  // namespace meshard
