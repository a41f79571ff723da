// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoints/pickle.h"

#include "partition/error.h"
#include "partition/lists.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <unordered_map>

namespace meshard {
namespace {

// Functions and classes that are accepted, besides the storages.
constexpr std::string_view kOrderedDict = "collections.OrderedDict", kTensor = "torch._utils._rebuild_tensor_v2",
                           kOldTensor = "torch._utils._rebuild_tensor", kParameter = "torch._utils._rebuild_parameter",
                           kSize = "torch.Size";
constexpr std::array kCallables{kOrderedDict, kTensor, kOldTensor, kParameter, kSize};

bool is_storage_name(std::string_view name)
{
    return name.starts_with("torch.") && name.ends_with("Storage") && std::ranges::count(name, '.') == 1;
}

// Opcodes, named as in the format's description.
enum Op : unsigned char {
    kMark = '(',
    kStop = '.',
    kPop = '0',
    kPopMark = '1',
    kBinFloat = 'G',
    kBinInt = 'J',
    kBinInt1 = 'K',
    kBinInt2 = 'M',
    kNone = 'N',
    kBinPersId = 'Q',
    kReduce = 'R',
    kBinString = 'T',
    kShortBinString = 'U',
    kBinUnicode = 'X',
    kAppend = 'a',
    kBuild = 'b',
    kGlobal = 'c',
    kDict = 'd',
    kEmptyDict = '}',
    kAppends = 'e',
    kBinGet = 'h',
    kLongBinGet = 'j',
    kList = 'l',
    kEmptyList = ']',
    kBinPut = 'q',
    kLongBinPut = 'r',
    kSetItem = 's',
    kTuple = 't',
    kEmptyTuple = ')',
    kSetItems = 'u',
    kBinBytes = 'B',
    kShortBinBytes = 'C',
    kProto = 0x80,
    kTuple1 = 0x85,
    kTuple2 = 0x86,
    kTuple3 = 0x87,
    kNewTrue = 0x88,
    kNewFalse = 0x89,
    kLong1 = 0x8a,
    kLong4 = 0x8b,
    kShortBinUnicode = 0x8c,
    kBinUnicode8 = 0x8d,
    kStackGlobal = 0x93,
    kMemoize = 0x94,
    kFrame = 0x95
};

std::string hex(unsigned value)
{
    constexpr std::string_view digits = "0123456789abcdef";
    return {'0', 'x', digits[value >> 4 & 15], digits[value & 15]};
}

/// Makes a name from the file safe for messages: short, and without control characters that affect a terminal.
std::string printable(std::string_view name)
{
    std::string text(name.substr(0, 80));
    std::ranges::replace_if(text, [](unsigned char c) { return c < ' ' || c == 127; }, '?');
    return text.size() < name.size() ? text + "..." : text;
}

}  // namespace

class PickleReader {
public:
    PickleReader(std::span<const std::byte> bytes, const std::string& where, Pickle& pickle)
        : bytes_(bytes), where_(where), pickle_(pickle)
    {
    }

    void read()
    {
        while (!pickle_.root_) step(next<unsigned char>());
        pickle_.size_ = at_;
    }

private:
    using Sequence = PickleValue::Sequence;
    using Dict = PickleValue::Dict;

    [[noreturn]] void fail(const std::string& what) const
    {
        throw IoError("{}: at byte {} of its pickle {}.", where_, at_, what);
    }

    template <class Integer>
    Integer next()
    {
        Integer value;
        std::memcpy(&value, take(sizeof value).data(), sizeof value);
        return value;
    }

    std::string_view take(std::uint64_t size)
    {
        if (size > bytes_.size() - at_) fail("it ends. It is truncated");
        const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + at_, size);
        at_ += size;
        return text;
    }

