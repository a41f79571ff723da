# SPDX-License-Identifier: Apache-2.0
"""Modules as users write them, which know nothing of ranks: outputs and gradients on uneven cuts are those of one process."""
import torch
import torch.nn as nn
import torch.nn.functional as F

from ranks import device, seeded
from sharded_check import compare

f64 = torch.float64


def rows(*shape, seed=5):
    return torch.randn(*shape, dtype=f64, generator=seeded(seed))


class AttentionPooling(nn.Module):
    """Learned queries gather from all points, and points read the result."""

    def __init__(self, channels=16, num_queries=5):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, num_queries, channels))
        self.gather = nn.MultiheadAttention(channels, 4, batch_first=True)
        self.read = nn.MultiheadAttention(channels, 4, batch_first=True)
        self.score = nn.Linear(channels, 1)

    def forward(self, x):
        pooled, _ = self.gather(self.queries.expand(x.shape[0], -1, -1), x, x)
        weights = self.score(x).softmax(1)
        summary = (weights * x).sum(1, keepdim=True)
        return self.read(x, pooled, pooled, need_weights=False)[0] + summary


def test_attention_pooling():
    return compare(AttentionPooling().to(f64), [rows(2, 23, 16)], [1])


class SwinBlock(nn.Module):
    """Attention in shifted windows of an image (Liu et al. 2021), with a table of relative positions."""

    def __init__(self, channels=8, window=4, shift=2, heads=2):
        super().__init__()
        self.window, self.shift, self.heads = window, shift, heads
        self.norm, self.qkv, self.out = nn.LayerNorm(channels), nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.table = nn.Parameter(torch.randn((2 * window - 1)**2, heads) * 0.1)
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        relative = (at[:, :, None] - at[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("index", relative[..., 0] * (2 * window - 1) + relative[..., 1])
        self.mlp = nn.Sequential(nn.LayerNorm(channels), nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels))

    def forward(self, x):
        b, h, w, c = x.shape
        n = self.window
        y = torch.roll(self.norm(x), (-self.shift, -self.shift), (1, 2))
        y = y.view(b, h // n, n, w // n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, n * n, c)
        q, k, v = self.qkv(y).reshape(-1, n * n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) * (c // self.heads)**-0.5 + self.table[self.index.view(-1)].view(n * n, n * n, -1).permute(2, 0, 1)
        y = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, n * n, c))
        y = y.view(b, h // n, w // n, n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        x = x + torch.roll(y, (self.shift, self.shift), (1, 2))
        return x + self.mlp(x)


def test_swin_block():
    return compare(SwinBlock().to(f64), [rows(1, 20, 8, 8)], [1])


class PointNetPlusPlus(nn.Module):
    """Set abstraction (Qi et al. 2017): farthest points, a ball around each, an MLP and a maximum; then features back to all points by inverse distance."""

    def __init__(self, channels=4, num_centres=6, num_samples=5):
        super().__init__()
        self.num_centres, self.num_samples = num_centres, num_samples
        self.mlp = nn.Sequential(nn.Linear(channels + 3, 16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Linear(16 + channels, 2)

    def farthest(self, points):
        chosen = [0]
        nearest = torch.full(points.shape[:1], float("inf"), dtype=points.dtype)
        for _ in range(self.num_centres - 1):
            nearest = torch.minimum(nearest, (points - points[chosen[-1]]).square().sum(-1))
            chosen.append(int(nearest.argmax()))
        return torch.tensor(chosen)

    def forward(self, points, features):
        centres = points[self.farthest(points.detach())]
        near = torch.cdist(centres, points).topk(self.num_samples, largest=False).indices
        grouped = torch.cat([points[near] - centres[:, None], features[near]], -1)
        pooled = self.mlp(grouped).max(1).values
        distances, ids = torch.cdist(points, centres).topk(3, largest=False)
        weights = 1 / (distances.square() + 0.01)
        back = (pooled[ids] * (weights / weights.sum(1, keepdim=True))[..., None]).sum(1)
        return self.head(torch.cat([back, features], -1))


def test_pointnet_plus_plus():
    return compare(PointNetPlusPlus().to(f64), [rows(30, 3), rows(30, 4, seed=6)], [0, 0])


class GraphAttention(nn.Module):
    """Graph attention (Velickovic et al. 2018) over edges by index_add; softmax over each node's edges by scatter_reduce."""

    def __init__(self, edges, channels=6):
        super().__init__()
        self.register_buffer("edges", edges)
        self.values, self.score = nn.Linear(channels, channels), nn.Linear(2 * channels, 1)

    def forward(self, x):
        source, target = self.edges
        values = self.values(x)
        scores = F.leaky_relu(self.score(torch.cat([values[source], values[target]], -1)), 0.2).squeeze(-1)
        highest = torch.full(x.shape[:1], -torch.inf, dtype=x.dtype).scatter_reduce(0, target, scores.detach(), "amax")
        weights = (scores - highest[target]).exp()
        sums = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, target, weights)
        messages = values[source] * (weights / sums[target])[:, None]
        return x + torch.zeros_like(values).index_add(0, target, messages)


def test_graph_attention():
    generator = seeded(3)
    edges = torch.cat([torch.stack([torch.randint(0, 25, (60,), generator=generator), torch.randint(0, 25, (60,), generator=generator)]),
                       torch.arange(25).expand(2, -1)], 1)
    return compare(GraphAttention(edges).to(f64), [rows(25, 6)], [0])


class SpectralLayer(nn.Module):
    """A layer of a Fourier neural operator (Li et al. 2021)."""

    def __init__(self, channels=4, modes=3):
        super().__init__()
        self.modes = modes
        self.weights = nn.Parameter(torch.randn(channels, channels, modes, modes, 2) * 0.1)
        self.skip = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        spectrum = torch.fft.rfft2(x)
        mixed = torch.zeros_like(spectrum)
        corner = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :self.modes, :self.modes], torch.view_as_complex(self.weights))
        mixed[:, :, :self.modes, :self.modes] = corner
        return F.gelu(torch.fft.irfft2(mixed, s=x.shape[-2:]) + self.skip(x))


def test_spectral_layer():
    return compare(SpectralLayer().to(f64), [rows(2, 4, 14, 9)], [2])


class Clamped(torch.autograd.Function):
    """A gradient that passes straight through a clamp."""

    @staticmethod
    def forward(ctx, x, bound):
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.clamp(-bound, bound)

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * torch.where(x.abs() > ctx.bound, 0.5, 1.0).to(gradient.dtype), None


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x):
        hidden = Clamped.apply(self.inner(x), 0.7)
        rounded = hidden + (torch.round(hidden * 8) / 8 - hidden).detach()
        return self.outer(rounded * torch.sigmoid(rounded))


