// SPDX-License-Identifier: Apache-2.0
// Attention of cut sequences by LibTorch's fused kernels, piece by piece, on the device of the tests, against the whole
// one in double precision on the CPU.
#include "ops/attention/piece_kernel.h"
#include "sharding/tensor/exact_mode.h"
#include "sharding/tensor/redistribute.h"
#include "tests/support/cut_rows.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"
#include "tests/support/standin/standin.h"
#include "tests/support/test_device.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;  // any but the CPU

TEST(PieceKernel, IsChosenByDeviceTypeAndWidth)
{
    EXPECT_EQ(choose_piece_kernel({}), PieceKernel::Cpu);
    EXPECT_EQ(choose_piece_kernel({.type = at::kDouble, .mask_type = at::kBool}), PieceKernel::Cpu);
    EXPECT_EQ(choose_piece_kernel({.width = 8, .value_width = 16}), PieceKernel::Tiles);
    for (const auto half : {at::kHalf, at::kBFloat16}) {
        EXPECT_EQ(choose_piece_kernel({.device = kDevice, .type = half, .width = 192, .value_width = 192}),
                  PieceKernel::Flash);
        EXPECT_EQ(choose_piece_kernel({.device = kDevice, .type = half, .width = 193, .value_width = 193}),
                  PieceKernel::Efficient);
        EXPECT_EQ(choose_piece_kernel({.device = kDevice, .type = half, .width = 8, .value_width = 16}),
                  PieceKernel::Efficient);
        EXPECT_EQ(choose_piece_kernel({.device = kDevice, .type = half, .mask_type = at::kBool}),
                  PieceKernel::Efficient);
        EXPECT_EQ(choose_piece_kernel({.device = kDevice, .type = half, .mask_type = half}), PieceKernel::Efficient);
        EXPECT_EQ(choose_piece_kernel({.device = kDevice, .type = half, .mask_type = at::kFloat}), PieceKernel::Tiles);
    }
    EXPECT_EQ(choose_piece_kernel({.device = kDevice}), PieceKernel::Efficient);
    EXPECT_EQ(choose_piece_kernel({.device = kDevice, .most_numbers = std::int64_t{1} << 31}), PieceKernel::Tiles);
    EXPECT_EQ(choose_piece_kernel({.device = kDevice, .batch = 65536}), PieceKernel::Tiles);
    EXPECT_EQ(choose_piece_kernel({.device = kDevice, .type = at::kDouble}), PieceKernel::Tiles);
}

TEST(PieceKernel, IsCudnnsWhereLibTorchPrefersIt)
{
    const auto chosen = [](at::ScalarType type, std::int64_t width, std::int64_t value_width,
                           std::optional<at::ScalarType> mask = {}) {
        return choose_piece_kernel({.device = kDevice,
                                    .type = type,
                                    .width = width,
                                    .value_width = value_width,
                                    .mask_type = mask,
                                    .prefers_cudnn = true});
    };
    EXPECT_EQ(chosen(at::kHalf, 64, 64), PieceKernel::Cudnn);
    EXPECT_EQ(chosen(at::kBFloat16, 128, 8), PieceKernel::Cudnn);
    EXPECT_EQ(chosen(at::kBFloat16, 136, 136), PieceKernel::Flash);
    EXPECT_EQ(chosen(at::kBFloat16, 60, 60), PieceKernel::Flash);
    EXPECT_EQ(chosen(at::kBFloat16, 64, 64, at::kBool), PieceKernel::Efficient);
    EXPECT_EQ(chosen(at::kFloat, 64, 64), PieceKernel::Efficient);
    set_exact_mode(true);
    EXPECT_EQ(chosen(at::kHalf, 64, 64), PieceKernel::Tiles);
    set_exact_mode(false);
}

TEST(PieceKernel, LeavesDropoutMasksGradientsAndNothingToTiles)
{
    for (const auto device : {c10::kCPU, kDevice}) {
        EXPECT_EQ(choose_piece_kernel({.device = device, .drops = true}), PieceKernel::Tiles);
        EXPECT_EQ(choose_piece_kernel({.device = device, .mask_type = at::kFloat, .wants_mask_gradient = true}),
                  PieceKernel::Tiles);
        EXPECT_EQ(choose_piece_kernel({.device = device, .batch = 0}), PieceKernel::Tiles);
        EXPECT_EQ(choose_piece_kernel({.device = device, .width = 0}), PieceKernel::Tiles);
    }
}

TEST(PieceKernel, IsNoneThatTheProgramHasSwitchedOff)
{
    auto& context = at::globalContext();
    context.setSDPUseFlash(false);
    EXPECT_EQ(choose_piece_kernel({.device = kDevice, .type = at::kHalf}), PieceKernel::Efficient);
    context.setSDPUseMemEfficient(false);
    EXPECT_EQ(choose_piece_kernel({.device = kDevice, .type = at::kHalf}), PieceKernel::Tiles);
    context.setSDPUseFlash(true);
    context.setSDPUseMemEfficient(true);

    set_exact_mode(true);
    EXPECT_EQ(choose_piece_kernel({.device = kDevice}), PieceKernel::Tiles);
    EXPECT_EQ(choose_piece_kernel({}), PieceKernel::Cpu);
    set_exact_mode(false);
}

