// SPDX-License-Identifier: Apache-2.0
// A model of one's own, in one file: each point's features through an MLP, beside the mean over all points. It does not
// know of ranks; the line that begins with `const ModelRegistration` makes it known by name.
#include "models/registry/registry.h"

#include <torch/torch.h>

namespace meshard {
namespace {

struct PointMlpImpl : torch::nn::Module {
    PointMlpImpl(std::int64_t in, std::int64_t width, std::int64_t out)
    {
        up = register_module("up", torch::nn::Linear(2 * in, width));
        down = register_module("down", torch::nn::Linear(width, out));
    }

    torch::Tensor forward(const torch::Tensor& x)  // (B, N, in) to (B, N, out)
    {
        const auto mean = x.mean(1, /*keepdim=*/true).expand_as(x);  // over the points of all ranks
        return down(torch::gelu(up(torch::cat({x, mean}, -1))));
    }

    torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(PointMlp);

// --- its name, its arguments with their defaults, what of them follows from the data, and back (`predict --model`) ---

ModelEntry point_mlp_entry()
{
    return {.name = "point_mlp",
            .class_name = "PointMlp",
            .defaults = {{"in_dim", 0}, {"out_dim", 0}, {"width", 32}},
            .options = {{"width", "hidden channels"}},
            .kind = PointModel{
                .widths = [](const PointWidths& widths) -> nlohmann::json {
                    return {{"in_dim", widths.embedding_dim}, {"out_dim", widths.out_dim}};
                },
                .widths_of = [](const nlohmann::json& arguments, std::int64_t /*num_constants*/) -> PointWidths {
                    return {.embedding_dim = arguments.at("in_dim"),
                            .num_constants = 0,
                            .out_dim = arguments.at("out_dim")};
                },
                .make = [](const nlohmann::json& arguments) -> MadeModel {
                    PointMlp model(arguments.at("in_dim").get<int>(), arguments.at("width").get<int>(),
                                   arguments.at("out_dim").get<int>());
                    return {model.ptr(),
                            [model](const PointInputs& inputs) mutable { return model->forward(inputs.embedding); }};
                },
            }};
}

const ModelRegistration registration(point_mlp_entry());

}  // namespace
}  // namespace meshard
