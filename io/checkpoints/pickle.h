// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace meshard {

/// The storage of a pickled tensor: its key in the file, and its size in values of its type.
struct PickledStorage {
    std::string type;  ///< PyTorch's name, e.g. `FloatStorage`
    std::string key;
    std::int64_t num_values = 0;
};

/// A tensor as a view of a storage. Not checked, except that offset, shape and strides are integers.
struct PickledTensor {
    PickledStorage storage;
    std::int64_t offset = 0;  ///< in values
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;  ///< in values, as many as `shape`
};

/// Name of a function or class in the pickle. It is never called.
struct PickledGlobal {
    std::string name;  ///< e.g. `torch._utils._rebuild_tensor_v2`
};

/// One value of a pickle. Values may be shared and may contain themselves.
struct PickleValue {
    struct None {};
    struct Sequence {
        std::vector<const PickleValue*> items;
        bool is_tuple = false;
    };
    struct Dict {
        std::vector<std::pair<const PickleValue*, const PickleValue*>> items;  ///< in the order of insertion
    };
    std::variant<None, bool, std::int64_t, double, std::string, Sequence, Dict, PickledGlobal, PickledStorage,
                 PickledTensor>
        value;

    template <class T>
    const T* as() const
    {
        return std::get_if<T>(&value);
    }

    /// The value under a text key of a dict; null if there is none, or this is no dict.
    const PickleValue* find(std::string_view key) const;
};

/// Reads the part of Python's pickle format (protocols 2 to 5) that holds weights: tensors, dicts, ordered dicts,
/// lists, tuples, numbers, texts. Nothing is ever executed: names of functions and classes other than those that make a
/// tensor are refused.
class Pickle {
public:
    /// @param where   begins the message of an error, e.g. "read_checkpoint: model.pt"
    /// @throws IoError naming the global or the byte that is outside of the format or of the subset.
    Pickle(std::span<const std::byte> bytes, const std::string& where);

    const PickleValue& root() const { return *root_; }
    /// All values, in any order.
    const std::deque<PickleValue>& values() const { return values_; }
    std::size_t size() const { return size_; }  ///< bytes up to the end of the pickle; more may follow

private:
    friend class PickleReader;
    std::deque<PickleValue> values_;
    const PickleValue* root_ = nullptr;
    std::size_t size_ = 0;
};

/// Writes a state dict as PyTorch pickles it: an ordered dict of tensors, each of which is the whole of a storage, in
/// protocol 2.
class StateDictPickle {
public:
    StateDictPickle();

    /// Adds a contiguous tensor that begins at the beginning of its storage.
    void add(std::string_view name, const PickledStorage& storage, std::span<const std::int64_t> shape);
    std::string finish();  ///< must be called once, last

private:
    void put_text(std::string_view text);
    void put_integer(std::int64_t value);

    std::string bytes_;
};

}  // namespace meshard
