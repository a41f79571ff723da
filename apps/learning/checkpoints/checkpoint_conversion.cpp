// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/checkpoints/checkpoint_conversion.h"

#include "apps/console/console.h"
#include "apps/console/json_report.h"
#include "apps/console/text_table.h"
#include "io/bytes/made_folders.h"
#include "io/checkpoints/model_checkpoint.h"
#include "partition/nearest_name.h"

#include <fmt/ranges.h>

#include <array>
#include <filesystem>
#include <iostream>
#include <vector>

namespace meshard {
namespace {

constexpr std::array kFormats{CheckpointFormat::Mdlus, CheckpointFormat::Pt, CheckpointFormat::Safetensors};

CheckpointFormat format_of(const CheckpointConversion& options)
{
    if (options.to.empty()) {
        if (is_checkpoint_file(options.output)) return checkpoint_format(options.output);
        throw UsageError(
            "'{}' has no extension of a checkpoint (.mdlus, .pt, .pth, .safetensors). Name the format with --to.",
            options.output);
    }
    std::vector<std::string> names;
    for (const auto format : kFormats) {
        if (options.to == to_string(format)) return format;
        names.emplace_back(to_string(format));
    }
    throw UsageError("--to is '{}'; expected mdlus, pt or safetensors.{}", options.to, suggestion(options.to, names));
}

std::int64_t num_values(const ModelCheckpoint& checkpoint)
{
    std::int64_t count = 0;
    for (const auto& array : checkpoint.weights.arrays) count += array.num_values();
    return count;
}

std::uint64_t num_bytes(const ModelCheckpoint& checkpoint)
{
    std::uint64_t count = 0;
    for (const auto& array : checkpoint.weights.arrays) count += array.bytes().size();
    return count;
}

Json json_or_null(const std::string& text)
{
    return text.empty() ? Json() : Json::parse(text);
}

Json text_or_null(const std::string& text)
{
    return text.empty() ? Json() : Json(text);
}

std::string shape_text(const NamedArray& array)
{
    return fmt::format("({})", fmt::join(array.shape, ", "));
}

std::string name_of(const ModelCheckpoint& checkpoint)
{
    return checkpoint.architecture.empty() ? "model without a name" : checkpoint.architecture;
}

}  // namespace

void convert_checkpoint(const CheckpointConversion& options)
{
    const auto format = format_of(options);
    const auto checkpoint = read_checkpoint(options.input);
    for (const auto& note : checkpoint.notes) warn("convert", note);
    const MadeFolders folders(options.output);
    write_checkpoint(options.output, checkpoint, format);

    const auto written = std::filesystem::file_size(options.output);
    const auto count = std::ssize(checkpoint.weights.arrays);
    if (options.json) {
        print_json({{"input", options.input},
                    {"output", options.output},
                    {"format", to_string(format)},
                    {"architecture", text_or_null(checkpoint.architecture)},
                    {"num_arrays", count},
                    {"num_values", num_values(checkpoint)},
                    {"bytes", written},
                    {"warnings", checkpoint.notes}});
        return;
    }
    std::cout << options.input << ": " << name_of(checkpoint) << ", " << count_text(count, "array") << ", "
              << count_text(num_values(checkpoint), "value") << "\nwritten to " << options.output << " ("
              << bytes_text(written) << ")\n";
}

void print_checkpoint_info(const std::string& file, bool json)
{
    const auto checkpoint = read_checkpoint(file);
    const auto& arrays = checkpoint.weights.arrays;
    const auto arguments = json_or_null(checkpoint.arguments), others = json_or_null(checkpoint.others);
    if (json) {
        Json parameters = Json::array();
        for (const auto& array : arrays)
            parameters.push_back({{"name", array.name}, {"type", to_string(array.type)}, {"shape", array.shape}});
        print_json({{"file", file},
                    {"kind", "checkpoint"},
                    {"architecture", text_or_null(checkpoint.architecture)},
                    {"arguments", arguments},
                    {"others", others},
                    {"num_parameters", num_values(checkpoint)},
                    {"bytes", num_bytes(checkpoint)},
                    {"parameters", std::move(parameters)},
                    {"notes", checkpoint.notes}});
        return;
    }
    std::cout << file << ": checkpoint of a " << name_of(checkpoint) << ", " << count_text(std::ssize(arrays), "array")
              << ", " << count_text(num_values(checkpoint), "value") << ", " << bytes_text(num_bytes(checkpoint))
              << '\n';
    const auto print_values = [](const char* title, const Json& values) {
        if (values.is_null()) return;
        TextTable table("ll");
        for (const auto& [name, value] : values.items())
            table.add_row({"  " + name, value.dump(-1, ' ', false, Json::error_handler_t::replace)});
        std::cout << title << table;
    };
    print_values("  arguments\n", arguments);
    print_values("  other contents\n", others);
    std::cout << "  parameters\n";
    TextTable table("lll");
    for (const auto& array : arrays)
        table.add_row({"  " + array.name, std::string(to_string(array.type)), shape_text(array)});
    std::cout << table;
    for (const auto& note : checkpoint.notes) std::cout << "  note        " << note << '\n';
}

}  // namespace meshard
