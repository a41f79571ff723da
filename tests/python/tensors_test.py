# SPDX-License-Identifier: Apache-2.0
"""What users do with a sharded tensor besides giving it to a module: it works, or is refused with a sentence."""
import copy

import meshard
import torch
import torch.distributed as dist
import torch.distributed.tensor as dt
import torch.nn as nn
import torch.nn.functional as F

from ranks import device, mesh, mesh_type, num_ranks, rank, refused, seeded, uneven
from sharded_check import near

whole = torch.randn(10, 4, generator=seeded(0))
extent = uneven(10)


def cut(tensor=whole, gradient=False):
    return meshard.distribute_tensor(tensor, mesh(), [meshard.Shard(0)], extents=[extent]).requires_grad_(gradient)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))


def test_is_a_torch_tensor_of_the_shape_of_the_whole():
    x = cut()
    assert type(x) is torch.Tensor and x.shape == (10, 4) and len(x) == 10 and x.stride() == (4, 1) and x.device.type == device()
    assert meshard.is_sharded(x) and not meshard.is_sharded(whole)
    assert meshard.placements(x) == (meshard.Shard(0),) and meshard.extents(x) == [extent] and meshard.device_mesh(x) == mesh()
    assert torch.equal(meshard.to_local(x), whole.split(extent)[rank()])
    assert torch.equal(meshard.full_tensor(x), whole)


def test_from_local_takes_any_number_of_rows():
    for extents in (extent, extent[::-1], [0] * (num_ranks() - 1) + [10], [0] * num_ranks()):
        x = meshard.from_local(whole[:sum(extents)].split(extents)[rank()], mesh(), [meshard.Shard(-2)])
        assert meshard.extents(x) == [extents] and torch.equal(meshard.full_tensor(x), whole[:sum(extents)])
    pending = meshard.from_local(torch.full((3,), float(rank() + 1)), mesh(), [meshard.Partial()])
    assert meshard.full_tensor(pending).tolist() == [num_ranks() * (num_ranks() + 1) / 2] * 3


