// SPDX-License-Identifier: Apache-2.0
#include "models/diffusion/dit_options.h"

#include "models/layers/option_table.h"

namespace meshard {
namespace {

using Json = nlohmann::json;

constexpr const char* kDit = "DiT";

/// Declares a nested argument, which is written only if it is not the default.
template <class Options>
Option<Options> nested(const char* name, OptionMember<Options> member, const char* meaning, OptionBounds bounds = {},
                       const char* none = "")
{
    return {name, member, meaning, bounds, {.none = none, .is_extension = true}};
}

}  // namespace

const OptionTable<DitOptions>& dit_option_table()
{
    using O = DitOptions;
    static const OptionTable<O> table(
        kDit,
        {
            {"input_size",
             &O::input_size,
             "rows and columns of the images, or one number for both",
             {.least = 1},
             {.one_or_more = true}},
            {"in_channels", &O::in_channels, "channels of the images", {.least = 1}},
            {"patch_size",
             &O::patch_size,
             "rows and columns of the pixels of a token",
             {.least = 1},
             {.one_or_more = true}},
            {"tokenizer",
             &O::tokenizer,
             "how images become tokens",
             {.words = {"patch_embed_2d"}},
             {.is_for_programs = true}},
            {"detokenizer",
             &O::detokenizer,
             "how tokens become images",
             {.words = {"proj_reshape_2d", "proj_reshape_2d_conv"}}},
            {"out_channels",
             &O::out_channels,
             "channels of the result; none: in_channels",
             {.least = 1},
             {.none = "0"}},
            {"hidden_size", &O::hidden_size, "channels of a token", {.least = 1}},
            {"depth", &O::depth, "blocks", {.least = 0}},
            {"num_heads", &O::num_heads, "attention heads; divides hidden_size", {.least = 1}},
            {"mlp_ratio",
             &O::mlp_ratio,
             "width of the blocks' MLPs divided by hidden_size",
             {.least = 0, .above = true}},
            {"attention_backend",
             &O::attention_backend,
             "timm: attention of all tokens; natten2d: of those around each; natten2d_rope: with rotary positions",
             {.words = {"timm", "natten2d", "natten2d_rope"}}},
            {"layernorm_backend",
             &O::layernorm_backend,
             "the same numbers in either way",
             {.words = {"torch", "apex"}},
             {.is_for_programs = true}},
            {"condition_dim",
             &O::condition_dim,
             "numbers of a sample's condition; none: it has none",
             {.least = 1},
             {.none = "0", .is_for_programs = true}},
            {"conditioning_embedder",
             &O::conditioning_embedder,
             "how time and condition become one vector",
             {.words = {"dit", "edm"}},
             {.is_for_programs = true}},
            {"dit_initialization",
             &O::dit_initialization,
             "initial values of the paper: a new model returns zeros",
             {},
             {.is_for_programs = true}},
            {"drop_path_rates",
             &O::drop_path_rates,
             "for each block the probability that training skips it",
             {.least = 0, .most = 1},
             {.none = "[]", .is_for_programs = true}},
            {"force_tokenization_fp32",
             &O::force_tokenization_fp32,
             "tokens are made in single precision",
             {},
             {.is_for_programs = true}},
            {"use_nan_mask_tokens",
             &O::use_nan_mask_tokens,
             "a learned token for those of invalid pixels; with natten2d and natten2d_rope",
             {},
             {.is_for_programs = true}},
        });
    return table;
}

namespace {

/// The arguments of the tokenizer and the detokenizer are members of DitOptions itself.
const OptionTable<DitOptions>& detokenizer_table()
{
    using O = DitOptions;
    static const OptionTable<O> table(
        "DiT: detokenizer_kwargs", {nested<O>("conv_layers", &O::conv_layers, "convolutions", {.least = 1}),
                                    nested<O>("conv_hidden", &O::conv_hidden, "channels between them", {.least = 1}),
                                    nested<O>("conv_kernel", &O::conv_kernel, "size of their windows", {.least = 1})});
    return table;
}

const OptionTable<DitEmbedderOptions>& embedder_table()
{
    using O = DitEmbedderOptions;
    static const OptionTable<O> table(
        "DiT: conditioning_embedder_kwargs",
        {nested<O>("max_positions", &O::max_positions, "the slowest frequency of the time is 1 over this",
                   {.least = 1}),
         nested<O>("freq_embed_dim", &O::freq_embed_dim, "sines and cosines of the embedder dit; none: hidden_size",
                   {.least = 2}, "0"),
         nested<O>("mlp_hidden_dim", &O::mlp_hidden_dim, "hidden channels of its MLP; none: twice hidden_size",
                   {.least = 1}, "0"),
         nested<O>("emb_channels", &O::emb_channels, "of the embedder edm: hidden_size", {.least = 1}, "0"),
         nested<O>("noise_channels", &O::noise_channels, "sines and cosines of the embedder edm", {.least = 4}, "0")});
    return table;
}

const OptionTable<DitBlockOptions>& block_table()
{
    using O = DitBlockOptions;
    const OptionBounds rate{.least = 0, .most = 1};
    static const OptionTable<O> table(
        "DiT: block_kwargs",
        {nested<O>("norm_eps", &O::norm_eps, "added to the variances of the layer norms", {.least = 0}),
         nested<O>("attn_drop_rate", &O::attn_drop_rate, "fraction of the attention's results that training drops",
                   rate),
         nested<O>("proj_drop_rate", &O::proj_drop_rate, "fraction of their projections that training drops", rate),
         nested<O>("mlp_drop_rate", &O::mlp_drop_rate, "fraction of the MLPs' numbers that training drops", rate),
         nested<O>("final_mlp_dropout", &O::final_mlp_dropout, "drops results of the MLPs, too"),
         nested<O>("intermediate_dropout", &O::intermediate_dropout, "takes a dropout rate with each call")});
    return table;
}

const OptionTable<DitAttentionOptions>& attention_table()
{
    using O = DitAttentionOptions;
    static const OptionTable<O> table(
        "DiT: attn_kwargs",
        {nested<O>("qk_norm_type", &O::qk_norm_type, "norm of queries and keys", {.words = {"LayerNorm", "RMSNorm"}},
                   "\"\""),
         nested<O>("qk_norm_affine", &O::qk_norm_affine, "with scales and shifts"),
         nested<O>("is_causal", &O::is_causal, "a token sees those before it"),
         nested<O>("attn_kernel", &O::attn_kernel, "rows and columns of a token's window", {.least = 1}),
         nested<O>("qkv_bias", &O::qkv_bias, "queries, keys and values have a bias"),
         nested<O>("qk_norm", &O::qk_norm, "a layer norm of queries and keys"),
         nested<O>("rope_theta", &O::rope_theta, "base of the rotations' frequencies", {.least = 0, .above = true})});
    return table;
}

const OptionTable<DitAttentionOptions>& window_table()
{
    using O = DitAttentionOptions;
    static const OptionTable<O> table(
        "DiT: na2d_kwargs",
        {{"dilation",
          &O::dilation,
          "distance of the tokens in a window",
          {.least = 1},
          {.one_or_more = true, .is_extension = true}},
         nested<O>("scale", &O::scale, "factor of the scores; none: 1 / sqrt(channels of a head)", {}, "0.0")});
    return table;
}

/// Removes the object `name` from the arguments and returns it; an empty one if it is absent or null.
Json taken(Json& arguments, const char* name)
{
    const auto found = arguments.find(name);
    if (found == arguments.end()) return Json::object();
    auto object = found->is_null() ? Json::object() : *found;
    if (!object.is_object())
        throw InvalidInput("{}: {} cannot be {}; expected arguments by name.", kDit, name, object.dump());
    arguments.erase(name);
    return object;
}

/// Removes arguments that have no effect with these values, so that only other values are reported as unknown.
void drop_neutral(Json& arguments, const char* name, const Json& neutral)
{
    const auto found = arguments.find(name);
    if (found != arguments.end() && (found->is_null() || *found == neutral)) arguments.erase(found);
}

/// Checks a list of one number for each of two axes, or one for both.
void require_one_or_two(const char* name, const std::vector<std::int64_t>& values)
{
    if (values.size() != 1 && values.size() != 2) {
        OptionChecks(kDit).refuse("{} must be one number, or one for rows and one for columns; it has {}.", name,
                                  values.size());
    }
}

}  // namespace

void DitOptions::validate() const
{
    const OptionChecks checks(kDit);
    require_one_or_two("input_size", input_size);
    require_one_or_two("patch_size", patch_size);
    require_one_or_two("dilation", attention.dilation);
    dit_option_table().check(*this);
    detokenizer_table().check(*this);
    embedder_table().check(embedder);
    block_table().check(block);
    attention_table().check(attention);
    window_table().check(attention);
    checks.multiple("hidden_size", hidden_size, "num_heads", num_heads);
    for (int axis = 0; axis < 2; ++axis) checks.multiple("input_size", image()[axis], "patch_size", patch()[axis]);
    if (!drop_path_rates.empty() && std::ssize(drop_path_rates) != depth) {
        checks.refuse("drop_path_rates has {} entries, and the model {} blocks.", drop_path_rates.size(), depth);
    }
    if (conditioning_embedder == "edm") {
        if (embedder.emb_channels != hidden_size) {
            checks.refuse("the embedder edm needs emb_channels equal to hidden_size, {}; it is {}.", hidden_size,
                          embedder.emb_channels);
        }
        checks.at_least(4, {{"noise_channels of the embedder edm", embedder.noise_channels}});
        if (embedder.noise_channels % 2 != 0)
            checks.refuse("the embedder edm needs an even number of noise_channels; it is {}.",
                          embedder.noise_channels);
    }
    if (detokenizer == "proj_reshape_2d_conv" && conv_kernel % 2 == 0)
        checks.refuse("conv_kernel must be odd, so that images keep their size; it is {}.", conv_kernel);
    if (use_nan_mask_tokens && !has_neighbourhoods())
        checks.refuse("use_nan_mask_tokens needs an attention_backend of natten2d or natten2d_rope; it is '" +
                      attention_backend + "'.");
    if (has_rotations() && head_dim() % 4 != 0)
        checks.refuse("natten2d_rope needs heads of a multiple of 4 channels; they have {}.", head_dim());
    if (!has_neighbourhoods()) return;
    const std::array<std::int64_t, 2> dilation{attention.dilation.front(), attention.dilation.back()};
    for (int axis = 0; axis < 2; ++axis) {
        if (attention.attn_kernel * dilation[axis] <= tokens()[axis]) continue;
        checks.refuse("attn_kernel of {} with dilation {} needs at least {}{} of tokens; there are {}.",
                      attention.attn_kernel, dilation[axis], attention.attn_kernel * dilation[axis],
                      axis == 0 ? " rows" : " columns", tokens()[axis]);
    }
}

DitOptions dit_options(const nlohmann::json& arguments)
{
    auto rest = arguments;
    if (const auto old = rest.find("timestep_embed_kwargs"); old != rest.end()) {  // the name in files of version 0.1.0
        if (!rest.contains("conditioning_embedder_kwargs")) rest["conditioning_embedder_kwargs"] = *old;
        rest.erase("timestep_embed_kwargs");
    }
    auto tokenizer = taken(rest, "tokenizer_kwargs"), detokenizer = taken(rest, "detokenizer_kwargs"),
         attention = taken(rest, "attn_kwargs");
    const auto embedder = taken(rest, "conditioning_embedder_kwargs"), block = taken(rest, "block_kwargs");
    auto window = taken(attention, "na2d_kwargs");
    drop_neutral(window, "is_causal", false);
    drop_neutral(window, "stride", 1);
    drop_neutral(attention, "norm_layer", "torch");

    auto options = dit_option_table().read(rest);
    if (const auto positions = tokenizer.find("pos_embed"); positions != tokenizer.end()) {
        options.learned_positions = *positions == "learnable";
        tokenizer.erase("pos_embed");
    }
    for (const auto& [name, value] : tokenizer.items())
        throw InvalidInput("DiT: tokenizer_kwargs: there is no argument '{}'; it has pos_embed.", name);
    const auto head = detokenizer_table().read(detokenizer);
    options.conv_layers = head.conv_layers;
    options.conv_hidden = head.conv_hidden;
    options.conv_kernel = head.conv_kernel;
    options.embedder = embedder_table().read(embedder);
    options.block = block_table().read(block);
    options.attention = attention_table().read(attention);
    const auto windows = window_table().read(window);
    options.attention.dilation = windows.dilation;
    options.attention.scale = windows.scale;
    if (options.has_rotations()) options.learned_positions = false;
    return options;
}

nlohmann::json to_json(const DitOptions& options)
{
    auto arguments = dit_option_table().write(options);
    arguments["tokenizer_kwargs"] =
        options.learned_positions || options.has_rotations() ? Json::object() : Json{{"pos_embed", nullptr}};
    arguments["detokenizer_kwargs"] = detokenizer_table().write(options);
    arguments["conditioning_embedder_kwargs"] = embedder_table().write(options.embedder);
    arguments["block_kwargs"] = block_table().write(options.block);
    arguments["attn_kwargs"] = attention_table().write(options.attention);
    if (const auto window = window_table().write(options.attention); !window.empty())
        arguments["attn_kwargs"]["na2d_kwargs"] = window;
    for (const char* nested : {"detokenizer_kwargs", "conditioning_embedder_kwargs", "block_kwargs", "attn_kwargs"}) {
        if (arguments[nested].is_null()) arguments[nested] = Json::object();
    }
    return arguments;
}

}  // namespace meshard