/// Sizes of an attention: queries (B, H, L, D), keys (B, K, S, D), values (B, K, S, E).
struct CutSizes {
    std::int64_t heads = 2, key_heads = 2, rows = 111, keys = 111, width = 16, value_width = 16;
};

struct CutCase {
    CutSizes sizes;
    bool causal = false;
    at::Tensor mask{};  ///< undefined for none; a leaf where its gradient is wanted
};

/// Uneven parts, the second of three empty.
Extents parts_of(std::int64_t rows, int num_ranks)
{
    if (num_ranks == 1) return {rows};
    if (num_ranks == 2) return {rows - 40, 40};
    return {rows - 52, 0, 52};
}

/// Output and gradients of queries, keys, values and mask, whole, of tensors that `place` puts where they belong.
template <class Place>
Tensors attention_results(const CutCase& item, const Tensors& inputs, const Place& place)
{
    Tensors leaves;
    for (int i = 0; i < 3; ++i) leaves.push_back(place(inputs[i], i).detach().requires_grad_());
    auto mask = item.mask;
    if (mask.defined()) {
        mask = mask.scalar_type() == at::kBool ? mask : mask.to(inputs[0].scalar_type());
        mask = place(mask.detach(), 3).set_requires_grad(item.mask.requires_grad());
    }
    const auto given = mask.defined() ? std::make_optional(mask) : std::nullopt;
    const auto output = at::scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], given, 0.0, item.causal, 0.3,
                                                         /*enable_gqa=*/true);
    (output * inputs[3].to(output.device())).sum().backward();
    Tensors results{output.detach()};
    for (const auto& leaf : leaves) results.push_back(leaf.grad());
    if (mask.defined() && mask.requires_grad()) results.push_back(mask.grad());
    return results;
}

/// Compares on 1, 2 and 3 ranks.
void expect_as_whole_by_the_kernel_chosen(const CutCase& item, at::ScalarType type, double tolerance)
{
    const auto& s = item.sizes;
    Draw draw(3);
    const Tensors inputs{draw.values({2, s.heads, s.rows, s.width}, type),
                         draw.values({2, s.key_heads, s.keys, s.width}, type),
                         draw.values({2, s.key_heads, s.keys, s.value_width}, type),
                         draw.values({2, s.heads, s.rows, s.value_width}, type)};
    Tensors exact;
    for (const auto& input : inputs) exact.push_back(input.to(at::kDouble));
    const auto expected = attention_results(item, exact, [](const at::Tensor& x, int) { return x.clone(); });

    for (const int num_ranks : {1, 2, 3}) {
        run_ranks(num_ranks, [&](const auto& mesh) {
            const auto found = attention_results(item, inputs, [&](const at::Tensor& x, int i) {
                const auto there = x.to(device_of_tests());
                return i == 3 ? from_local(there, mesh, {Replicate()})
                              : cut_rows(there, parts_of(x.size(2), num_ranks), mesh);
            });
            ASSERT_EQ(found.size(), expected.size());
            for (std::size_t i = 0; i < found.size(); ++i) {
                EXPECT_EQ(found[i].scalar_type(), type);
                EXPECT_TRUE(tensors_near(full_tensor(found[i]).cpu().to(at::kDouble), expected[i], tolerance))
                    << type << ", result " << i << ", " << num_ranks;
            }
        });
    }
}

/// In half precision by cuDNN's kernel, where the device has it and it takes the sizes, and without.
void expect_as_whole(const CutCase& item, at::ScalarType type, double tolerance)
{
    expect_as_whole_by_the_kernel_chosen(item, type, tolerance);
    if (device_of_tests().is_cpu() || (type != at::kHalf && type != at::kBFloat16) || item.mask.defined()) return;
    at::globalContext().setSDPUseCuDNN(false);
    expect_as_whole_by_the_kernel_chosen(item, type, tolerance);
    at::globalContext().setSDPUseCuDNN(true);
}

/// On a device every type is computed by another kernel.
const std::vector<std::pair<at::ScalarType, double>> kTolerances{
    {at::kDouble, 1e-11}, {at::kFloat, 2e-6}, {at::kBFloat16, 2e-2}, {at::kHalf, 2e-3}};

class CutAttention : public ::testing::Test {
protected:
    void SetUp() override
    {
        if (!has_device_of_tests()) GTEST_SKIP() << "this process sees no device of type " << device_of_tests();
    }
};

TEST_F(CutAttention, EqualsTheWholeOne)
{
    // Rows of numbers that fill words of memory, and others; values as wide as keys, and not.
    const std::vector<CutSizes> all{
        {}, {.keys = 75}, {.width = 21, .value_width = 21}, {.width = 8, .value_width = 24}, {.rows = 64, .keys = 96}};
    for (const auto& [type, tolerance] : kTolerances) {
        for (const auto& sizes : all) expect_as_whole({sizes}, type, tolerance);
    }
}