def test_only_the_source_needs_the_whole():
    source = num_ranks() - 1
    x = meshard.distribute_tensor(whole if rank() == source else None, mesh(), [meshard.Shard(0)], extents=[extent], src_data_rank=source)
    assert torch.equal(meshard.full_tensor(x), whole)
    even = [4 // num_ranks() + (r < 4 % num_ranks()) for r in range(num_ranks())]
    assert meshard.extents(meshard.distribute_tensor(whole, mesh(), [meshard.Shard(1)])) == [even]


def test_placements_and_meshes_of_torch_are_taken():
    their_mesh = dist.device_mesh.init_device_mesh(mesh_type(), (num_ranks(),), mesh_dim_names=("domain",))
    x = meshard.distribute_tensor(whole, their_mesh, [dt.Shard(0)], extents=[extent])
    assert meshard.device_mesh(x) == meshard.device_mesh(meshard.from_local(whole, their_mesh, [dt.Replicate()]))
    assert meshard.placements(meshard.redistribute(x, [dt.Replicate()])) == (meshard.Replicate(),)
    assert meshard.placements(meshard.from_local(whole, mesh(), [dt.Partial("max")])) == (meshard.Partial("max"),)
    refused(lambda: meshard.from_local(whole, mesh(), [dt.Partial("product")]), ValueError, "'sum', 'max' or 'min', found 'product'")


def test_wrong_arguments_are_value_errors_that_say_what_was_found():
    assert issubclass(meshard.InvalidInput, ValueError) and issubclass(meshard.MissingShardRule, NotImplementedError)
    shard, n = meshard.Shard(0), num_ranks()
    for call, text in (
            (lambda: meshard.from_local(whole, mesh(), shard), "Write [Shard(0)]"),
            (lambda: meshard.from_local(whole, mesh(), [meshard.Shard(2)]), "Shard(2) of a tensor that has 2 dimensions"),
            (lambda: meshard.from_local(whole, mesh(), [meshard.Shard(-3)]), "Shard(-3)"),
            (lambda: meshard.from_local([1], mesh(), [shard]), "expected a torch.Tensor, found list"),
            (lambda: meshard.from_local(whole, mesh(), [0]), "expected Shard(dim), Replicate() or Partial()"),
            (lambda: meshard.from_local(whole, "domain", [shard]), "expected a DeviceMesh"),
            (lambda: meshard.distribute_tensor(whole, mesh(), [shard, shard]), "found 2 placements"),
            (lambda: meshard.distribute_tensor(whole, mesh(), [shard], extents=[[9] + [0] * (n - 1)]), "add up to the 10 entries of dimension 0; found [9"),
            (lambda: meshard.distribute_tensor(whole, mesh(), [shard], extents=[[11] + [0] * (n - 2) + [-1]]), "none negative"),
            (lambda: meshard.distribute_tensor(None, mesh(), [shard]), "must pass the extents"),
            (lambda: meshard.redistribute(whole, [shard]), "sharded"),
            (lambda: meshard.placements(whole), "sharded"),
            (lambda: meshard.init_device_mesh((n + 1,)), f"{n} are running"),
            (lambda: meshard.init_device_mesh((1, n)), "mesh_dim_names"),
            (lambda: meshard.set_gather_policy("loud"), "found 'loud'")):
        refused(call, ValueError, text)


def test_what_torch_refuses_of_the_whole_is_refused_on_every_rank_in_its_words():
    """The parts would fit, on one rank or on all. Ranks that hold nothing say the same."""
    columns = meshard.distribute_tensor(whole, mesh(), [meshard.Shard(1)], extents=[uneven(4)])
    all_here = meshard.distribute_tensor(whole, mesh(), [meshard.Shard(0)], extents=[[10] + [0] * (num_ranks() - 1)])
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 9])
    of_values = (lambda x: x[torch.tensor([0, 10])], lambda x: x.index_add(0, torch.tensor([10]), torch.ones(1, 4)), lambda x: nn.functional.cross_entropy(x, labels))
    if device() == "cuda":   # where torch's kernels find these, and the process cannot use the GPU any more
        of_values = ()
    for x in (cut(), columns, all_here):
        for call in (lambda x: x + torch.ones(5), lambda x: x * torch.ones(9, 1), lambda x: x.clone().copy_(torch.ones(5)), lambda x: torch.lerp(x, torch.ones(11, 4), 0.5),
                     lambda x: nn.functional.linear(x, torch.ones(3, 5)), lambda x: nn.functional.layer_norm(x, (5,)), lambda x: x.T @ torch.ones(9, 2),
                     lambda x: torch.cat([x, x[:, :3]]), lambda x: torch.stack([x, x[:9]]), lambda x: x.flip(0, 0), lambda x: x[:1].add_(x),
                     lambda x: x.slice_scatter(torch.ones(3, 4), 0, 0, 2), lambda x: x.index_reduce(0, torch.tensor([1, 2]), torch.ones(3, 4), "mean"),
                     lambda x: x.index_put((labels < 2,), torch.ones(6, 4)), lambda x: nn.functional.conv1d(x.T[None], torch.ones(2, 4, 3), torch.ones(3)), *of_values):
            try:
                call(whole.to(device()))
                raise AssertionError("torch accepts it")
            except (IndexError, RuntimeError) as error:
                refused(lambda: call(x), IndexError if isinstance(error, IndexError) else (IndexError, RuntimeError))
    assert not torch.equal(cut(), cut()[:9]) and torch.equal(cut(), whole)
    kinds = [torch.float32] + [torch.float64] * (num_ranks() - 1)
    if num_ranks() > 1:
        refused(lambda: meshard.from_local(torch.ones(3, dtype=kinds[rank()]), mesh(), [meshard.Shard(0)]), meshard.InvalidInput, "Float of 1 dimensions on rank 0 and Double of 1 on rank 1")
        refused(lambda: meshard.from_local(torch.ones([1] * (rank() + 1)), mesh(), [meshard.Shard(0)]), meshard.InvalidInput, "of 1 dimensions on rank 0 and Float of 2 on rank 1")


def test_what_is_read_where_it_is_written_is_read_first():
    """torch refuses this; of the ranks some may hold nothing of both rows."""
    for x in (cut(), meshard.distribute_tensor(whole, mesh(), [meshard.Shard(1)])):
        for write in (lambda a, b: a.copy_(b), lambda a, b: a.add_(b), lambda a, b: a.addcmul_(b, b)):
            found, expected = x.clone(), whole.clone()
            write(found[1:3], found[2:4])
            write(expected[1:3], whole[2:4])
            assert torch.equal(meshard.full_tensor(found), expected)