def test_custom_function():
    return compare(Quantised().to(f64), [rows(20, 6)], [0])


class MixedPrecision(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(6, 32), nn.LayerNorm(32), nn.Linear(32, 3)

    def forward(self, x):
        with torch.autocast(device(), torch.bfloat16):
            hidden = F.gelu(self.inner(x))
            out = self.outer(self.norm(hidden))
        return out.float()


def test_mixed_precision():
    return compare(MixedPrecision(), [rows(20, 6).float()], [0], tolerance=2e-2)


class Perceiver(nn.Module):
    """Latents of one case, read and written through einsum, with positions from Fourier features and a running mean in a buffer."""

    def __init__(self, channels=8, num_latents=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.frequencies = nn.Parameter(torch.randn(3, channels // 2))
        self.mix = nn.Sequential(nn.Linear(channels, channels), nn.SiLU(), nn.Linear(channels, channels))

    def forward(self, places):
        phases = places @ self.frequencies
        x = torch.cat([phases.sin(), phases.cos()], -1)
        if self.training:
            self.mean.lerp_(x.detach().mean((0, 1)), 0.1)
        x = (x - self.mean) / x.std((0, 1), keepdim=True, unbiased=False).clamp_min(1e-6)
        scores = torch.einsum("bnc,lc->bln", x, self.latents) / x.shape[-1]**0.5
        tokens = self.mix(torch.einsum("bln,bnc->blc", scores.softmax(-1), x))
        return x + torch.einsum("bln,blc->bnc", scores.softmax(1), tokens) + scores.logsumexp(1)[..., None]


def test_perceiver():
    return compare(Perceiver().to(f64), [rows(2, 21, 3)], [1])


class Unbound(nn.Module):
    """Loops over channels, masks, index_put, cumulative sums, sorting, where, padding and chunks, as research code has them."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        for layer, part in zip(self.layers, x.unbind(0)):
            x = x + layer(part).unsqueeze(0)
        mask = x > 0
        y = x.masked_fill(~mask, 0.1) + torch.where(mask, x, x * 2).cumsum(1) / x.shape[1]
        y = torch.cat([chunk * (i + 1) for i, chunk in enumerate(y.chunk(3, -1))], -1)
        y = F.pad(y, (1, 1))[..., 1:-1] + y.flip(1) + torch.roll(y, 1, 1)
        z = y.clone()
        z[:, :, 0] = y[:, :, 1] * 2
        z[:, ::2] += 1
        return z + y.sort(-1).values + y.amax(1, keepdim=True) - y.var((1, 2), keepdim=True)


def test_research_code():
    return compare(Unbound().to(f64), [rows(3, 20, 6)], [1])


class DeepSets(nn.Module):
    """Sums of points by label, a memory bank, gated by the label's mean; unfolds a window over the rows."""

    def __init__(self, labels):
        super().__init__()
        self.register_buffer("labels", labels)
        self.table, self.gate, self.local = nn.Embedding(4, 5), nn.GRUCell(5, 5), nn.Conv1d(5, 5, 3, padding=1)

    def forward(self, x):
        hot = F.one_hot(self.labels, 4).to(x.dtype)
        means = (hot.t() @ x) / hot.sum(0)[:, None].clamp_min(1)
        state = self.gate(means, self.table.weight)
        y = x + state[self.labels] + self.local(x.t()[None])[0].t()
        return F.normalize(y, dim=-1) * torch.linalg.vector_norm(x, dim=0) + F.cosine_similarity(x, y, dim=-1)[:, None]


def test_deep_sets():
    return compare(DeepSets(torch.arange(26) % 4).to(f64), [rows(26, 5)], [0])
