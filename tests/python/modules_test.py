# SPDX-License-Identifier: Apache-2.0
"""Modules of torch.nn, one by one, on rows that are cut unevenly: outputs and gradients are those of one process."""
import torch
import torch.nn as nn
import torch.nn.functional as F

from ranks import seeded
from sharded_check import compare

f64 = torch.float64


def rows(*shape):
    return torch.randn(*shape, dtype=f64, generator=seeded(5))


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def check(module, inputs, dims, **options):
    return compare(module.to(f64), inputs, dims, **options)


def check_function(function, inputs, dims, **options):
    return compare(Function(function), inputs, dims, **options)


def test_linear():
    return check(nn.Linear(6, 5), [rows(20, 6)], [0])


def test_mlp_in_a_batch():
    return check(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8), nn.LayerNorm(8)), [rows(2, 20, 8)], [1])


def test_bilinear():
    return check(nn.Bilinear(4, 3, 5), [rows(20, 4), rows(20, 3)], [0, 0])


def test_activations():
    return check(nn.Sequential(nn.ELU(), nn.SiLU(), nn.PReLU(), nn.Softplus(), nn.GLU()), [rows(20, 6)], [0])


def test_softmax_over_features_and_over_cut_rows():
    check_function(lambda x: x.softmax(-1), [rows(20, 6)], [0])
    return check_function(lambda x: x.softmax(0), [rows(20, 6)], [0])


def test_layer_norm_over_cut_rows():
    return check(nn.LayerNorm([20, 6]), [rows(3, 20, 6)], [1])


def test_batch_norm():
    return check(nn.BatchNorm1d(6), [rows(20, 6)], [0])


def test_group_and_instance_norm():
    check(nn.InstanceNorm1d(6, affine=True), [rows(2, 6, 20)], [2])
    return check(nn.GroupNorm(2, 6), [rows(2, 6, 20)], [2])


def test_einsum_slices_cat_where():
    return check_function(lambda x, y: torch.cat([torch.einsum("nc,nd->ncd", x[:, :3], y).flatten(1), torch.where(x > 0, x, y)], 1),
                          [rows(20, 6), rows(20, 6)], [0, 0])


def test_statistics_broadcast_back():
    return check_function(lambda x: x - x.mean(0, keepdim=True) + x.std(0), [rows(20, 6)], [0])


def test_convolutions():
    check(nn.Conv1d(3, 4, 5, padding=2, stride=2), [rows(2, 3, 21)], [2])
    check(nn.ConvTranspose1d(3, 4, 2, stride=2), [rows(2, 3, 20)], [2])
    return check(nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(4, 3, 3, padding=1), nn.Upsample(scale_factor=2)), [rows(2, 2, 20, 6)], [2])


def test_embedding_of_cut_ids():
    return check(nn.Embedding(11, 4), [torch.arange(20) % 11], [0])


def test_attention():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    check(attention, [rows(2, 20, 8)], [1], call=lambda m, x: m(x, x, x)[1])
    return check(attention, [rows(2, 20, 8)], [1], call=lambda m, x: m(x, x, x, need_weights=False)[0])


def test_transformer_layer():
    return check(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), [rows(2, 20, 8)], [1])


def test_gru_over_a_cut_batch():
    return check(nn.GRU(4, 5, batch_first=True), [rows(20, 3, 4)], [0], call=lambda m, x: m(x)[0])


def test_lstm_over_sequences_of_different_length():
    def call(module, x):
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 5, 1, 2, 5, 4], device="cpu"), batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(module(packed)[0], batch_first=True)[0] + 0 * x.sum()

    check(nn.LSTM(4, 5, batch_first=True), [rows(6, 5, 4)], [1], call=call)
    return check(nn.LSTM(4, 5, batch_first=True), [rows(6, 5, 4)], [0], call=call)


def test_dropout_draws_as_one_process_would():
    return check(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)), [rows(20, 6)], [0])


def test_cdist_topk_gather():
    return check_function(lambda x: x.gather(1, torch.cdist(x, x[:4]).topk(2, largest=False).indices), [rows(20, 6)], [0])


def test_index_add_by_plain_ids():
    return check_function(lambda x: torch.zeros(4, 6, dtype=f64).index_add(0, torch.arange(20) % 4, x) + 0 * x.sum(), [rows(20, 6)], [0])


def test_losses():
    check_function(lambda x, y: F.mse_loss(x, y)[None], [rows(20, 6), rows(20, 6).flip(0)], [0, 0])
    return check_function(lambda x, y: F.cross_entropy(x, y)[None], [rows(20, 6), torch.arange(20) % 6], [0, 0])


def test_python_loops_and_shapes():
    check_function(lambda x: torch.stack([x[:, i] * (i + 1) for i in range(x.shape[1])], 1).view(len(x) // 2, -1), [rows(20, 6)], [0])
    return check_function(lambda x: sum(row * (i + 1) for i, row in enumerate(x)) + 0 * x.sum(), [rows(20, 6)], [0])


class SliceAttention(nn.Module):
    """The attention of Transolver, as plain PyTorch."""

    def __init__(self, width=8, heads=2, slices=4):
        super().__init__()
        self.heads, self.to_slices = heads, nn.Linear(width // heads, slices)
        self.project, self.qkv, self.out = nn.Linear(width, width), nn.Linear(width // heads, 3 * width // heads), nn.Linear(width, width)

    def forward(self, x):
        b, n, c = x.shape
        x = self.project(x).view(b, n, self.heads, c // self.heads).transpose(1, 2)
        weights = self.to_slices(x).softmax(-1)
        tokens = torch.einsum("bhnc,bhng->bhgc", x, weights) / (weights.sum(2) + 1e-5)[..., None]
        tokens = F.scaled_dot_product_attention(*self.qkv(tokens).chunk(3, -1))
        return self.out(torch.einsum("bhgc,bhng->bhnc", tokens, weights).transpose(1, 2).reshape(b, n, c))


def test_slice_attention():
    return check(SliceAttention(), [rows(2, 20, 8)], [1])