def test_prints_on_one_rank_alone():
    x, before = cut(gradient=True), mesh().num_messages
    if rank() == 0:
        text = repr(x) + str(x.mean())
        assert f"ShardTensor(shape=(10, 4), {meshard.describe(x)}, rank 0 holds tensor(" in text and "requires_grad=True" in text and "MeanBackward0" in text, text
    assert mesh().num_messages == before and meshard.placements(x) == (meshard.Shard(0),)


def test_numbers():
    x = cut()
    assert abs(x.sum().item() - whole.sum().item()) < 1e-5 and abs(float(x.mean()) - float(whole.mean())) < 1e-6
    assert bool(x.max() > 0) and f"{x.mean():.3f}" == f"{whole.mean():.3f}" and torch.equal(x, whole) and torch.allclose(x, whole)


def test_what_would_read_memory_of_the_whole_is_refused():
    x = cut()
    for call in (x.numpy, x.tolist, x.data_ptr, lambda: torch.utils.dlpack.to_dlpack(x), x.share_memory_, x.untyped_storage, x.storage):
        if device() != "cpu" and call == x.numpy:   # which torch refuses of any tensor there
            refused(call, TypeError, "Tensor.cpu()")
            continue
        refused(call, RuntimeError, "a sharded tensor has no memory of the whole; use to_local or full_tensor")
    assert not x.is_shared()


def test_sparse_tensors_meet_sharded_ones_as_dense_ones():
    a = (torch.rand(10, 10, generator=seeded(2)) > 0.7).float()
    for sparse in (a.to_sparse(), a.to_sparse_csr(), a.to_sparse_csc(), a.to_sparse_bsr((2, 2))):
        for ours, theirs in ((sparse @ cut(), a @ whole), (cut().T @ sparse, whole.T @ a), (torch.addmm(cut(), sparse, cut()), torch.addmm(whole, a, whole))):
            assert ours.layout == torch.strided and meshard.is_sharded(ours)
            near(ours, theirs, 1e-6)
    x = cut(gradient=True)
    (a.to_sparse_csr() @ x).square().sum().backward()
    near(x.grad, 2 * a.T @ a @ whole, 1e-6)
    dense = "sharded ones are dense. Use it on full_tensor(x)"
    for call in (cut().to_sparse, cut().to_sparse_csr, lambda: torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), cut()[:2, 0]),
                 lambda: torch.sparse_coo_tensor(torch.tensor([[0, 1], [0, 1]]), cut()[:2, 0], (2, 2))):
        refused(call, NotImplementedError, dense)
    refused(lambda: torch.sparse.sampled_addmm(a.to_sparse_csr(), cut(), cut().T), NotImplementedError, "full_tensor(x)")


def test_nested_tensors_are_refused():
    if device() != "cpu":
        return "torch makes none where a default device is set"
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1).eval()
    padding = torch.arange(10)[None] >= torch.tensor([[10]])
    padding[0, 7:] = True
    x = meshard.distribute_tensor(whole[None], mesh(), [meshard.Shard(1)], extents=[extent])
    with torch.no_grad():
        refused(lambda: encoder(x, src_key_padding_mask=padding), NotImplementedError, "enable_nested_tensor=False")
        encoder.enable_nested_tensor = encoder.use_nested_tensor = False
        near(encoder(x, src_key_padding_mask=padding), encoder(whole[None], src_key_padding_mask=padding))
    refused(lambda: torch.nested.as_nested_tensor([cut(), cut()]), NotImplementedError, "makes a nested tensor")


def test_collectives_of_torch_see_the_whole():
    x, pending = cut(), cut().sum()
    dist.all_reduce(x)
    near(x, num_ranks() * whole)
    dist.all_reduce(pending)
    near(pending, num_ranks() * whole.sum())
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    near(x, num_ranks()**2 * whole)
    parts = [torch.empty(10, 4) for _ in range(num_ranks())]
    dist.all_gather(parts, cut())
    for part in parts:
        near(part, whole, 0)
    dist.broadcast(x, 0)
    near(x, num_ranks()**2 * whole)


