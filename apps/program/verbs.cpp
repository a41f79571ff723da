// SPDX-License-Identifier: Apache-2.0
#include "apps/program/verbs.h"

#include "apps/program/command_line.h"

// Each of the two programs has functions for its own verbs, and only names for the others
// (apps/program/sibling_program.h).
#ifdef MESHARD_MODELS_PROGRAM
#define MESHARD_VERBS(of_meshes, of_models) of_models
#else
#define MESHARD_VERBS(of_meshes, of_models) of_meshes
#endif

namespace meshard {

namespace {

constexpr auto table = std::to_array<Verb>({
    {"info", "what is in a mesh file, a shards folder or a checkpoint", MESHARD_VERBS(info_command, devices_command)},
    {"partition", "cut a mesh into shards with ghost layers", MESHARD_VERBS(partition_command, nullptr)},
    {"repartition", "cut a shards folder into another number of parts", MESHARD_VERBS(repartition_command, nullptr)},
    {"check", "check that the shards of a folder are complete and consistent", MESHARD_VERBS(check_command, nullptr)},
    {"merge", "merge the shards of a folder into one mesh file", MESHARD_VERBS(merge_command, nullptr)},
    {"convert", "write a mesh in another format", MESHARD_VERBS(convert_command, nullptr)},
    {"interpolate", "interpolate fields of one mesh at the points or cells of another",
     MESHARD_VERBS(nullptr, interpolate_command)},
    {"derive", "gradients, vorticity, Q criterion, distances to walls as fields",
     MESHARD_VERBS(nullptr, derive_command)},
    {"prepare", "cut and store the cases of a training run before it begins", MESHARD_VERBS(nullptr, prepare_command)},
    {"train", "train a model on shards, over any number of ranks", MESHARD_VERBS(nullptr, train_command)},
    {"predict", "predict fields on new meshes with a trained model", MESHARD_VERBS(nullptr, predict_command)},
    {"generate", "generate fields on a regular grid from noise with a trained denoiser",
     MESHARD_VERBS(nullptr, generate_command)},
    {"evaluate", "compare a trained model with cases whose fields are known", MESHARD_VERBS(nullptr, evaluate_command)},
    {"report", "judge runs on one page: errors, drag, pictures", MESHARD_VERBS(nullptr, report_command)},
    {"sweep", "train a grid of settings on folds and seeds, and compare", MESHARD_VERBS(nullptr, sweep_command)},
    {"export", "write a trained network as an ONNX model or a program of torch.export",
     MESHARD_VERBS(export_command, nullptr)},
    {"forces", "pressure and viscous forces, drag and lift of a surface", MESHARD_VERBS(forces_command, nullptr)},
    {"render", "draw a mesh coloured by a field to a PNG file", MESHARD_VERBS(render_command, nullptr)},
    {"probe", "run a TorchScript model sharded and serially, and compare", MESHARD_VERBS(nullptr, probe_command)},
    {"bench", "time training steps, or compare ways to cut meshes", MESHARD_VERBS(bench_command, model_bench_command)},
});

}  // namespace

std::span<const Verb> verbs()
{
    return table;
}

}  // namespace meshard
