// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/gzip.h"

#include "partition/error.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <zlib.h>

namespace meshard {

std::string gunzip(std::span<const std::byte> compressed, const std::string& where)
{
    constexpr int gzip_format = 16 + MAX_WBITS;
    z_stream stream{};
    if (::inflateInit2(&stream, gzip_format) != Z_OK) throw IoError("{} cannot be inflated: out of memory.", where);
    const std::unique_ptr<z_stream, int (*)(z_stream*)> end_of_stream(&stream, &::inflateEnd);

    std::string text;
    std::size_t taken = 0, made = 0;
    int status = Z_OK;
    while (taken < compressed.size()) {
        if (made == text.size()) text.resize(std::max(text.size() * 2, compressed.size() * 2 + 1024));
        constexpr std::size_t most = std::numeric_limits<uInt>::max();
        stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(compressed.data() + taken));
        stream.avail_in = static_cast<uInt>(std::min(compressed.size() - taken, most));
        stream.next_out = reinterpret_cast<Bytef*>(text.data() + made);
        stream.avail_out = static_cast<uInt>(std::min(text.size() - made, most));
        const uInt in = stream.avail_in, out = stream.avail_out;
        status = ::inflate(&stream, Z_NO_FLUSH);
        taken += in - stream.avail_in;
        made += out - stream.avail_out;
        if (status == Z_STREAM_END) {
            if (taken < compressed.size()) ::inflateReset(&stream);
        } else if (status != Z_OK && status != Z_BUF_ERROR) {
            throw IoError("{} cannot be inflated. It is damaged, or no gzip file.", where);
        }
    }
    // When the input is used up, the decoder may still have output for which there was no room.
    while (status != Z_STREAM_END) {
        if (made == text.size()) text.resize(text.size() * 2 + 1024);
        stream.avail_in = 0;
        stream.next_out = reinterpret_cast<Bytef*>(text.data() + made);
        stream.avail_out =
            static_cast<uInt>(std::min<std::size_t>(text.size() - made, std::numeric_limits<uInt>::max()));
        const uInt out = stream.avail_out;
        status = ::inflate(&stream, Z_NO_FLUSH);
        made += out - stream.avail_out;
        if (status == Z_STREAM_END) break;
        if (out == stream.avail_out || status != Z_OK)
            throw IoError("{} ends too early: it is truncated. Copy or write it again.", where);
    }
    text.resize(made);
    return text;
}

}  // namespace meshard