def test_deepcopy():
    x = cut(gradient=True)
    x.square().sum().backward()
    y = copy.deepcopy({"x": x, "again": x})
    assert y["x"] is y["again"] and y["x"] is not x and y["x"].requires_grad and meshard.extents(y["x"]) == [extent]
    near(y["x"], whole, 0)
    near(y["x"].grad, 2 * whole, 0)
    with torch.no_grad():
        x.zero_()
    near(y["x"], whole, 0)
    parameter = copy.deepcopy(nn.Parameter(cut()))
    assert type(parameter) is nn.Parameter
    near(parameter, whole, 0)
    refused(lambda: copy.deepcopy(y["x"] * 2), RuntimeError, "detach()")


def test_redistribute_to_local_and_back_have_gradients():
    x = cut(gradient=True)
    y = meshard.redistribute(x, [meshard.Shard(1)])
    z = meshard.redistribute(y, [meshard.Shard(0)], extents=[extent[::-1]])
    near(z, whole, 0)
    assert meshard.extents(z) == [extent[::-1]]
    meshard.from_local(meshard.to_local(z) * 2, mesh(), [meshard.Shard(0)]).square().sum().backward()
    near(x.grad, 8 * whole)


def test_gradients_of_gradients():
    x, w = cut(gradient=True), whole.clone().requires_grad_()
    g, = torch.autograd.grad((x.sin() ** 2).sum(), x, create_graph=True)
    gw, = torch.autograd.grad((w.sin() ** 2).sum(), w, create_graph=True)
    near(g, gw)
    near(torch.autograd.grad(g.square().sum(), x)[0], torch.autograd.grad(gw.square().sum(), w)[0])


def test_modes():
    model = network()
    with torch.no_grad():
        assert not model(cut()).requires_grad
        near(model(cut()), model(whole))
    with torch.inference_mode():
        assert model(cut()).is_inference()
        near(model(cut()), model(whole))


def test_autocast():
    model, serial = meshard.replicate(network(), mesh()), network()
    with torch.autocast(device(), torch.bfloat16):
        y, z = model(cut()), serial(whole)
        assert y.dtype == z.dtype == torch.bfloat16
        near(y, z, 0)
        assert (cut() @ cut().T).dtype == torch.bfloat16
        loss, expected = y.float().square().mean(), z.float().square().mean()
    loss.backward()
    expected.backward()
    near(model[0].weight.grad, serial[0].weight.grad, 1e-2)


def test_given_outs():
    out = torch.empty(0)
    torch.sum(cut(), 1, out=out)
    near(out, whole.sum(1))
    out = torch.zeros_like(cut() @ torch.eye(4))
    torch.mm(cut(), torch.eye(4) * 2, out=out)
    near(out, 2 * whole)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return 3 * x ** 2 * gradient


@torch.library.custom_op("meshard_tests::flipped", mutates_args=())
def flipped(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.cpu().numpy()[::-1].copy()).to(x.device)   # looks at memory


flipped.register_autograd(lambda ctx, gradient: flipped(gradient))


def same(function, *given, cut_first_alone=False):
    """The function of cut tensors has the numbers and the type that it has of whole ones, wherever rows lie."""
    expected = function(*(tensor.clone() for tensor in given))
    for extents in (uneven(len(given[0])), [0] * (num_ranks() - 1) + [len(given[0])]):
        parts = [meshard.distribute_tensor(tensor.clone(), mesh(), [meshard.Shard(0)], extents=[extents]) if i == 0 or not cut_first_alone else tensor
                 for i, tensor in enumerate(given)]
        found = function(*parts)
        found = meshard.full_tensor(found) if meshard.is_sharded(found) else found
        torch.testing.assert_close(found, expected.resolve_conj(), equal_nan=True)


def test_one_right_side_for_several_matrices():
    """LibTorch broadcasts it from its last dimensions, and takes it for vectors only if it has exactly their shape."""
    f64 = torch.float64
    matrices = torch.randn(2, 2, 2, 2, dtype=f64, generator=seeded(3)) + 3 * torch.eye(2, dtype=f64)
    for shape in ((2, 2, 3), (2, 2, 2), (2, 2, 2, 3), (2, 1)):
        right = torch.randn(shape, dtype=f64, generator=seeded(4))
        same(torch.linalg.solve, matrices, right, cut_first_alone=True)
        same(lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), matrices, right, cut_first_alone=True)
        same(lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b), matrices, right, cut_first_alone=True)


