# SPDX-License-Identifier: Apache-2.0
"""Models of other libraries, unmodified, with their points or image rows cut unevenly. Each is left out where its library is not installed."""
import importlib

import torch

from sharded_check import compare

f64 = torch.float64
SMALL = dict(functional_dim=2, out_dim=3, n_layers=2, n_hidden=16, n_head=4, slice_num=8, use_te=False)


def made(path, **options):
    """A model by its full name, in double precision; None where its library is not there."""
    module, name = path.rsplit(".", 1)
    try:
        kind = getattr(importlib.import_module(module), name)
    except ImportError:
        return None
    torch.manual_seed(1)
    return kind(**options).to(f64)


def points(n=50, batch=1):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(batch, n, 2, dtype=f64, generator=generator), torch.randn(batch, n, 3, dtype=f64, generator=generator)]


def check(model, inputs, dims, **options):
    return compare(model, inputs, dims, **options) if model is not None else "not installed"


def test_transolver():
    return check(made("physicsnemo.models.transolver.Transolver", embedding_dim=3, **SMALL), points(batch=2), [1, 1])


def test_transolver_with_plain_embedding_and_dropout():
    return check(made("physicsnemo.models.transolver.Transolver", embedding_dim=3, dropout=0.1, **SMALL), points(), [1, None])


def test_transolver_plus():
    return check(made("physicsnemo.models.transolver.Transolver", embedding_dim=3, plus=True, **SMALL), points(), [1, 1])


def test_flare():
    return check(made("physicsnemo.models.flare.FLARE", embedding_dim=3, **SMALL), points(), [1, 1])


def test_geotransolver():
    model = made("physicsnemo.models.geotransolver.GeoTransolver", geometry_dim=3, global_dim=2, include_local_features=False, **SMALL)
    return check(model, [*points(), torch.randn(1, 1, 2, dtype=f64)], [1, 1, None],
                 call=lambda m, f, g, e: m(local_embedding=f, geometry=g, global_embedding=e))


def test_fno():
    model = made("physicsnemo.models.fno.FNO", in_channels=2, out_channels=1, dimension=2, latent_channels=8, num_fno_layers=2, num_fno_modes=4, padding=2,
                 decoder_layers=1, decoder_layer_size=8)
    return check(model, [torch.randn(1, 2, 20, 12, dtype=f64)], [2])


def test_unet():
    model = made("physicsnemo.models.unet.UNet", in_channels=1, out_channels=1, model_depth=2, feature_map_channels=[4, 4, 8, 8], num_conv_blocks=2)
    return check(model, [torch.randn(1, 1, 20, 8, 8, dtype=f64)], [2])


def test_timm_vit():
    model = made("timm.models.vision_transformer.VisionTransformer", img_size=(160, 48), num_classes=5, depth=2, embed_dim=48, num_heads=3)
    return check(model, [torch.randn(1, 3, 160, 48, dtype=f64)], [2])


def test_timm_convnext():
    model = made("timm.models.convnext.ConvNeXt", num_classes=5, depths=(1, 1, 1, 1), dims=(8, 8, 16, 16))
    return check(model, [torch.randn(1, 3, 160, 64, dtype=f64)], [2])
