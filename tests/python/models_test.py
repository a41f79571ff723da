# SPDX-License-Identifier: Apache-2.0
"""Models of other libraries, unmodified, with their points or image rows cut unevenly. Each is left out where its library is not installed."""
import importlib
import pathlib
import sys
import tempfile

import torch

from ranks import seeded
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
    generator = seeded(2)
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


def test_geotransolver_with_local_features():
    model = made("physicsnemo.models.geotransolver.GeoTransolver", geometry_dim=3, global_dim=2, include_local_features=True, radii=[0.5, 1.5], neighbors_in_radius=[4, 8],
                 **SMALL)
    features, places = (x.float() for x in points())   # the search knows single precision only
    return check(model and model.float(), [features, places, torch.randn(1, 1, 2, generator=seeded(4))], [1, 1, None],
                 call=lambda m, f, g, e: m(local_embedding=f, local_positions=g.detach(), geometry=g.detach(), global_embedding=e), tolerance=1e-4)


# What PhysicsNeMo's MeshGraphNet calls of torch_scatter, which is not installed without a compiler.
SCATTER = """
import torch

def scatter(src, index, dim, dim_size, reduce):
    assert dim == 0
    total = torch.zeros(dim_size, *src.shape[1:], dtype=src.dtype).index_add(0, index, src)
    return total if reduce == "sum" else total / torch.bincount(index, minlength=dim_size).clamp(min=1)[:, None]
"""


def check_mesh_graph_net(aggregation):
    try:
        data = importlib.import_module("torch_geometric.data")
    except ImportError:
        return "not installed"
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "torch_scatter.py").write_text(SCATTER)
        (root / "torch_scatter-2.1.2.dist-info").mkdir()
        (root / "torch_scatter-2.1.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_scatter\nVersion: 2.1.2\n")
        if importlib.util.find_spec("torch_scatter") is None:
            sys.path.append(folder)
        model = made("physicsnemo.models.meshgraphnet.MeshGraphNet", input_dim_nodes=3, input_dim_edges=4, output_dim=2, processor_size=2, hidden_dim_processor=8,
                     hidden_dim_node_encoder=8, hidden_dim_edge_encoder=8, hidden_dim_node_decoder=8, aggregation=aggregation)
    generator = seeded(6)
    nodes, edges = (torch.randn(*shape, dtype=f64, generator=generator) for shape in ((30, 3), (30, 4)))
    graph = data.Data(edge_index=torch.randint(0, 30, (2, 30), generator=generator))
    return check(model, [nodes, edges], [0, 0], call=lambda m, n, e: m(n, e, graph))


def test_mesh_graph_net():
    return check_mesh_graph_net("sum")


def test_mesh_graph_net_of_means():
    return check_mesh_graph_net("mean")


DOMINO = dict(
    model_type="combined", activation="gelu", interp_res=[8, 8, 8], use_sdf_in_basis_func=True, positional_encoding=False, surface_neighbors=True,
    num_neighbors_surface=4, num_neighbors_volume=2, use_surface_normals=True, use_surface_area=True, encode_parameters=True, combine_volume_surface=False,
    geometry_encoding_type="both", solution_calculation_mode="two-loop",
    geometry_rep=dict(
        base_filters=8,
        geo_conv=dict(base_neurons=8, base_neurons_in=1, base_neurons_out=1, surface_hops=1, volume_hops=1, volume_radii=[0.3, 0.9],
                      volume_neighbors_in_radius=[3, 4], surface_radii=[0.25, 0.8], surface_neighbors_in_radius=[3, 6], activation="gelu", fourier_features=True,
                      num_modes=3),
        geo_processor=dict(base_filters=2, activation="gelu", processor_type="conv", self_attention=False, cross_attention=False,
                           volume_sdf_scaling_factor=[0.04], surface_sdf_scaling_factor=[0.01, 0.04])),
    geometry_local=dict(base_layer=512, volume_neighbors_in_radius=[5], surface_neighbors_in_radius=[3, 2], volume_radii=[0.35], surface_radii=[0.3, 0.5]),
    nn_basis_functions=dict(base_layer=10, fourier_features=True, num_modes=3, activation="gelu"), local_point_conv=dict(activation="gelu"),
    aggregation_model=dict(base_layer=12, activation="gelu"), position_encoder=dict(base_neurons=9, activation="gelu", fourier_features=True, num_modes=2),
    parameter_model=dict(base_layer=8, fourier_features=False, num_modes=5, activation="gelu"))


def domino_inputs(num_points=24, num_triangles=40):
    """One case: what belongs to points first, along which it is cut, then what every rank has whole."""
    generator = seeded(8)

    def drawn(*shape):
        return torch.rand(1, *shape, dtype=torch.float32, generator=generator) * 2 - 1

    at = torch.linspace(-1, 1, 8)
    grid = torch.stack(torch.meshgrid(at, at, at, indexing="ij"), -1)[None]
    own = {name: drawn(num_points, *shape) for name, shape in dict(
        volume_mesh_centers=(3,), sdf_nodes=(1,), pos_volume_closest=(3,), pos_volume_center_of_mass=(3,), surface_mesh_centers=(3,), pos_surface_center_of_mass=(3,),
        surface_normals=(3,), surface_mesh_neighbors=(5, 3), surface_neighbors_normals=(5, 3)).items()}
    own |= {name: drawn(num_points, *shape).abs() + 0.1 for name, shape in dict(surface_areas=(), surface_neighbors_areas=(5,)).items()}
    whole = dict(geometry_coordinates=drawn(num_triangles, 3), grid=grid, surf_grid=grid, sdf_grid=grid.norm(dim=-1) - 0.5, sdf_surf_grid=grid.norm(dim=-1) - 0.4,
                 global_params_values=drawn(2, 1), global_params_reference=drawn(2, 1).abs() + 0.5)
    return own, whole


def check_domino(num_volume, num_surface):
    model = made("physicsnemo.models.domino.model.DoMINO", input_features=3, output_features_vol=num_volume, output_features_surf=num_surface, global_features=2,
                 model_parameters=DOMINO)
    own, whole = domino_inputs()
    names = list(own)

    def call(m, *cut):
        # The points that stand in for neighbours in the volume are drawn: the same ones for the cut cloud as for the whole.
        torch.manual_seed(7)
        volume, surface = m(dict(zip(names, cut)) | whole)
        return volume if surface is None else surface if volume is None else torch.cat([volume, surface], -1)

    return check(model and model.float(), [own[name] for name in names], [1] * len(names), call=call, tolerance=1e-4)


def test_domino_surface():
    return check_domino(None, 2)


def test_domino_surface_and_volume():
    return check_domino(2, 2)


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