def test_sums_in_half_precision_are_rounded_after_the_division():
    large = torch.full((100, 40), 30000., dtype=torch.float16)
    none = torch.zeros_like(large)
    for function in (torch.mean, lambda x: x.mean(0), F.l1_loss, F.huber_loss):
        same(lambda x, y: function(x) if function not in (F.l1_loss, F.huber_loss) else function(x, y), large, none)
    same(F.mse_loss, large / 150, none)
    same(F.binary_cross_entropy, torch.full((100000,), 0.25, dtype=torch.float16), torch.ones(100000, dtype=torch.float16))
    same(lambda x: F.avg_pool2d(x.view(1, 1, 10, 8), 3, 1, 1, count_include_pad=False), torch.full((10, 8), 30000., dtype=torch.float16))
    meshard.set_exact_mode(True)
    found = meshard.distribute_tensor(large, mesh(), [meshard.Shard(0)], extents=[uneven(100)]).mean()
    meshard.set_exact_mode(False)
    assert found.item() == 30000


def test_pending_sums_change_their_type_as_sums_do():
    x = (torch.arange(20) % 7 + 0.6).view(10, 2)
    for dtype in (torch.int64, torch.int32):
        same(lambda x: x.sum(0).sum(dtype=dtype), x)
        same(lambda x: x.sum(0, keepdim=True).sum(1, dtype=dtype), x)
    same(lambda x: x.double().sum(0).mean(dtype=torch.float32), x)
    large = torch.tensor([2**55 + 1] * 5 + [-2**55] * 5)
    same(lambda x: x.sum(0).double(), large)
    half = torch.tensor([1000.] * 5 + [-999.75] * 5, dtype=torch.float16)
    same(lambda x: x.sum(0).to(torch.bfloat16), half)
    small = torch.tensor([100] * 10, dtype=torch.int8)
    same(lambda x: torch.tensor(2.5) * x.sum(dtype=torch.int8), small)
    same(lambda x: x.sum(dtype=torch.int8).double(), small)


def test_half_sums_that_cancel_are_finite_on_ranks():
    x = torch.tensor([30000.] * 5 + [-29000.] * 5, dtype=torch.float16).view(10, 1)
    for function in (lambda x: x.sum(), lambda x: x.sum(0), lambda x: x.nansum(), lambda x: x.nansum(0, keepdim=True)):
        same(function, x)


def test_indices_may_be_pending_sums():
    table = torch.arange(12.).view(4, 3)
    for function in (lambda i: table[i, i], lambda i: table.index_put((i, i), torch.tensor(7.)), lambda i: F.cross_entropy(table[:1], i.view(1)),
                     lambda i: F.nll_loss(table[0], i)):
        same(lambda x: function(x.sum(0)), torch.tensor([12] + [0] * 8 + [-10]))


def test_pending_sums_times_infinity():
    x = torch.tensor([1., 2., 3., 4., 5., 6., 7., 0., 0., 0.])
    infinite = torch.full((1, 1), torch.inf)
    for function in (lambda s: torch.dot(s.view(1), infinite.view(1)), lambda s: s.view(1, 1) @ infinite, lambda s: F.linear(s.view(1, 1), infinite),
                     lambda s: torch.einsum("ij,jk->ik", infinite, s.view(1, 1)), lambda s: torch.bmm(s.view(1, 1, 1), infinite[None])):
        same(lambda x: function(x.sum(0)), x)


def test_rows_of_negative_zeros_keep_their_sign():
    x = -torch.zeros(10, 2)
    for function in (lambda x: x[torch.tensor([0, 9])], lambda x: x.index_select(0, torch.tensor([4])), lambda x: x.gather(0, torch.tensor([[7, 0]])),
                     lambda x: F.embedding(torch.tensor([9, 0]), x)):
        same(lambda x: 1 / function(x), x)


def test_exact_sums_of_very_large_and_very_small_numbers():
    meshard.set_exact_mode(True)
    for value in (1e280, 1e-300, 1e-305):
        numbers = torch.full((10,), value, dtype=torch.float64)
        found = meshard.full_tensor(meshard.distribute_tensor(numbers, mesh(), [meshard.Shard(0)], extents=[extent]).sum())
        near(found / value, torch.tensor(10., dtype=torch.float64), 1e-14)
    meshard.set_exact_mode(False)


