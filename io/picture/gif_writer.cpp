// SPDX-License-Identifier: Apache-2.0
#include "io/picture/gif_writer.h"

#include "partition/error.h"

#ifdef MESHARD_WITH_GIF

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <gif_lib.h>
#include <limits>
#include <memory>
#include <vector>

namespace meshard {
namespace {

constexpr int kNumColors = 256, kUnchanged = 255;  // the last is no colour: what the picture before shows
constexpr int kBits = 5;                           // colours are told apart by so many bits of each channel

std::size_t bin_of(const std::uint8_t* pixel)
{
    std::size_t bin = 0;
    for (int channel = 0; channel < 3; ++channel) bin = bin << kBits | pixel[channel] >> (8 - kBits);
    return bin;
}

/// The colours of some pictures, and which of them stands for a pixel.
class Palette {
public:
    explicit Palette(std::span<const Image> frames) : index_(std::size_t{1} << 3 * kBits)
    {
        std::vector<std::array<std::int64_t, 4>> bins(index_.size());  // sums of the channels, and pixels
        for (const auto& frame : frames) {
            for (std::size_t at = 0; at < frame.pixels.size(); at += 3) {
                auto& bin = bins[bin_of(&frame.pixels[at])];
                for (std::size_t channel = 0; channel < 3; ++channel) bin[channel] += frame.pixels[at + channel];
                ++bin[3];
            }
        }
        std::vector<std::size_t> order;
        for (std::size_t bin = 0; bin < bins.size(); ++bin)
            if (bins[bin][3] > 0) order.push_back(bin);
        std::ranges::stable_sort(order, std::greater<>(), [&](auto bin) { return bins[bin][3]; });
        for (const auto bin : order) {
            const auto& [red, green, blue, count] = bins[bin];
            const std::array color{red / count, green / count, blue / count};
            if (num_colors_ < kUnchanged) {
                index_[bin] = static_cast<GifPixelType>(num_colors_);
                colors_[num_colors_++] = {static_cast<GifByteType>(color[0]), static_cast<GifByteType>(color[1]),
                                          static_cast<GifByteType>(color[2])};
                continue;
            }
            auto least = std::numeric_limits<std::int64_t>::max();
            for (int i = 0; i < num_colors_; ++i) {
                const auto& other = colors_[i];
                const std::array difference{color[0] - other.Red, color[1] - other.Green, color[2] - other.Blue};
                std::int64_t distance = 0;
                for (const auto one : difference) distance += one * one;
                if (distance >= least) continue;
                least = distance;
                index_[bin] = static_cast<GifPixelType>(i);
            }
        }
    }

    const std::array<GifColorType, kNumColors>& colors() const { return colors_; }
    GifPixelType index(const std::uint8_t* pixel) const { return index_[bin_of(pixel)]; }

private:
    std::vector<GifPixelType> index_;
    std::array<GifColorType, kNumColors> colors_{};
    int num_colors_ = 0;
};

int add_bytes(GifFileType* gif, const GifByteType* bytes, int count)
{
    static_cast<std::string*>(gif->UserData)
        ->append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(count));
    return count;
}

}  // namespace

bool writes_gif()
{
    return true;
}

std::string gif_of(std::span<const Image> frames, int hundredths)
{
    std::string bytes;
    int error = 0;
    const auto require = [&](bool is_good) {
        if (!is_good) throw Error("giflib could not write the pictures.");
    };
    const auto close = [](GifFileType* gif) { EGifCloseFile(gif, nullptr); };
    std::unique_ptr<GifFileType, decltype(close)> gif(EGifOpen(&bytes, add_bytes, &error), close);
    require(gif != nullptr);
    EGifSetGifVersion(gif.get(), true);
    const Palette palette(frames);
    const std::unique_ptr<ColorMapObject, decltype(&GifFreeMapObject)> map(
        GifMakeMapObject(kNumColors, palette.colors().data()), &GifFreeMapObject);
    const int width = frames.front().width, height = frames.front().height;
    require(map && EGifPutScreenDesc(gif.get(), width, height, 8, 0, map.get()) == GIF_OK);
    constexpr std::array<GifByteType, 3> endless{1, 0, 0};
    require(EGifPutExtensionLeader(gif.get(), APPLICATION_EXT_FUNC_CODE) == GIF_OK &&
            EGifPutExtensionBlock(gif.get(), 11, "NETSCAPE2.0") == GIF_OK &&
            EGifPutExtensionBlock(gif.get(), static_cast<int>(endless.size()), endless.data()) == GIF_OK &&
            EGifPutExtensionTrailer(gif.get()) == GIF_OK);
    std::vector<GifPixelType> before, line(static_cast<std::size_t>(width));
    for (const auto& frame : frames) {
        std::vector<GifPixelType> shown(frame.pixels.size() / 3);
        for (std::size_t pixel = 0; pixel < shown.size(); ++pixel)
            shown[pixel] = palette.index(&frame.pixels[3 * pixel]);
        const GraphicsControlBlock control{.DisposalMode = DISPOSE_DO_NOT,
                                           .UserInputFlag = false,
                                           .DelayTime = hundredths,
                                           .TransparentColor = before.empty() ? NO_TRANSPARENT_COLOR : kUnchanged};
        std::array<GifByteType, 4> block{};
        const auto size = EGifGCBToExtension(&control, block.data());
        require(EGifPutExtension(gif.get(), GRAPHICS_EXT_FUNC_CODE, static_cast<int>(size), block.data()) == GIF_OK &&
                EGifPutImageDesc(gif.get(), 0, 0, width, height, false, nullptr) == GIF_OK);
        for (std::size_t row = 0; row < static_cast<std::size_t>(height); ++row) {
            for (std::size_t x = 0; x < line.size(); ++x) {
                const auto pixel = row * line.size() + x;
                const bool is_same = !before.empty() && before[pixel] == shown[pixel];
                line[x] = is_same ? static_cast<GifPixelType>(kUnchanged) : shown[pixel];
            }
            require(EGifPutLine(gif.get(), line.data(), width) == GIF_OK);
        }
        before = std::move(shown);
    }
    require(EGifCloseFile(gif.release(), &error) == GIF_OK);
    return bytes;
}

}  // namespace meshard

#else

namespace meshard {

bool writes_gif()
{
    return false;
}

std::string gif_of(std::span<const Image>, int)
{
    throw Error("this build has no giflib, and writes no animations.");
}

}  // namespace meshard

#endif
