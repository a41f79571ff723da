// SPDX-License-Identifier: Apache-2.0
#include "models/layers/coordinate_encoding.h"

#include "partition/error.h"
#include "partition/random_numbers.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace meshard {
namespace {

/// Normal random numbers, two at a time (Box and Muller, 1958): equal on every machine up to the last bits of its
/// logarithm and cosine.
class NormalNumbers {
public:
    explicit NormalNumbers(std::uint64_t seed) : numbers_(seed) {}

    double next()
    {
        const auto length = std::sqrt(-2 * std::log(uniform())), angle = 2 * std::numbers::pi * uniform();
        return length * std::cos(angle);
    }

private:
    double uniform() { return (static_cast<double>(numbers_.next() >> 11) + 0.5) * 0x1p-53; }  // never 0

    RandomNumbers numbers_;
};

// Makes directions independent of other draws from the seed.
constexpr std::uint64_t kSeedOfDirections = 0x6a09e667f3bcc909;

}  // namespace

CoordinateEncodingImpl::CoordinateEncodingImpl(const CoordinateEncodingOptions& options, std::uint64_t seed)
    : num_frequencies_(options.num_frequencies)
{
    if (options.kind != "fourier" && options.kind != "learnable")
        throw InvalidInput("encoding: '{}' is neither fourier nor learnable.", options.kind);
    const bool has_scales =
        !options.scales.empty() && std::ranges::all_of(options.scales, [](double scale) { return scale > 0; });
    if (num_frequencies_ < 1 || !has_scales)
        throw InvalidInput("encoding: expected at least one frequency, and scales above 0.");

    if (options.kind == "fourier") {
        NormalNumbers numbers(seed ^ kSeedOfDirections);
        auto directions = torch::empty({3, options.num_waves()}, torch::kFloat);
        for (std::int64_t wave = 0; wave < options.num_waves(); ++wave) {
            for (int c = 0; c < 3; ++c) directions[c][wave] = options.scales[wave / num_frequencies_] * numbers.next();
        }
        directions_ = register_buffer("directions", directions);
        return;
    }
    const auto [least, most] = std::minmax_element(options.scales.begin(), options.scales.end());
    const auto of_axis =
        torch::linspace(std::log(*least), std::log(*most), num_frequencies_, torch::kDouble).to(torch::kFloat);
    log_frequencies_ = register_parameter("log_frequencies", of_axis.repeat({3}));
    phases_ = register_parameter("phases", torch::zeros({3 * num_frequencies_}));
}

torch::Tensor CoordinateEncodingImpl::forward(const torch::Tensor& places) const
{
    constexpr auto turn = 2 * std::numbers::pi;
    const auto along = [&](std::int64_t axis) { return places.narrow(-1, axis, 1); };  // (B, N, 1)
    torch::Tensor angles;                                                              // (B, N, waves)
    if (directions_.defined()) {
        const auto turns = along(0) * directions_[0] + along(1) * directions_[1] + along(2) * directions_[2];
        angles = turns * turn;
    } else {
        const auto frequencies = log_frequencies_.exp() * turn;
        std::vector<torch::Tensor> of_axes;
        for (std::int64_t axis = 0; axis < 3; ++axis)
            of_axes.push_back(along(axis) * frequencies.narrow(0, axis * num_frequencies_, num_frequencies_));
        angles = torch::cat(of_axes, -1) + phases_;
    }
    return torch::cat({angles.sin(), angles.cos()}, -1);
}

}  // namespace meshard