TEST_F(CutAttention, IsCausal)
{
    for (const auto& [type, tolerance] : kTolerances) {
        expect_as_whole({{}, /*causal=*/true}, type, tolerance);
        expect_as_whole({{.heads = 4, .width = 21, .value_width = 21}, true}, type, tolerance);
        // Parts of other lengths meet at several places of the diagonal.
        expect_as_whole({{.rows = 90, .keys = 111}, true}, type, tolerance);
        expect_as_whole({{.rows = 111, .keys = 70}, true}, type, tolerance);
    }
}

TEST_F(CutAttention, SharesHeadsOfTheKeys)
{
    for (const auto& [type, tolerance] : kTolerances) {
        for (const std::int64_t key_heads : {1, 2}) {
            expect_as_whole({{.heads = 4, .key_heads = key_heads}}, type, tolerance);
            // By the efficient kernel, called for some heads of the queries at a time.
            expect_as_whole({{.heads = 4, .key_heads = key_heads, .width = 8, .value_width = 24}}, type, tolerance);
        }
    }
}

TEST_F(CutAttention, TakesMasksThatHideRowsAndParts)
{
    Draw draw(4);
    const std::vector<std::vector<std::int64_t>> shapes{
        {1, 1, 111, 111}, {2, 4, 111, 111}, {2, 1, 1, 111}, {1, 4, 111, 1}};
    for (const auto& shape : shapes) {
        auto seen = draw.values(shape) > -0.5;
        if (shape[2] > 1) seen.select(2, 7).fill_(false);  // a row without any key,
        if (shape[2] > 1 && shape[3] > 1)
            seen.select(2, 60).narrow(2, 0, 75).zero_();  // and one that sees the last rank's only
        const auto added = draw.values(shape, at::kBFloat16).to(at::kDouble).masked_fill(seen.logical_not(), -INFINITY);
        for (const auto& [type, tolerance] : kTolerances) {
            for (const auto& sizes : {CutSizes{.heads = 4, .key_heads = 2},
                                      CutSizes{.heads = 4, .key_heads = 4, .width = 21, .value_width = 21}}) {
                expect_as_whole({sizes, false, seen}, type, tolerance);
                if (type != at::kHalf) expect_as_whole({sizes, false, added}, type, tolerance);
            }
        }
    }
}

TEST_F(CutAttention, GivesMasksTheirGradient)
{
    Draw draw(5);
    const auto mask = draw.values({1, 2, 111, 111}, at::kBFloat16).to(at::kDouble).requires_grad_();
    for (const auto& [type, tolerance] : kTolerances) {
        if (type != at::kHalf) expect_as_whole({{}, false, mask}, type, tolerance);
    }
}

/// How often the stand-in's devices have been asked for operators whose names contain `text`, since the last call of
/// `reset`.
std::int64_t num_launches(const char* text)
{
    std::int64_t number = 0;
    for (int device = 0; device < 3; ++device) {
        for (const auto& [name, times] : loaded_standin()->counters(device).launched)
            number += name.find(text) != std::string::npos ? times : 0;
    }
    return number;
}

TEST_F(CutAttention, IsComputedByTheKernelsOfTheDevice)
{
    if (!loaded_standin()) GTEST_SKIP() << "only the stand-in accelerator counts what it is asked to do";
    const auto run = [](at::ScalarType type, bool causal, const at::Tensor& mask = {}) {
        for (int device = 0; device < 3; ++device) loaded_standin()->reset_counters(device);
        expect_as_whole_by_the_kernel_chosen({{}, causal, mask}, type, type == at::kFloat ? 2e-6 : 2e-2);
    };
    for (const bool causal : {false, true}) {
        run(at::kBFloat16, causal);
        EXPECT_GT(num_launches("aten::_scaled_dot_product_cudnn_attention_backward"), 0);
        EXPECT_EQ(num_launches("flash_attention_backward") + num_launches("efficient_attention") +
                      num_launches("aten::bmm"),
                  0);
        at::globalContext().setSDPUseCuDNN(false);
        run(at::kBFloat16, causal);
        at::globalContext().setSDPUseCuDNN(true);
        EXPECT_GT(num_launches("aten::_scaled_dot_product_flash_attention_backward"), 0);
        EXPECT_EQ(num_launches("cudnn_attention") + num_launches("efficient_attention") + num_launches("aten::bmm"), 0);
        run(at::kFloat, causal);
        EXPECT_GT(num_launches("aten::_scaled_dot_product_efficient_attention_backward"), 0);
        EXPECT_EQ(num_launches("aten::_scaled_dot_product_flash_attention_backward") + num_launches("aten::bmm"), 0);
    }
    run(at::kBFloat16, false, at::ones({111, 111}, at::kBool).view({1, 1, 111, 111}));
    EXPECT_GT(num_launches("aten::_scaled_dot_product_efficient_attention_backward"), 0);
    EXPECT_EQ(num_launches("aten::bmm"), 0);
    run(at::kFloat, false, at::zeros({1, 1, 111, 111}).requires_grad_());
    EXPECT_EQ(num_launches("attention_backward"), 0);
    EXPECT_GT(num_launches("aten::bmm"), 0);
}

}  // namespace
}  // namespace meshard