    std::string_view line()
    {
        const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + at_, bytes_.size() - at_);
        const auto end = rest.find('\n');
        if (end == std::string_view::npos) fail("it ends. It is truncated");
        at_ += end + 1;
        return rest.substr(0, end);
    }

    template <class T>
    void push(T value)
    {
        stack_.push_back(&pickle_.values_.emplace_back(PickleValue{std::move(value)}));
    }

    PickleValue* pop()
    {
        if (stack_.size() <= base()) fail("a value is missing");
        PickleValue* value = stack_.back();
        stack_.pop_back();
        return value;
    }

    PickleValue& top()
    {
        if (stack_.size() <= base()) fail("a value is missing");
        return *stack_.back();
    }

    std::size_t base() const { return marks_.empty() ? 0 : marks_.back(); }

    /// Removes the values above the last mark, and the mark, from the stack; returns the values.
    std::vector<const PickleValue*> pop_to_mark()
    {
        if (marks_.empty()) fail("a mark is missing");
        std::vector<const PickleValue*> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()),
                                              stack_.end());
        stack_.resize(marks_.back());
        marks_.pop_back();
        return items;
    }

    void push_tuple(std::size_t size)
    {
        Sequence tuple{std::vector<const PickleValue*>(size), true};
        while (size-- > 0) tuple.items[size] = pop();
        push(std::move(tuple));
    }

    template <class T>
    const T& expect(const PickleValue* value, const char* what) const
    {
        const T* found = value->as<T>();
        if (!found) fail(std::string(what) + " is expected, and something else is found");
        return *found;
    }

    void set_items(const std::vector<const PickleValue*>& items)
    {
        auto* dict = std::get_if<Dict>(&top().value);
        if (!dict || items.size() % 2 != 0) fail("entries do not belong to a dict");
        for (std::size_t i = 0; i < items.size(); i += 2) dict->items.emplace_back(items[i], items[i + 1]);
    }

    void append(const std::vector<const PickleValue*>& items)
    {
        auto* list = std::get_if<Sequence>(&top().value);
        if (!list || list->is_tuple) fail("entries do not belong to a list");
        list->items.insert(list->items.end(), items.begin(), items.end());
    }

    void push_global(const std::string& name)
    {
        if (!contains(kCallables, name) && !is_storage_name(name))
            fail("it names '" + printable(name) +
                 "', and only tensors, dicts, lists, tuples, numbers and texts are read; nothing was executed. Save "
                 "the state dict alone");
        push(PickledGlobal{name});
    }

    void push_integer(std::string_view digits)
    {
        if (digits.size() > 8) fail(fmt::format("an integer has {} bytes, expected at most 8", digits.size()));
        std::uint64_t value = 0;
        for (std::size_t i = 0; i < digits.size(); ++i)
            value |= static_cast<std::uint64_t>(static_cast<unsigned char>(digits[i])) << 8 * i;
        if (!digits.empty() && digits.size() < 8 && static_cast<unsigned char>(digits.back()) >= 0x80)
            value |= ~std::uint64_t{0} << 8 * digits.size();
        push(static_cast<std::int64_t>(value));
    }

    void push_storage()
    {
        const auto id = expect<Sequence>(pop(), "the tuple of a storage").items;
        if (id.size() < 5 || expect<std::string>(id[0], "the word 'storage'") != "storage")
            fail("a persistent id is no storage");
        const auto& global = expect<PickledGlobal>(id[1], "a type of storage").name;
        if (!is_storage_name(global)) fail("'" + printable(global) + "' is no type of storage");
        if (id.size() > 5 && !id[5]->as<PickleValue::None>())
            fail("a storage is a view of another, which is not supported. Save the file again with a newer PyTorch");
        push(PickledStorage{global.substr(6), expect<std::string>(id[2], "the key of a storage"),
                            expect<std::int64_t>(id[4], "the size of a storage")});
    }

    std::vector<std::int64_t> integers(const PickleValue* value, const char* what)
    {
        std::vector<std::int64_t> numbers;
        const auto& items = expect<Sequence>(value, what).items;
        count_copies(items.size());
        for (const auto* item : items) numbers.push_back(expect<std::int64_t>(item, what));
        return numbers;
    }

    void reduce()
    {
        const auto& arguments = expect<Sequence>(pop(), "a tuple of arguments").items;
        const auto& name = expect<PickledGlobal>(pop(), "a function").name;
        const auto require = [&](std::size_t count) {
            if (arguments.size() < count)
                fail(fmt::format("'{}' has {} arguments, expected {}", name, arguments.size(), count));
        };
        if (name == kOrderedDict) {
            Dict dict;
            if (!arguments.empty()) {  // Python 2 wrote a list of pairs
                const auto& pairs = expect<Sequence>(arguments[0], "a list of pairs").items;
                count_copies(pairs.size());
                for (const auto* item : pairs) {
                    const auto& pair = expect<Sequence>(item, "a pair").items;
                    if (pair.size() != 2) fail("an ordered dict has an entry that is no pair");
                    dict.items.emplace_back(pair[0], pair[1]);
                }
            }
            push(std::move(dict));
        } else if (name == kTensor || name == kOldTensor) {
            require(4);
            PickledTensor tensor{expect<PickledStorage>(arguments[0], "a storage"),
                                 expect<std::int64_t>(arguments[1], "the offset of a tensor"),
                                 integers(arguments[2], "the shape of a tensor"),
                                 integers(arguments[3], "the strides of a tensor")};
            if (tensor.shape.size() != tensor.strides.size())
                fail(fmt::format("a tensor has {} extents and {} strides", tensor.shape.size(), tensor.strides.size()));
            if (const auto* marks = arguments.size() > 6 ? arguments[6]->as<Dict>() : nullptr;
                marks != nullptr && !marks->items.empty())
                fail("a tensor is stored before it was negated or conjugated. Save a clone() of it");
            push(std::move(tensor));
        } else if (name == kParameter) {
            require(1);
            push(expect<PickledTensor>(arguments[0], "a tensor"));
        } else if (name == kSize) {
            require(1);
            const auto& extents = expect<Sequence>(arguments[0], "a shape").items;
            count_copies(extents.size());
            push(Sequence{extents, true});
        } else {
            fail("it calls '" + name + "', which makes no tensor. Save the state dict alone");
        }
    }

    /// Limits copies: since values may be shared, a short pickle could require an unlimited number.
    void count_copies(std::size_t num_items)
    {
        copied_ += num_items;
        if (copied_ > bytes_.size()) fail("it repeats lists beyond its own size. It is damaged");
    }

    void get(std::uint32_t index)
    {
        const auto found = memo_.find(index);
        if (found == memo_.end()) fail(fmt::format("value {} of its memory is used before it was set", index));
        stack_.push_back(found->second);
    }

    void step(unsigned char op)
    {
        switch (op) {
        case kProto:
            if (const int protocol = next<std::uint8_t>(); protocol > 5)
                fail(fmt::format("protocol {} is announced, expected at most 5", protocol));
            return;
        case kFrame:
            next<std::uint64_t>();
            return;
        case kMark:
            marks_.push_back(stack_.size());
            return;
        case kStop:
            pickle_.root_ = pop();
            if (!stack_.empty()) fail("it stops with values left over");
            return;
        case kPop:
            pop();
            return;
        case kPopMark:
            pop_to_mark();
            return;
        case kNone:
            push(PickleValue::None{});
            return;
        case kNewTrue:
            push(true);
            return;
        case kNewFalse:
            push(false);
            return;
        case kBinInt:
            push(static_cast<std::int64_t>(next<std::int32_t>()));
            return;
        case kBinInt1:
            push(static_cast<std::int64_t>(next<std::uint8_t>()));
            return;
        case kBinInt2:
            push(static_cast<std::int64_t>(next<std::uint16_t>()));
            return;
        case kLong1:
            push_integer(take(next<std::uint8_t>()));
            return;
        case kLong4:
            push_integer(take(next<std::uint32_t>()));
            return;
        case kBinFloat:
            push(std::bit_cast<double>(__builtin_bswap64(next<std::uint64_t>())));
            return;
        case kBinUnicode:
        case kBinString:
        case kBinBytes:
            push(std::string(take(next<std::uint32_t>())));
            return;
        case kShortBinUnicode:
        case kShortBinString:
        case kShortBinBytes:
            push(std::string(take(next<std::uint8_t>())));
            return;
        case kBinUnicode8:
            push(std::string(take(next<std::uint64_t>())));
            return;
        case kEmptyList:
            push(Sequence{});
            return;
        case kEmptyTuple:
            push(Sequence{{}, true});
            return;
        case kEmptyDict:
            push(Dict{});
            return;
        case kTuple1:
            push_tuple(1);
            return;
        case kTuple2:
            push_tuple(2);
            return;
        case kTuple3:
            push_tuple(3);
            return;
        case kTuple:
            push(Sequence{pop_to_mark(), true});
            return;
        case kList:
            push(Sequence{pop_to_mark(), false});
            return;
        case kDict: {
            const auto items = pop_to_mark();
            push(Dict{});
            set_items(items);
            return;
        }
        case kAppend:
            append({pop()});
            return;
        case kAppends:
            append(pop_to_mark());
            return;
        case kSetItem: {
            const auto* value = pop();
            const auto* key = pop();
            set_items({key, value});
            return;
        }
        case kSetItems:
            set_items(pop_to_mark());
            return;
        case kBinPut:
            memo_[next<std::uint8_t>()] = &top();
            return;
        case kLongBinPut:
            memo_[next<std::uint32_t>()] = &top();
            return;
        case kMemoize:
            memo_[static_cast<std::uint32_t>(memo_.size())] = &top();
            return;
        case kBinGet:
            get(next<std::uint8_t>());
            return;
        case kLongBinGet:
            get(next<std::uint32_t>());
            return;
        case kGlobal: {
            const std::string module(line());
            push_global(module + "." + std::string(line()));
            return;
        }
        case kStackGlobal: {
            const auto name = expect<std::string>(pop(), "a name");
            push_global(expect<std::string>(pop(), "a name") + "." + name);
            return;
        }
        case kBinPersId:
            push_storage();
            return;
        case kReduce:
            reduce();
            return;
        case kBuild:  // attributes of an ordered dict, such as the versions of a state dict
            pop();
            if (!top().as<Dict>()) fail("attributes are set of something that is no dict");
            return;
        default:
            fail("the opcode " + hex(op) +
                 " is outside of what is read (tensors, dicts, lists, tuples, numbers, texts)");
        }
    }

    std::span<const std::byte> bytes_;
    const std::string& where_;
    Pickle& pickle_;
    std::size_t at_ = 0;
    std::size_t copied_ = 0;
    std::vector<PickleValue*> stack_;
    std::vector<std::size_t> marks_;
    std::unordered_map<std::uint32_t, PickleValue*> memo_;
};

