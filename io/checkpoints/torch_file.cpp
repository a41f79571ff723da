// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoints/torch_file.h"

#include "io/checkpoints/safetensors.h"
#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

namespace meshard {
namespace {

constexpr auto kStorageTypes = std::to_array<std::pair<std::string_view, ArrayType>>({
    {"DoubleStorage", ArrayType::F64},
    {"FloatStorage", ArrayType::F32},
    {"HalfStorage", ArrayType::F16},
    {"BFloat16Storage", ArrayType::BF16},
    {"LongStorage", ArrayType::I64},
    {"IntStorage", ArrayType::I32},
    {"ShortStorage", ArrayType::I16},
    {"CharStorage", ArrayType::I8},
    {"ByteStorage", ArrayType::U8},
    {"BoolStorage", ArrayType::BOOL},
});

// The pickled magic number at the beginning of PyTorch's format before zip.
constexpr std::string_view kLegacyBegin("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);

// Largest ratio of the size of copies, made from views of shared storages, to the size of the storages.
constexpr std::uint64_t kLargestGrowth = 16;

std::optional<ArrayType> type_of_storage(std::string_view name)
{
    const auto found = std::ranges::find(kStorageTypes, name, &std::pair<std::string_view, ArrayType>::first);
    if (found == kStorageTypes.end()) return std::nullopt;
    return found->second;
}

/// Number of values, and the distance of the last one from the offset; none for extents that are negative or overflow.
struct Reach {
    std::int64_t num_values = 1;
    std::int64_t last = 0;
};

std::optional<Reach> reach_of(const PickledTensor& tensor)
{
    Reach reach;
    bool is_empty = false;
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
        const auto extent = tensor.shape[i], stride = tensor.strides[i];
        std::int64_t span = 0;
        if (extent < 0 || stride < 0) return std::nullopt;
        is_empty = is_empty || extent == 0;
        if (extent == 0) continue;
        if (__builtin_mul_overflow(reach.num_values, extent, &reach.num_values) ||
            __builtin_mul_overflow(extent - 1, stride, &span) || __builtin_add_overflow(reach.last, span, &reach.last))
            return std::nullopt;
    }
    return is_empty ? Reach{0, 0} : reach;
}

bool is_contiguous(const PickledTensor& tensor)
{
    std::int64_t expected = 1;
    for (std::size_t i = tensor.shape.size(); i-- > 0;) {
        if (tensor.shape[i] == 1) continue;
        if (tensor.strides[i] != expected) return false;
        expected *= tensor.shape[i];
    }
    return true;
}

/// Copies the values in row-major order of their indices.
void copy_strided(const PickledTensor& tensor, const std::byte* begin, std::size_t value_size, std::int64_t num_values,
                  std::byte* out)
{
    std::vector<std::int64_t> index(tensor.shape.size(), 0);
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < num_values; ++i) {
        std::memcpy(out + static_cast<std::size_t>(i) * value_size, begin + static_cast<std::size_t>(at) * value_size,
                    value_size);
        for (std::size_t d = index.size(); d-- > 0;) {
            at += tensor.strides[d];
            if (++index[d] < tensor.shape[d]) break;
            at -= tensor.strides[d] * tensor.shape[d];
            index[d] = 0;
        }
    }
}

}  // namespace

TorchFile::TorchFile(const SharedBytes& file, std::string where) : where_(std::move(where))
{
    if (looks_like_zip(file.bytes))
        read_zip(file);
    else if (file.text().starts_with(kLegacyBegin))
        read_legacy(file);
    else
        fail("is no file of torch.save: it begins neither as a zip archive nor as a PyTorch pickle");
}

void TorchFile::fail(const std::string& what) const
{
    throw IoError("{} {}.", where_, what);
}

void TorchFile::read_zip(const SharedBytes& file)
{
    archive_ = std::make_unique<ZipArchive>(file, where_);
    constexpr std::string_view kPickleName = "/data.pkl";
    for (const auto& name : archive_->names()) {
        if (!name.ends_with(kPickleName) || std::ranges::count(name, '/') != 1) continue;
        if (!folder_.empty()) fail("has two pickles, '" + folder_ + "data.pkl' and '" + name + "'");
        folder_ = name.substr(0, name.size() - kPickleName.size() + 1);
    }
    if (folder_.empty()) fail("is a zip archive without a 'data.pkl', so it is no file of torch.save");
    if (archive_->contains(folder_ + "constants.pkl"))
        fail("is a TorchScript program. Save its state_dict() with torch.save");
    if (archive_->contains(folder_ + "byteorder") && archive_->read(folder_ + "byteorder").text() != "little")
        fail("was not written on a little-endian machine. Save it again on one");
    pickle_ = std::make_unique<Pickle>(archive_->read(folder_ + "data.pkl").bytes, where_);
}

