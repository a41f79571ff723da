// SPDX-License-Identifier: Apache-2.0
#include "models/registry/encoded_model.h"

#include "models/layers/coordinate_encoding.h"
#include "partition/error.h"

#include <torch/torch.h>

namespace meshard {

void encode_coordinates(Model& model, const CoordinateEncodingOptions& options, std::uint64_t seed)
{
    if (options.kind == "none") return;
    constexpr const char* name = "encoding";
    if (model.module->named_children().contains(name)) {
        throw InvalidInput("the model " + model.class_name + " has a part '" + name +
                           "' of its own, which is the name of data.encoding's. Set data.encoding=none.");
    }
    CoordinateEncoding encoding(options, seed);
    model.module->register_module(name, encoding);
    model.forward = [forward = model.forward, encoding](const PointInputs& inputs) {
        auto told = inputs;
        told.embedding = torch::cat({inputs.embedding, encoding->forward(inputs.embedding.narrow(-1, 0, 3))}, -1);
        return forward(told);
    };
}

}  // namespace meshard
