// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/option_table.h"

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// Arguments of DiT's conditioning embedder (`conditioning_embedder_kwargs`).
struct DitEmbedderOptions {
    std::int64_t max_positions = 10000;  ///< the lowest frequency of the time embedding is 1 / max_positions
    std::int64_t freq_embed_dim = 0;     ///< number of sines and cosines in the embedder `dit`; 0: hidden_size
    std::int64_t mlp_hidden_dim = 0;     ///< hidden channels of the embedder's MLP; 0: twice hidden_size
    std::int64_t emb_channels = 0;       ///< in the embedder `edm`; 0: hidden_size
    std::int64_t noise_channels = 0;     ///< number of sines and cosines in the embedder `edm`
};

/// Arguments of DiT's blocks (`block_kwargs`).
struct DitBlockOptions {
    double norm_eps = 1e-6;
    double attn_drop_rate = 0;
    double proj_drop_rate = 0;
    double mlp_drop_rate = 0;
    bool final_mlp_dropout = true;
    bool intermediate_dropout = false;
};

/// Arguments of DiT's attention (`attn_kwargs`): `timm` has the first three, `natten2d` and `natten2d_rope` the others.
struct DitAttentionOptions {
    std::string qk_norm_type;  ///< LayerNorm or RMSNorm; empty: none
    bool qk_norm_affine = true;
    bool is_causal = false;
    std::int64_t attn_kernel = 3;
    bool qkv_bias = true;
    bool qk_norm = false;
    double rope_theta = 10000;
    std::vector<std::int64_t> dilation{1};  ///< in `na2d_kwargs`: one for both axes, or rows and columns
    double scale = 0;                       ///< in `na2d_kwargs`; 0: 1 / sqrt(channels of a head)
};

/// Constructor arguments of a DiT, with the names and defaults of checkpoints; nested arguments are nested structs.
struct DitOptions {
    std::vector<std::int64_t> input_size;  ///< rows and columns of the images, or one number for both; must be set
    std::int64_t in_channels = 0;          ///< must be set
    std::vector<std::int64_t> patch_size{8, 8};
    std::string tokenizer = "patch_embed_2d";
    std::string detokenizer = "proj_reshape_2d";
    std::int64_t out_channels = 0;  ///< 0: in_channels
    std::int64_t hidden_size = 384;
    std::int64_t depth = 12;
    std::int64_t num_heads = 8;
    double mlp_ratio = 4;
    std::string attention_backend = "timm";
    std::string layernorm_backend = "torch";
    std::int64_t condition_dim = 0;  ///< length of a sample's condition vector; 0: none
    std::string conditioning_embedder = "dit";
    bool dit_initialization = true;
    std::vector<double> drop_path_rates;  ///< one for each block; empty: 0
    bool force_tokenization_fp32 = false;
    bool use_nan_mask_tokens = false;

    bool learned_positions = true;  ///< in `tokenizer_kwargs`: whether pos_embed is `learnable`
    std::int64_t conv_layers = 2;   ///< in `detokenizer_kwargs`
    std::int64_t conv_hidden = 64;
    std::int64_t conv_kernel = 3;
    DitEmbedderOptions embedder;
    DitBlockOptions block;
    DitAttentionOptions attention;

    std::array<std::int64_t, 2> image() const { return {input_size.front(), input_size.back()}; }
    std::array<std::int64_t, 2> patch() const { return {patch_size.front(), patch_size.back()}; }
    std::array<std::int64_t, 2> tokens() const { return {image()[0] / patch()[0], image()[1] / patch()[1]}; }
    std::int64_t num_outputs() const { return out_channels > 0 ? out_channels : in_channels; }
    std::int64_t head_dim() const { return hidden_size / num_heads; }
    bool has_neighbourhoods() const { return attention_backend == "natten2d" || attention_backend == "natten2d_rope"; }
    bool has_rotations() const { return attention_backend == "natten2d_rope"; }

    /// @throws InvalidInput naming the option, its value and what is allowed.
    void validate() const;
};

/// The arguments but nested ones.
const OptionTable<DitOptions>& dit_option_table();

/// Reads the arguments of a checkpoint, also of older ones (`timestep_embed_kwargs`); absent and null ones keep their
/// defaults.
/// @throws InvalidInput for a name that is no argument of DiT (the message has the nearest one), or a value of the
/// wrong type.
DitOptions dit_options(const nlohmann::json& arguments);

/// All arguments, as `dit_options` reads them. Nested ones are written if they differ from the default.
nlohmann::json to_json(const DitOptions& options);

}  // namespace meshard
