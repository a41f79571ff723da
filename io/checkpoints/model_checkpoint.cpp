// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoints/model_checkpoint.h"

#include "io/bytes/atomic_file.h"
#include "io/bytes/hashed_json.h"
#include "io/bytes/mapped_file.h"
#include "io/bytes/tar_archive.h"
#include "io/bytes/zip_archive.h"
#include "io/checkpoints/torch_file.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <set>

namespace meshard {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMetadataKey = checkpoint_key;
constexpr const char* kFileVersion = "0.1.0";  // version of .mdlus files, unless a class has its own
// Prefix of a nested model's path within the model: `model`, `model.model`.
constexpr std::string_view kNestedPrefix = "__physicsnemo.Module__.";
constexpr int kDeepest = 64;                             // largest nesting of dicts and lists
constexpr std::uintmax_t kLongestDescription = 1 << 20;  // bytes of a .json beside the weights
// Largest number of entries in a dict and everything below it; limits values that are shared repeatedly.
constexpr std::size_t kMostEntries = 1'000'000;

struct KnownModel {
    const char* name;
    const char* module;  // PhysicsNeMo's module of the class
    // An argument that PhysicsNeMo's class does not have (about inputs): stored in metadata.json of .mdlus files.
    const char* beside = nullptr;
    const char* unspeakable = nullptr;   // an argument that a .mdlus cannot store and that changes the model
    const char* version = kFileVersion;  // version of written files
};
constexpr KnownModel kKnownModels[] = {
    {"Transolver", "physicsnemo.models.transolver.transolver", nullptr, "authors_constants"},
    {"GeoTransolver", "physicsnemo.models.geotransolver.geotransolver"},
    {"FLARE", "physicsnemo.models.flare.flare"},
    {"MeshGraphNet", "physicsnemo.models.meshgraphnet.meshgraphnet", "num_neighbors"},
    {"DiT", "physicsnemo.models.dit.dit", nullptr, nullptr, "0.2.0"},
    {"EDMPreconditioner", "physicsnemo.diffusion.preconditioners.preconditioners"},
    {"ConcatConditionWrapper", "physicsnemo.diffusion.utils.model_wrappers"},
    {"DoMINO", "physicsnemo.models.domino.model"},
    {"FIGConvUNet", "physicsnemo.models.figconvnet.figconvunet"},
    {"UNet", "physicsnemo.models.unet.unet"},
    {"FNO", "physicsnemo.models.fno.fno"}};

const KnownModel* known_model(std::string_view name)
{
    const auto known = std::ranges::find(kKnownModels, name, &KnownModel::name);
    return known == std::end(kKnownModels) ? nullptr : known;
}

// Keys under which training scripts save the state dict, the most common first.
constexpr std::array kStateDictKeys{"model_state_dict", "state_dict", "model",   "model_state",
                                    "module",           "net",        "network", "weights"};

std::string dump(const Json& json)
{
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

class CheckpointReader {
public:
    explicit CheckpointReader(const std::filesystem::path& path)
        : path_(path), where_("read_checkpoint: " + path.string()), file_(MappedFile::open(path, "read_checkpoint"))
    {
    }

    ModelCheckpoint read()
    {
        const SharedBytes bytes{file_->bytes(), file_};
        // A tar archive that contains a zip archive ends like one, so that tar is tested first.
        if (looks_like_tar(bytes.bytes)) {
            const auto files = read_tar(bytes, where_);
            read_mdlus([&](const char* name) {
                const auto found = files.find(name);
                if (found == files.end())
                    fail(std::string("has no '") + name + "', so it is no PhysicsNeMo checkpoint");
                return found->second;
            });
        } else if (looks_like_zip(bytes.bytes)) {
            const ZipArchive archive(bytes, where_);
            if (archive.contains("args.json") || archive.contains("model.pt"))
                read_mdlus([&](const char* name) { return archive.read(name); });
            else
                read_torch_file(bytes);
        } else if (looks_like_safetensors(bytes.bytes) || lower_extension(path_) == ".safetensors") {
            read_safetensors_file();
        } else if (bytes.bytes.empty()) {
            fail("is empty. It is truncated");
        } else {
            read_torch_file(bytes);
        }
        if (checkpoint_.architecture.empty()) read_description_beside();
        clean_names();
        return std::move(checkpoint_);
    }

private:
    [[noreturn]] void fail(const std::string& what) const { throw IoError("{} {}.", where_, what); }
    void note(std::string text) { checkpoint_.notes.push_back(std::move(text)); }

    Json parse(const SharedBytes& bytes, const char* name) const
    {
        const auto watch = [&](int depth, Json::parse_event_t, Json&) {
            if (depth > kDeepest) fail(fmt::format("has '{}' nested deeper than {} levels", name, kDeepest));
            return true;
        };
        try {
            return Json::parse(bytes.text(), watch);
        } catch (const nlohmann::json::exception& error) {
            fail(std::string("has '") + name + "' that is not valid JSON (" + error.what() + ")");
        }
    }

    void read_mdlus(const std::function<SharedBytes(const char*)>& member)
    {
        const auto metadata = parse(member("metadata.json"), "metadata.json");
        const auto description = parse(member("args.json"), "args.json");
        if (!is_description(description)) fail("has 'args.json' without the class's __name__ and its __args__");
        require_version(metadata, "", description["__name__"].get<std::string>());
        read_torch_file(member("model.pt"));
        checkpoint_.architecture = description["__name__"].get<std::string>();
        auto arguments = with_nested(description["__args__"], "", description, metadata, 0);
        if (metadata.contains(kMetadataKey) && metadata[kMetadataKey].is_object())
            arguments.update(metadata[kMetadataKey]);
        checkpoint_.arguments = dump(arguments);
    }

    static bool is_description(const Json& json)
    {
        return json.is_object() && json.contains("__name__") && json["__name__"].is_string() &&
               json.contains("__args__") && json["__args__"].is_object();
    }

    /// @param prefix   empty, or the path of a nested model followed by a point
    void require_version(const Json& metadata, const std::string& prefix, const std::string& class_name) const
    {
        const auto key = prefix + "mdlus_file_version";
        const auto version = metadata.is_object() && metadata.contains(key) ? metadata[key] : Json();
        const auto* known = known_model(class_name);
        const std::string newest = known ? known->version : kFileVersion;
        if (version == kFileVersion || version == newest) return;
        fail("has " + key + " " + dump(version) + ", expected \"" + kFileVersion + "\"" +
             (newest == kFileVersion ? "" : " or \"" + newest + "\""));
    }

    /// Inserts the arguments of nested models, each as {"__name__": class, "__args__": arguments}.
    Json with_nested(const Json& arguments, const std::string& place, const Json& root, const Json& metadata, int depth)
    {
        if (depth > kDeepest) fail(fmt::format("has models nested deeper than {} levels", kDeepest));
        auto complete = arguments;
        for (auto& [name, value] : complete.items()) {
            const auto key = std::string(kNestedPrefix) + place + name;
            if (value != key) continue;
            if (!root.contains(key) || !is_description(root[key]))
                fail("has 'args.json' without the nested model '" + key + "'");
            const auto& nested = root[key];
            require_version(metadata, key + ".", nested["__name__"].get<std::string>());
            value = Json{{"__name__", nested["__name__"]},
                         {"__args__", with_nested(nested["__args__"], place + name + ".", root, metadata, depth + 1)}};
        }
        return complete;
    }

    void read_safetensors_file()
    {
        checkpoint_.weights = read_safetensors(path_);
        const auto found = checkpoint_.weights.metadata.find(kMetadataKey);
        if (found == checkpoint_.weights.metadata.end()) return;
        const Json description = Json::parse(found->second, nullptr, false);
        if (!description.is_object()) fail("has damaged metadata '" + std::string(kMetadataKey) + "'");
        take_description(description);
    }

    void take_description(const Json& description)
    {
        if (description.contains("model_class") && description["model_class"].is_string())
            checkpoint_.architecture = description["model_class"].get<std::string>();
        if (description.contains("model") && description["model"].is_object())
            checkpoint_.arguments = dump(description["model"]);
        if (description.contains("others") && description["others"].is_object())
            checkpoint_.others = dump(description["others"]);
    }

    /// Reads the .json beside a file that has weights only; a .json that does not describe a model is ignored.
    void read_description_beside()
    {
        auto beside = path_;
        beside.replace_extension(".json");
        std::error_code error;
        if (!std::filesystem::is_regular_file(beside, error) ||
            std::filesystem::file_size(beside, error) > kLongestDescription)
            return;
        const auto file = MappedFile::open(beside, "read_checkpoint");
        const SharedBytes bytes{file->bytes(), file};
        const auto description = Json::parse(bytes.text(), nullptr, false);
        if (description.is_discarded() && bytes.text().find("\"model_class\"") != std::string_view::npos)
            throw IoError("{}, which describes the model of {}, is damaged: it is no valid JSON. Take another copy.",
                          beside.string(), path_.filename().string());
        if (!description.is_object()) return;
        require_hash(description, beside.string(),
                     "Take another copy; if the change was meant, remove the entry hash.");
        if (!description.contains("model_class") || !description.contains("model")) return;
        take_description(description);
        note("architecture and arguments are those of " + beside.filename().string() + " beside it.");
    }

    void read_torch_file(const SharedBytes& bytes)
    {
        TorchFile file(bytes, where_);
        torch_file_ = &file;
        const PickleValue* weights = find_state_dict(file.root());
        Json others = Json::object();
        if (weights == nullptr) {
            if (!file.root().as<PickleValue::Dict>()) fail("holds no dict of tensors. Save the model's state_dict()");
            take_tensors(file.root(), "", 0);
            others = to_json(file.root(), nullptr, 0);
        } else {
            take_tensors(*weights, "", 0);
            for (const auto& [key, item] : weights->as<PickleValue::Dict>()->items) {
                if (!is_tensor(*item)) note("'" + key_text(*key) + "' is no tensor and is left out.");
            }
            if (weights != &file.root()) {
                num_left_out_ = 0;
                others = to_json(file.root(), weights, 0);
                if (num_left_out_ > 0)
                    note(fmt::format("{} tensors beside the model's state dict (an optimizer's, say) are left out.",
                                     num_left_out_));
            }
        }
        if (!others.empty()) checkpoint_.others = dump(others);
        torch_file_ = nullptr;
    }

    static bool is_state_dict(const PickleValue& value)
    {
        const auto* dict = value.as<PickleValue::Dict>();
        return dict && !dict->items.empty() && std::ranges::all_of(dict->items, [](const auto& item) {
                   const auto* name = item.first->template as<std::string>();
                   const bool is_extra = name && name->ends_with("_extra_state");
                   return name && (is_extra || item.second->template as<PickledTensor>());
               });
    }

    /// Returns null if there is none.
    static const PickleValue* find_state_dict(const PickleValue& root)
    {
        if (is_state_dict(root)) return &root;
        for (const char* key : kStateDictKeys) {
            if (const auto* value = root.find(key); value && is_state_dict(*value)) return value;
        }
        return nullptr;
    }

    void count_entry(int depth)
    {
        if (depth > kDeepest) fail(fmt::format("is nested deeper than {} levels, or contains itself", kDeepest));
        if (++num_entries_ > kMostEntries) fail(fmt::format("has more than {} entries", kMostEntries));
    }

    std::string key_text(const PickleValue& key) const
    {
        if (const auto* text = key.as<std::string>()) {
            try {
                static_cast<void>(Json(*text).dump());
            } catch (const nlohmann::json::exception&) {
                fail("has a name that is not valid UTF-8. It is damaged");
            }
            return *text;
        }
        if (const auto* number = key.as<std::int64_t>()) return std::to_string(*number);
        fail("has a key that is neither a text nor an integer");
    }

    /// Appends the tensors in `value`, named by their keys joined by dots.
    void take_tensors(const PickleValue& value, const std::string& prefix, int depth)
    {
        const auto visit = [&](const std::string& name, const PickleValue& item) {
            count_entry(depth);
            if (const auto* tensor = item.as<PickledTensor>()) {
                if (!names_.insert(prefix + name).second) fail("has two tensors '" + prefix + name + "'");
                checkpoint_.weights.arrays.push_back(torch_file_->array(prefix + name, *tensor));
            } else {
                take_tensors(item, prefix + name + ".", depth + 1);
            }
        };
        if (const auto* dict = value.as<PickleValue::Dict>()) {
            for (const auto& [key, item] : dict->items) visit(key_text(*key), *item);
        } else if (const auto* list = value.as<PickleValue::Sequence>()) {
            for (std::size_t i = 0; i < list->items.size(); ++i) visit(std::to_string(i), *list->items[i]);
        }
    }

    /// Converts a value without its tensors, which are counted, and without `skipped`.
    Json to_json(const PickleValue& value, const PickleValue* skipped, int depth)
    {
        count_entry(depth);
        if (const auto* flag = value.as<bool>()) return *flag;
        if (const auto* integer = value.as<std::int64_t>()) return *integer;
        if (const auto* number = value.as<double>())
            return std::isfinite(*number) ? Json(*number) : Json(std::to_string(*number));
        if (const auto* text = value.as<std::string>()) return *text;
        if (const auto* dict = value.as<PickleValue::Dict>()) {
            Json json = Json::object();
            for (const auto& [key, item] : dict->items) {
                if (item == skipped) continue;
                if (is_tensor(*item)) {
                    ++num_left_out_;
                    continue;
                }
                auto below = to_json(*item, skipped, depth + 1);
                const auto* below_dict = item->as<PickleValue::Dict>();
                if (below_dict && !below_dict->items.empty() && below.empty()) continue;  // it contained only tensors
                json[key_text(*key)] = std::move(below);
            }
            return json;
        }
        if (const auto* list = value.as<PickleValue::Sequence>()) {
            Json json = Json::array();
            for (const auto* item : list->items) {
                if (is_tensor(*item))
                    ++num_left_out_;
                else
                    json.push_back(to_json(*item, skipped, depth + 1));
            }
            return json;
        }
        return nullptr;
    }

    static bool is_tensor(const PickleValue& value) { return value.as<PickledTensor>() != nullptr; }

    void clean_names()
    {
        auto& arrays = checkpoint_.weights.arrays;
        const auto num_dropped =
            std::erase_if(arrays, [](const NamedArray& array) { return array.name.ends_with("device_buffer"); });
        if (num_dropped > 0)
            note(fmt::format("{} 'device_buffer' entries are left out; no model needs them.", num_dropped));
        for (bool is_changed = true; is_changed;) {
            is_changed = false;
            for (const std::string_view prefix : {"module.", "_orig_mod."}) {
                const bool is_everywhere = !arrays.empty() && std::ranges::all_of(arrays, [&](const NamedArray& array) {
                    return array.name.size() > prefix.size() && array.name.starts_with(prefix);
                });
                if (!is_everywhere) continue;
                for (auto& array : arrays) array.name.erase(0, prefix.size());
                note("the prefix '" + std::string(prefix) + "' of all names is removed.");
                is_changed = true;
            }
        }
        constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {
            {".linear_pre.0.", ".layers.0."}, {".linear_pre.", ".layers.0."}, {".linear_post.", ".layers.2."}};
        std::size_t num_renamed = 0;
        if (checkpoint_.architecture == "DiT" || checkpoint_.architecture == "EDMPreconditioner") move_time_embedder();
        std::set<std::string_view> names;
        for (auto& array : arrays) {
            for (const auto& [old_name, new_name] : kRenamed) {
                const auto at = array.name.find(old_name);
                if (at == std::string::npos) continue;
                array.name.replace(at, old_name.size(), new_name);
                ++num_renamed;
            }
            if (!names.insert(array.name).second) fail("has '" + array.name + "' under an old and a new name");
        }
        if (num_renamed > 0)
            note(fmt::format("{} names of an older version (linear_pre, linear_post) are changed to today's.",
                             num_renamed));
    }

    /// Older files of a DiT have the time embedder at the top level, and its frequencies, which follow from the
    /// arguments.
    void move_time_embedder()
    {
        constexpr std::string_view kEmbedder = "t_embedder.", kAround = "conditioning_embedder.";
        const auto place = [&](const NamedArray& array) {
            const auto at = array.name.find(kEmbedder);
            const bool is_part = at != std::string::npos && (at == 0 || array.name[at - 1] == '.');
            return is_part && !std::string_view(array.name).substr(0, at).ends_with(kAround) ? at : std::string::npos;
        };
        auto& arrays = checkpoint_.weights.arrays;
        std::erase_if(arrays, [&](const NamedArray& array) {
            return place(array) != std::string::npos && array.name.ends_with(".freqs");
        });
        std::size_t num_moved = 0;
        for (auto& array : arrays) {
            const auto at = place(array);
            if (at == std::string::npos) continue;
            array.name.insert(at, kAround);
            ++num_moved;
        }
        if (num_moved > 0)
            note(fmt::format("{} names of an older version (t_embedder) are changed to today's.", num_moved));
    }

    std::filesystem::path path_;
    std::string where_;
    std::shared_ptr<const MappedFile> file_;
    TorchFile* torch_file_ = nullptr;
    std::set<std::string> names_;
    std::size_t num_entries_ = 0;
    std::size_t num_left_out_ = 0;
    ModelCheckpoint checkpoint_;
};

void write_pieces(const std::filesystem::path& path, const std::vector<std::span<const std::byte>>& pieces)
{
    AtomicFile file(path);
    for (const auto& piece : pieces) file.write(piece);
    file.commit();
}

/// The model's own arrays, without those of the optimizer and the normaliser.
NamedArrays model_weights(const NamedArrays& content)
{
    NamedArrays weights;
    for (const auto& array : content.arrays) {
        if (!array.name.starts_with("optimizer.") && !array.name.starts_with("norm.")) weights.arrays.push_back(array);
    }
    return weights;
}

/// The second names that DoMINO's class has for its networks, below `solution_calculator_surf.` and
/// `solution_calculator_vol.`: pairs of the first and the second name.
std::array<std::pair<std::string, std::string>, 3> names_in_calculator(const std::string& kind)
{
    const std::string calculator = "solution_calculator_" + kind + ".";
    return {{{"agg_model_" + kind + ".", calculator + "aggregation_model."},
             {"nn_basis_" + kind + ".", calculator + "nn_basis."},
             {"parameter_model.", calculator + "parameter_model."}}};
}

/// DoMINO's class has two names for some of its weights, and expects both in a file: those of the networks are also
/// parts of the solution calculator.
NamedArrays with_second_names(const ModelCheckpoint& checkpoint, NamedArrays weights)
{
    if (checkpoint.architecture != "DoMINO") return weights;
    const auto has = [&](std::string_view prefix) {
        return std::ranges::any_of(weights.arrays,
                                   [&](const NamedArray& array) { return array.name.starts_with(prefix); });
    };
    std::vector<NamedArray> added;
    for (const std::string kind : {"surf", "vol"}) {
        if (!has("agg_model_" + kind + ".")) continue;
        for (const auto& array : weights.arrays) {
            for (const auto& [first, second] : names_in_calculator(kind)) {
                if (!array.name.starts_with(first)) continue;
                auto copy = array;
                copy.name = second + array.name.substr(first.size());
                if (!weights.find(copy.name)) added.push_back(std::move(copy));
            }
        }
    }
    append(weights.arrays, added);
    return weights;
}

Json description_of(const ModelCheckpoint& checkpoint)
{
    Json description = Json::object();
    if (!checkpoint.architecture.empty()) description["model_class"] = checkpoint.architecture;
    if (!checkpoint.arguments.empty()) description["model"] = Json::parse(checkpoint.arguments);
    if (!checkpoint.others.empty()) description["others"] = Json::parse(checkpoint.others);
    return description;
}

std::filesystem::path beside(std::filesystem::path path)
{
    return path.replace_extension(".json");
}

/// Whether a file describes a checkpoint, and may be replaced with it.
bool is_description(const std::filesystem::path& file)
{
    const auto text = MappedFile::open(file, "write_checkpoint");
    const auto content = Json::parse(text->text(), nullptr, false);
    return content.is_object() && (content.contains("hash") || content.contains("model_class"));
}

/// Throws if a file that is no description of a checkpoint would be replaced by one.
void require_free_beside(const std::filesystem::path& path)
{
    if (const auto file = beside(path); std::filesystem::exists(file) && !is_description(file))
        throw InvalidInput("write_checkpoint: {} is not the description of a checkpoint, and that of {} would "
                           "replace it. Take another name for one of them.",
                           file.string(), path.filename().string());
}

void write_beside(const std::filesystem::path& path, const Json& description)
{
    write_file_atomically(beside(path), with_hash(description).dump(2) + "\n");
}

/// Moves the arguments of nested models to keys of their own, as in a .mdlus, with the versions of their files.
void move_nested(Json& arguments, const std::string& place, Json& root, Json& metadata)
{
    for (auto& [name, value] : arguments.items()) {
        if (!value.is_object() || !value.contains("__name__") || !value.contains("__args__")) continue;
        const auto class_name = value["__name__"].get<std::string>();
        const auto* known = known_model(class_name);
        if (!known)
            throw InvalidInput(
                "write_checkpoint: the model within the model, '{}', is not a known class. Write .pt or .safetensors.",
                class_name);
        const auto key = std::string(kNestedPrefix) + place + name;
        auto nested = value["__args__"];
        root[key] = nullptr;  // PhysicsNeMo's order in files: outer models first
        move_nested(nested, place + name + ".", root, metadata);
        root[key] = Json{{"__name__", known->name}, {"__module__", known->module}, {"__args__", nested}};
        metadata[key + ".mdlus_file_version"] = known->version;
        value = key;
    }
}

void write_mdlus(const std::filesystem::path& path, const ModelCheckpoint& checkpoint)
{
    const auto* known = known_model(checkpoint.architecture);
    if (!known || checkpoint.arguments.empty())
        throw InvalidInput(
            "write_checkpoint: {} must contain the model's class and arguments, and {}. Write .pt or .safetensors.",
            path.string(),
            checkpoint.architecture.empty() ? "the input does not have them"
                                            : "'" + checkpoint.architecture + "' is not a known class");
    auto arguments = Json::parse(checkpoint.arguments);
    // The version that writes such files.
    Json metadata{{"physicsnemo_version", "2.2.2"}, {"mdlus_file_version", known->version}};
    if (known->beside && arguments.contains(known->beside)) {
        metadata[kMetadataKey][known->beside] = arguments[known->beside];
        arguments.erase(known->beside);
    }
    if (known->unspeakable && arguments.contains(known->unspeakable)) {
        throw InvalidInput(
            "write_checkpoint: {} cannot say '{}': PhysicsNeMo's {} does not have it. Write .safetensors.",
            path.string(), known->unspeakable, known->name);
    }
    Json description{{"__name__", known->name}, {"__module__", known->module}, {"__args__", nullptr}};
    move_nested(arguments, "", description, metadata);
    description["__args__"] = arguments;
    const auto weights = with_second_names(checkpoint, model_weights(checkpoint.weights));
    ZipLayout inner, outer;
    outer.add("model.pt", torch_file_pieces(weights, inner));
    outer.add("args.json", dump(description));
    outer.add("metadata.json", dump(metadata));
    write_pieces(path, outer.finish());
}

}  // namespace

std::string_view to_string(CheckpointFormat format)
{
    constexpr std::string_view names[] = {"mdlus", "pt", "safetensors"};
    return names[static_cast<std::size_t>(format)];
}

std::optional<CheckpointFormat> format_of_content(const std::filesystem::path& path)
{
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
    const auto file = MappedFile::open(path, "read_checkpoint");
    const SharedBytes bytes{file->bytes(), file};
    if (looks_like_tar(bytes.bytes)) return CheckpointFormat::Mdlus;
    if (looks_like_safetensors(bytes.bytes)) return CheckpointFormat::Safetensors;
    if (bytes.text().starts_with("\x80\x02")) return CheckpointFormat::Pt;  // the file begins like a pickle
    if (!looks_like_zip(bytes.bytes)) return std::nullopt;
    try {
        const auto names = ZipArchive(bytes, path.string()).names();
        if (contains(names, "args.json")) return CheckpointFormat::Mdlus;
        if (std::ranges::any_of(names, [](const std::string& name) { return name.ends_with("/data.pkl"); }))
            return CheckpointFormat::Pt;
    } catch (const IoError&) {  // damaged files are reported by their reader
    }
    return std::nullopt;
}

bool is_checkpoint_file(const std::filesystem::path& path)
{
    if (format_of_content(path)) return true;
    const auto extension = lower_extension(path);
    return extension == ".mdlus" || extension == ".pt" || extension == ".pth" || extension == ".safetensors";
}

CheckpointFormat checkpoint_format(const std::filesystem::path& path)
{
    const auto extension = lower_extension(path);
    if (extension == ".mdlus") return CheckpointFormat::Mdlus;
    if (extension == ".pt" || extension == ".pth") return CheckpointFormat::Pt;
    if (extension == ".safetensors") return CheckpointFormat::Safetensors;
    throw InvalidInput("checkpoint_format: {} has the extension '{}', expected .mdlus, .pt, .pth or .safetensors.",
                       path.string(), extension);
}

std::string first_name(const std::string& name)
{
    for (const char* kind : {"surf", "vol"}) {
        for (const auto& [first, second] : names_in_calculator(kind)) {
            if (name.starts_with(second)) return first + name.substr(second.size());
        }
    }
    return name;
}

ModelCheckpoint read_checkpoint(const std::filesystem::path& path)
{
    return CheckpointReader(path).read();
}

void write_checkpoint(const std::filesystem::path& path, const ModelCheckpoint& checkpoint, CheckpointFormat format)
{
    switch (format) {
    case CheckpointFormat::Mdlus:
        write_mdlus(path, checkpoint);
        return;
    case CheckpointFormat::Pt: {
        require_free_beside(path);
        const auto weights = with_second_names(checkpoint, model_weights(checkpoint.weights));
        ZipLayout layout;
        write_pieces(path, torch_file_pieces(weights, layout));
        if (!checkpoint.architecture.empty())
            write_beside(path, description_of(checkpoint));
        else
            std::filesystem::remove(beside(path));  // it describes a model that was there before
        return;
    }
    case CheckpointFormat::Safetensors: {
        require_free_beside(path);
        NamedArrays content = checkpoint.weights;
        content.metadata.emplace("format", "pt");
        const auto description = description_of(checkpoint);
        // A checkpoint written by meshard has more data there already.
        if (!description.empty()) content.metadata.emplace(kMetadataKey, dump(description));
        write_safetensors(path, content);
        const auto found = content.metadata.find(kMetadataKey);
        write_beside(path, found == content.metadata.end() ? Json::object() : Json::parse(found->second));
        return;
    }
    }
}

}  // namespace meshard
