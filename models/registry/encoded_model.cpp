// SPDX-License-Identifier: Apache-2.0
#include "models/registry/encoded_model.h"

#include "models/layers/coordinate_encoding.h"

#include <torch/types.h>

namespace meshard {

void encode_coordinates(Model& model, const CoordinateEncodingOptions& options, std::uint64_t seed)
{
    if (options.kind == "none") return;
    CoordinateEncoding encoding(options, seed);
    add_part(model, "encoding", encoding.ptr(), "data.encoding's. Set data.encoding=none.");
    model.forward = [forward = model.forward, encoding](const PointInputs& inputs) {
        auto told = inputs;
        told.embedding = torch::cat({inputs.embedding, encoding->forward(inputs.embedding.narrow(-1, 0, 3))}, -1);
        return forward(told);
    };
}

at::Tensor CategoryChannels::one_hot(const at::Tensor& x) const
{
    if (values.empty()) return x;
    std::vector<at::Tensor> parts{x.narrow(-1, 0, first)};
    auto channel = first;
    for (const auto& kinds : values) {
        const auto numbers = x.narrow(-1, channel++, 1);
        for (const auto kind : kinds) parts.push_back(numbers.eq(kind).to(x.scalar_type()));
    }
    parts.push_back(x.narrow(-1, channel, x.size(-1) - channel));
    return torch::cat(parts, -1);
}

void encode_categories(Model& model, const CategoryChannels& categories)
{
    if (categories.values.empty()) return;
    model.forward = [forward = model.forward, categories](const PointInputs& inputs) {
        auto told = inputs;
        told.embedding = categories.one_hot(inputs.embedding);
        return forward(told);
    };
}

}  // namespace meshard
