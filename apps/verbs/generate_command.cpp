// meshard generate: generates fields on a regular grid from a denoiser's checkpoint and conditions.
#include "apps/learning/prediction/image_generation.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/output_file.h"
#include "apps/program/rank_program.h"
#include "apps/program/verbs.h"
#include "partition/error.h"

#include <filesystem>
#include <iostream>
#include <sstream>

namespace meshard {
namespace {

struct GenerateArguments {
    ImageGeneration generation;
    LocalRanks ranks;
    std::string device = "auto";
    InputAsOutput input_as_output{};
};

std::vector<std::string> words_of(const std::string& list, const char* option)
{
    std::vector<std::string> words;
    std::istringstream stream(list);
    for (std::string word; std::getline(stream, word, ',');) {
        if (word.empty()) throw UsageError("{} {}: expected names, e.g. a,b.", option, list);
        words.push_back(word);
    }
    return words;
}

bool parse(std::span<const std::string> arguments, GenerateArguments& options)
{
    CLI::App app("Generates fields on a regular grid from noise, step by step by Heun's method (Karras et al. 2022), "
                 "with a denoiser that\n"
                 "PhysicsNeMo saved: an EDMPreconditioner around a DiT, such as StormScope. The conditions must be in "
                 "the model's units. The\n"
                 "result is that of the seed, on any number of ranks.",
                 "generate");
    auto& generation = options.generation;
    auto& sampling = generation.sampling;
    std::string condition, arrays, fields, association = "point";
    add_named(app, "checkpoint", generation.checkpoint, "CHECKPOINT",
              "weights: .mdlus, or .safetensors or .pt with the .json that `meshard convert` writes beside it")
        ->required();
    add_named(app, "conditions", generation.conditions, "CONDITIONS",
              "image data of one layer whose arrays the model is told: .vti")
        ->required();
    add_named(app, "-o,--output", generation.output, "OUT",
              "file to write, with the conditions and the generated fields: .vti")
        ->required();
    add_count_option(app, "--steps", sampling.num_steps,
                     "levels of noise; the model is called twice at each but the last");
    add_shown(app, "--seed", sampling.seed, "S", "of all noise");
    add_count_option(app, "--samples", generation.num_samples, "images to generate, each from noise of its own");
    add_shown(app, "--sigma-min", sampling.sigma_min, "S", "lowest level of noise");
    add_shown(app, "--sigma-max", sampling.sigma_max, "S",
              "level of the noise at the start; the recipe of StormScope has 800");
    add_shown(app, "--rho", sampling.rho, "R", "larger: more of the steps at low noise");
    add_shown(app, "--churn", sampling.churn, "S", "noise that is added anew in all steps together (S_churn); 0: none");
    add_named(app, "--condition", condition, "A,...",
              "numbers of the whole image that the model is told, in the order of its training");
    add_named(app, "--arrays", arrays, "NAME,...", "arrays of the conditions in the order of the model's channels")
        ->default_str("all, in the file's order");
    add_named(app, "--fields", fields, "NAME,...", "names of the generated channels")->default_str("generated_1, ...");
    add_shown(app, "--association", association, "WHERE", "where the arrays live: point or cell");
    add_overwrite_option(app, options.input_as_output);
    add_device_option(app, options.device);
    add_rank_options(app, options.ranks);
    if (!parse_arguments(app, arguments)) return false;

    try {
        sampling.validate();
    } catch (const InvalidInput& wrong) {
        throw UsageError(wrong.what());
    }
    if (association != "cell" && association != "point")
        throw UsageError("--association is '{}'; expected point or cell.", association);
    generation.on_cells = association == "cell";
    if (!condition.empty()) generation.condition = parse_numbers(condition, "--condition");
    generation.arrays = words_of(arrays, "--arrays");
    generation.fields = words_of(fields, "--fields");
    for (const auto& [path, name] :
         {std::pair(&generation.conditions, "CONDITIONS"), std::pair(&generation.output, "-o")}) {
        if (path->extension() != ".vti") throw UsageError("{} {} must end in .vti.", name, path->string());
    }
    for (const auto* path : {&generation.checkpoint, &generation.conditions}) {
        if (!std::filesystem::exists(*path)) throw IoError("{} does not exist.", path->string());
    }
    return true;
}

}  // namespace

int generate_command(std::span<const std::string> arguments)
{
    GenerateArguments options;
    if (!parse(arguments, options)) return exit_code::ok;
    const auto& generation = options.generation;
    require_output(generation.output, {generation.checkpoint, generation.conditions}, options.input_as_output);
    cache_freed_memory();

    const auto verify = [&](int) { check_generation(generation); };
    const auto body = [&](World& world) {
        generate_file(generation, world);
        if (world.rank() == 0) {
            std::cout << generation.output.string() << " (model: " << generation.checkpoint.string() << ", "
                      << generation.sampling.num_steps << " steps, seed " << generation.sampling.seed << ")"
                      << std::endl;
        }
        return exit_code::ok;
    };
    return run_on_ranks(options.ranks, "generate", arguments, verify, body, options.device);
}

}  // namespace meshard
