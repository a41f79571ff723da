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

}  // namespace meshard