def test_sums_times_infinity_and_over_nothing():
    for function in (lambda x: x.sum() / 0, lambda x: x.sum() * float("inf"), lambda x: float("inf") * x.sum(0), lambda x: x.sum(0) / torch.zeros(4),
                     lambda x: (x - 1).sum(0) * torch.full((4,), float("inf"))):
        same(function, torch.rand(10, 4, generator=seeded(5)))


def test_conjugates_are_views():
    def written(z):
        z.conj().mul_(2j)
        return z

    def read_after(z):
        view = z.conj()
        z[1:].add_(1j)
        return view * 1

    def chained(z):
        z.conj()[2:].conj().t().mul_(3j)
        return z

    for function in (written, read_after, chained, lambda z: z.mH @ z):
        same(function, torch.randn(6, 3, dtype=torch.complex128, generator=seeded(6)))


def test_types_of_empty_operands_count():
    same(lambda x: torch.cat([torch.empty(0, dtype=torch.float64), x]), torch.rand(10, generator=seeded(7)))


def test_whole_numbers_keep_their_type():
    one, two = torch.full((10, 3, 4), 9, dtype=torch.uint8), torch.full((10, 4, 5), 9, dtype=torch.uint8)
    same(lambda x, y: torch.addbmm(torch.zeros(3, 5, dtype=torch.uint8), x, y), one, two)
    same(lambda x: torch.addr(torch.zeros(10, 3, dtype=torch.bool), x, torch.tensor([True, False, True])), torch.arange(10) % 2 == 0)


def test_rows_of_types_without_arithmetic():
    index = torch.tensor([9, 0, 3, 3])
    for dtype in (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn):
        rows = torch.arange(20).view(10, 2).to(dtype)
        for extents in (extent, [0] * (num_ranks() - 1) + [10]):
            x = meshard.distribute_tensor(rows, mesh(), [meshard.Shard(0)], extents=[extents])
            for found in (x.index_select(0, index), x[index]):
                assert torch.equal(meshard.full_tensor(found).view(torch.uint8), rows[index].view(torch.uint8)), dtype


def test_draws_into_views_with_gaps_are_the_plain_ones():
    def drawn(x):
        torch.manual_seed(5)
        x[:, ::2].normal_()
        return torch.cat([x, torch.rand(1, 6).expand_as(x[:1])])

    if device() == "cpu":
        same(drawn, torch.zeros(20, 6))


def test_custom_functions_and_operators():
    x = cut(gradient=True)
    Cube.apply(x).sum().backward()
    near(x.grad, 3 * whole ** 2)
    x, w = cut(gradient=True), whole.clone().requires_grad_()
    (flipped(x) * x ** 2).sum().backward()
    (flipped(w) * w ** 2).sum().backward()
    near(x.grad, w.grad)


def test_function_transforms():
    near(torch.vmap(lambda v: v.sum())(cut()), whole.sum(1))
    near(torch.func.grad(lambda v: (v ** 3).sum())(cut()), 3 * whole ** 2)


def test_new_tensors_of_the_same_type():
    x = cut()
    assert x.new_tensor([1, 2]).dtype == x.dtype and not meshard.is_sharded(x.new_tensor(3))
    refused(lambda: x.new(3), RuntimeError, "new_empty")


def test_hooks():
    seen, model = [], network()
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(meshard.describe(output)))
    model[0].register_full_backward_hook(lambda module, inputs, outputs: seen.append(meshard.describe(outputs[0])))
    x = cut(gradient=True)
    x.register_hook(lambda gradient: seen.append(meshard.describe(gradient)))
    model(x).sum().backward()
    assert len(seen) == 3 and len(set(seen)) == 1, seen


def test_checkpoints():
    for run in (meshard.checkpoint, lambda function, *inputs: torch.utils.checkpoint.checkpoint(function, *inputs, use_reentrant=False)):
        found = []
        for wrap in (lambda function, *inputs: function(*inputs), run):
            model, x = meshard.replicate(network(), mesh()), cut(gradient=True)
            torch.manual_seed(3)
            wrap(lambda v: F.dropout(model(v.sin()), 0.5), x).square().sum().backward()
            found.append([x.grad, *(p.grad for p in model.parameters())])
        for ours, theirs in zip(*found):
            near(ours, meshard.full_tensor(theirs) if meshard.is_sharded(theirs) else theirs, 0)
    a, b = meshard.checkpoint(lambda v: (v + 1, v * 2), cut(gradient=True))
    near(a, whole + 1, 0)
    near(b, whole * 2, 0)
    refused(lambda: meshard.checkpoint(lambda v: 1 / 0, cut()), ZeroDivisionError)


