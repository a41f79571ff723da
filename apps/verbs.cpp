// SPDX-License-Identifier: Apache-2.0
#include "apps/verbs.h"

#include <array>

#include "apps/command_line.h"

// Verbs that a build without LibTorch lacks.
#ifdef MESHARD_WITH_TORCH
#define MESHARD_TORCH_VERB(function) function
#else
#define MESHARD_TORCH_VERB(function) nullptr
#endif

namespace meshard {

namespace {

constexpr auto table = std::to_array<Verb>({
    {"info", "what is in a mesh file, a shards folder or a checkpoint", info_command},
    {"partition", "cut a mesh into shards with ghost layers", partition_command},
    {"repartition", "cut a shards folder into another number of parts", repartition_command},
    {"check", "test every promise that a shards folder makes", check_command},
    {"merge", "put the shards of a folder together again", merge_command},
    {"convert", "write a mesh in another format", convert_command},
    {"train", "train a model on shards, over any number of ranks", MESHARD_TORCH_VERB(train_command)},
    {"predict", "predict fields on new meshes with a trained model", MESHARD_TORCH_VERB(predict_command)},
    {"forces", "pressure and viscous forces, drag and lift of a surface", forces_command},
    {"render", "draw a mesh coloured by a field to a PNG file", render_command},
    {"probe", "run a TorchScript model sharded and serially, and compare", MESHARD_TORCH_VERB(probe_command)},
    {"bench", "time training steps, or compare ways to cut meshes", bench_command},
});

}  // namespace

std::span<const Verb> verbs()
{
    return table;
}

}  // namespace meshard