/// Reads five pickles (magic number, protocol, machine, object, keys of the storages), then each storage: its number of
/// values and its bytes.
void TorchFile::read_legacy(const SharedBytes& file)
{
    auto rest = file.bytes.subspan(kLegacyBegin.size());
    const auto next = [&] {
        auto pickle = std::make_unique<Pickle>(rest, where_);
        rest = rest.subspan(pickle->size());
        return pickle;
    };
    const auto protocol = next();
    const auto* version = protocol->root().as<std::int64_t>();
    if (!version || *version != 1001) fail("is of an unknown version of PyTorch's plain format, expected 1001");
    const auto machine = next();
    const auto* is_little = machine->root().find("little_endian");
    if (!is_little || !is_little->as<bool>() || !*is_little->as<bool>())
        fail("was not written on a little-endian machine. Save it again on one");
    pickle_ = next();
    const auto keys = next();
    const auto* list = keys->root().as<PickleValue::Sequence>();
    if (!list) fail("has no list of storages. It is damaged");

    // The value types are in the object: every storage is used by a tensor.
    std::map<std::string, std::size_t> value_sizes;
    for (const PickleValue& value : pickle_->values()) {
        const auto* storage = value.as<PickledStorage>();
        if (!storage) continue;
        if (const auto type = type_of_storage(storage->type)) value_sizes[storage->key] = size_of(*type);
    }
    for (const auto* item : list->items) {
        const auto* key = item->as<std::string>();
        if (!key || !value_sizes.contains(*key)) fail("lists a storage that no tensor of a known type uses");
        std::int64_t count = 0;
        if (rest.size() < sizeof count) fail("ends before its storage '" + *key + "'. It is truncated");
        std::memcpy(&count, rest.data(), sizeof count);
        rest = rest.subspan(sizeof count);
        std::uint64_t size = 0;
        if (count < 0 || __builtin_mul_overflow(static_cast<std::uint64_t>(count), value_sizes[*key], &size) ||
            size > rest.size())
            fail(fmt::format("has {} bytes left for the {} values of its storage '{}'. It is truncated", rest.size(),
                             count, *key));
        if (!storages_.emplace(*key, SharedBytes{rest.first(size), file.owner}).second)
            fail("has two storages '" + *key + "'");
        stored_bytes_ += size;
        rest = rest.subspan(size);
    }
}

SharedBytes TorchFile::storage(const PickledStorage& storage, std::size_t value_size)
{
    if (!storages_.contains(storage.key)) {
        if (!archive_ || !archive_->contains(folder_ + "data/" + storage.key))
            fail("has no storage '" + storage.key + "'. It is damaged");
        const auto bytes = archive_->read(folder_ + "data/" + storage.key);
        stored_bytes_ += bytes.bytes.size();
        storages_.emplace(storage.key, bytes);
    }
    const auto& found = storages_.at(storage.key);
    std::uint64_t size = 0;
    if (storage.num_values < 0 ||
        __builtin_mul_overflow(static_cast<std::uint64_t>(storage.num_values), value_size, &size) ||
        size != found.bytes.size())
        fail(fmt::format("has storage '{}' of {} bytes, expected {} values of {} bytes. It is damaged", storage.key,
                         found.bytes.size(), storage.num_values, value_size));
    return found;
}

NamedArray TorchFile::array(std::string name, const PickledTensor& tensor)
{
    const auto type = type_of_storage(tensor.storage.type);
    if (!type)
        fail("has '" + name + "' as torch." + tensor.storage.type +
             ", which has no counterpart here. Convert it to a real type that is not quantised");
    const auto value_size = size_of(*type);
    const auto reach = reach_of(tensor);
    if (!reach) fail("has '" + name + "' with extents or strides that are negative or overflow");
    const auto content = storage(tensor.storage, value_size);
    std::int64_t end = 0;
    if (tensor.offset < 0 || __builtin_add_overflow(tensor.offset, reach->last, &end) ||
        (reach->num_values > 0 && end >= tensor.storage.num_values))
        fail(fmt::format("has '{}' that reaches beyond the {} values of its storage", name, tensor.storage.num_values));
    if (reach->num_values > tensor.storage.num_values)
        fail(fmt::format("has '{}' of {} values in a storage of {}. Call contiguous() on it before saving", name,
                         reach->num_values, tensor.storage.num_values));

    NamedArray array{std::move(name), *type, tensor.shape, nullptr, nullptr};
    if (reach->num_values == 0) return array;
    const std::byte* begin = content.bytes.data() + static_cast<std::size_t>(tensor.offset) * value_size;
    if (is_contiguous(tensor) && reinterpret_cast<std::uintptr_t>(begin) % value_size == 0) {
        array.data = begin;
        array.owner = content.owner;
        return array;
    }
    const auto num_bytes = static_cast<std::size_t>(reach->num_values) * value_size;
    copied_bytes_ += num_bytes;
    if (copied_bytes_ > kLargestGrowth * stored_bytes_)
        fail(fmt::format("has views of shared storages that take more than {} times what is stored", kLargestGrowth));
    const std::shared_ptr<std::byte[]> copy(new std::byte[num_bytes]);
    if (is_contiguous(tensor))
        std::memcpy(copy.get(), begin, num_bytes);
    else
        copy_strided(tensor, begin, value_size, reach->num_values, copy.get());
    array.data = copy.get();
    array.owner = copy;
    return array;
}

std::vector<std::span<const std::byte>> torch_file_pieces(const NamedArrays& content, ZipLayout& layout)
{
    require_writable(content, "torch_file");
    StateDictPickle pickle;
    for (std::size_t i = 0; i < content.arrays.size(); ++i) {
        const auto& array = content.arrays[i];
        const auto type = std::ranges::find(kStorageTypes, array.type, &std::pair<std::string_view, ArrayType>::second);
        if (type == kStorageTypes.end())
            throw InvalidInput("torch_file: '{}' is {}, which a .pt file cannot hold. Write .safetensors.", array.name,
                               to_string(array.type));
        pickle.add(array.name, {std::string(type->first), std::to_string(i), array.num_values()}, array.shape);
    }
    layout.add("archive/data.pkl", pickle.finish());
    layout.add("archive/.format_version", "1");
    layout.add("archive/.storage_alignment", "64");
    layout.add("archive/byteorder", "little");
    for (std::size_t i = 0; i < content.arrays.size(); ++i)
        layout.add(fmt::format("archive/data/{}", i), {content.arrays[i].bytes()});
    layout.add("archive/version", "3\n");
    return layout.finish();
}

}  // namespace meshard
