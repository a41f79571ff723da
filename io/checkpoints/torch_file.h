// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/zip_archive.h"
#include "io/checkpoints/pickle.h"
#include "io/checkpoints/safetensors.h"

#include <map>
#include <string>

namespace meshard {

/// The content of a file of `torch.save`: a pickle and the storages that its tensors view; in the zip format (PyTorch
/// 1.6 and later) or the plain one before it.
class TorchFile {
public:
    /// @param where   begins the message of an error, e.g. "read_checkpoint: model.pt"
    /// @throws IoError if the file is truncated, damaged, big-endian, or neither format; or as `Pickle`.
    TorchFile(const SharedBytes& file, std::string where);

    const PickleValue& root() const { return pickle_->root(); }

    /// The tensor's numbers: a view into the file if they are contiguous and aligned there, else a copy in row-major
    /// order.
    /// @throws IoError if the type is unknown, or the tensor reaches beyond its storage, or the storage beyond the
    /// file.
    NamedArray array(std::string name, const PickledTensor& tensor);

private:
    [[noreturn]] void fail(const std::string& what) const;
    void read_zip(const SharedBytes& file);
    void read_legacy(const SharedBytes& file);
    SharedBytes storage(const PickledStorage& storage, std::size_t value_size);

    std::string where_;
    std::unique_ptr<Pickle> pickle_;
    std::unique_ptr<ZipArchive> archive_;          // null for the plain format
    std::string folder_;                           // the archive's folder, with its slash
    std::map<std::string, SharedBytes> storages_;  // those read so far; in the plain format all
    std::uint64_t stored_bytes_ = 0;
    std::uint64_t copied_bytes_ = 0;
};

/// The pieces of a file that `torch.load(path, weights_only=True)` opens as an ordered dict of tensors. They refer to
/// the layout and to the arrays' bytes.
/// @throws InvalidInput naming an array with a type for which PyTorch has no storage.
std::vector<std::span<const std::byte>> torch_file_pieces(const NamedArrays& content, ZipLayout& layout);

}  // namespace meshard