const PickleValue* PickleValue::find(std::string_view key) const
{
    const auto* dict = as<Dict>();
    if (!dict) return nullptr;
    for (const auto& [name, item] : dict->items) {
        if (const auto* text = name->as<std::string>(); text && *text == key) return item;
    }
    return nullptr;
}

Pickle::Pickle(std::span<const std::byte> bytes, const std::string& where)
{
    PickleReader(bytes, where, *this).read();
}

StateDictPickle::StateDictPickle()
{
    bytes_ = "\x80\x02"
             "ccollections\nOrderedDict\n)R(";
}

void StateDictPickle::put_text(std::string_view text)
{
    const auto size = static_cast<std::uint32_t>(text.size());
    bytes_ += static_cast<char>(kBinUnicode);
    bytes_.append(reinterpret_cast<const char*>(&size), sizeof size);
    bytes_ += text;
}

void StateDictPickle::put_integer(std::int64_t value)
{
    if (value >= INT32_MIN && value <= INT32_MAX) {
        const auto narrow = static_cast<std::int32_t>(value);
        bytes_ += static_cast<char>(kBinInt);
        bytes_.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
    } else {
        bytes_ += static_cast<char>(kLong1);
        bytes_ += '\x08';
        bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
}

void StateDictPickle::add(std::string_view name, const PickledStorage& storage, std::span<const std::int64_t> shape)
{
    put_text(name);
    bytes_ += "ctorch._utils\n_rebuild_tensor_v2\n((";
    put_text("storage");
    bytes_ += "ctorch\n" + storage.type + "\n";
    put_text(storage.key);
    put_text("cpu");
    put_integer(storage.num_values);
    bytes_ += "tQ";
    put_integer(0);
    bytes_ += '(';
    for (const auto extent : shape) put_integer(extent);
    bytes_ += "t(";
    std::vector<std::int64_t> strides(shape.size(), 1);
    for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<std::int64_t>(1, shape[i]);
    for (const auto stride : strides) put_integer(stride);
    bytes_ += "t\x89"
              "ccollections\nOrderedDict\n)RtR";
}

std::string StateDictPickle::finish()
{
    bytes_ += "u.";
    return std::move(bytes_);
}

}  // namespace meshard