def test_compiled_functions_run_as_they_are():
    model = network()
    near(torch.compile(model, backend="eager")(cut()), model(whole))
    near(torch.compile(lambda x: x.sin() + 1, backend="eager")(whole), whole.sin() + 1)
    refused(lambda: torch.compile(lambda x: x + 1, fullgraph=True, backend="eager")(cut()), Exception, "sharded tensor of meshard")


def test_data_parallel_wrapper():
    """Of torch: the pending sums are reduced where it copies gradients into its buckets, and the mean over ranks is that of equal numbers."""
    model, serial = nn.parallel.DistributedDataParallel(network()), network()
    for _ in range(2):
        model(cut()).square().mean().backward()
        serial(whole).square().mean().backward()
    for ours, theirs in zip(model.parameters(), serial.parameters()):
        near(ours.grad, theirs.grad, 1e-5)


def test_tools_of_torch():
    from torch.utils.flop_counter import FlopCounterMode
    with FlopCounterMode(display=False) as ours:
        network()(cut())
    with FlopCounterMode(display=False) as theirs:
        network()(whole)
    assert ours.get_total_flops() == theirs.get_total_flops()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        network()(cut())
    assert any(event.key == "aten::addmm" for event in profile.key_averages())
    with torch.autograd.set_detect_anomaly(True):
        network()(cut(gradient=True)).sum().backward()
    torch.testing.assert_close(cut(), whole)


def test_gathering_is_recorded_and_can_be_refused():
    with meshard.record_rules() as rules:
        near(cut().sin(), whole.sin())
        near(torch.linalg.svdvals(cut()), torch.linalg.svdvals(whole), 1e-5)
    by_op = {event.op.split(".")[0]: event for event in rules.events}
    assert not by_op["aten::sin"].gathered and by_op["aten::sin"].num_messages == 0 and meshard.describe(cut()) in by_op["aten::sin"].inputs
    assert any(event.gathered for event in rules.events), rules.events
    meshard.set_gather_policy("refuse")
    try:
        refused(lambda: torch.linalg.svdvals(cut()), NotImplementedError, "svd")
    finally:
        meshard.set_gather_policy("silent")


def test_recordings_within_others():
    with meshard.record_rules() as outer:
        cut().sum()
        with meshard.record_rules() as inner:
            cut().exp()
        cut().tanh()
    assert [event.op for event in inner.events if "exp" in event.op] and not any("tanh" in event.op for event in inner.events)
    assert all(any(name in event.op for event in outer.events) for name in ("sum", "exp", "tanh"))


def test_exact_mode_gives_the_same_bits_on_any_cut():
    meshard.set_exact_mode(True)
    try:
        x = torch.randn(1000, generator=seeded(1))
        sums = {meshard.distribute_tensor(x, mesh(), [meshard.Shard(0)], extents=[e]).sum().item() for e in (uneven(1000), uneven(1000)[::-1])}
        one_rank = meshard.DeviceMesh.single()
        sums.add(meshard.from_local(x, one_rank, [meshard.Shard(0)]).sum().item())
        assert len(sums) == 1, sums
        # Rows that are taken by number are pending sums.
        rows, orders = x.view(100, 10), [torch.randperm(100, generator=seeded(k)) for k in range(3)]
        for combine in (lambda a, b, c: a.sum(0), lambda a, b, c: a + b + c, lambda a, b, c: rows.t() @ a, lambda a, b, c: a.diff(dim=0).diff(dim=0)):
            found = []
            for extents in (uneven(100), uneven(100)[::-1], [0] * (num_ranks() - 1) + [100]):
                cut = meshard.distribute_tensor(rows, mesh(), [meshard.Shard(0)], extents=[extents]).requires_grad_()
                made = combine(*(cut[order] for order in orders))
                made.square().sum().backward()
                found.append((meshard.full_tensor(made.detach()), meshard.full_tensor(cut.grad)))
            assert all(torch.equal(ours, first) for others in found for ours, first in zip(others, found[0]))
    finally:
        meshard.set_exact_mode(False)
