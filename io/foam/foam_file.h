// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/mapped_file.h"
#include "partition/csr.h"
#include "partition/mesh/data_array.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace meshard {

/// One entry of an OpenFOAM dictionary: `key words;`, `key List<scalar> 3(1 2 3);` or `key { entries }`.
struct FoamEntry {
    std::string key;
    bool is_pattern = false;  ///< the key was quoted: a regular expression
    /// Words of the value, without its lists of numbers; brackets are words of their own.
    std::vector<std::string> words;
    std::optional<DataArray> list;  ///< a list of numbers in the value
    bool is_dictionary = false;
    std::vector<FoamEntry> entries;  ///< entries of a dictionary

    const FoamEntry* find(std::string_view name) const;  ///< the last one with that key; null if absent
    std::string word(std::string_view name) const;       ///< the first word of that entry, empty if absent
};

/// A file of OpenFOAM, ascii or binary, plain or `.gz`; labels and scalars of 32 or 64 bits as given in its header.
///
/// Everything is checked before it is used; a list longer than the rest of the file is refused before memory is
/// allocated.
class FoamFile {
public:
    /// `path` without `.gz`; the compressed file is taken if there is no plain one.
    /// @throws IoError if it is missing or has no header (`FoamFile { ... }`).
    explicit FoamFile(const std::filesystem::path& path);

    /// Returns whether there is such a file, plain or compressed.
    static bool exists(const std::filesystem::path& path);

    /// Opens the file, or returns nothing if it has no header.
    static std::optional<FoamFile> open_if_foam(const std::filesystem::path& path);

    const std::string& class_name() const { return class_; }
    const std::string& note() const { return note_; }
    const std::string& where() const { return where_; }
    ScalarType scalar_type() const;  ///< of lists of numbers, labels excepted

    DataArray read_vectors();                     ///< `N((x y z) ...)`, (N, 3), Float64 or what a binary file has
    std::vector<std::int32_t> read_labels();      ///< `N(i ...)` or `N{i}`. @throws IoError beyond 32 bits
    Csr read_faces();                             ///< `N(4(0 1 2 3) ...)`, or two lists in a `faceCompactList`
    std::vector<FoamEntry> read_named_entries();  ///< `N(name { ... } ...)`, as in `boundary`

    /// Parses the rest of the file as entries. `#include "file"` is followed, `$name` replaced by the nearest entry of
    /// that name: in its dictionary, else in those around it. `most_rows` limits lists of one repeated value
    /// (`1000{0}`).
    FoamEntry read_dictionary(std::int64_t most_rows);

    [[noreturn]] void fail(const std::string& what) const;

private:
    static constexpr int max_depth = 32;

    FoamFile(const std::filesystem::path& path, bool with_header);
    void load(const std::filesystem::path& path);
    void read_header();

    void skip_blanks();
    bool at_end();
    char peek();                   // the next character that is not blank, 0 at the end
    std::string_view next_word();  // word, "string" (with its quotes), or one of ( ) { } [ ] ;
    void expect(char c);
    template <class T>
    T next_number();
    std::int64_t next_count(std::size_t bytes_per_row);

    /// A dictionary that is being read, and the one around it.
    struct Scope {
        FoamEntry& dictionary;
        const Scope* outer = nullptr;

        mutable std::unordered_map<std::string, std::size_t> dictionaries = {};  // places of those among its entries

        const FoamEntry* referenced(std::string_view word) const;
        void add(FoamEntry entry) const;
    };

    FoamEntry read_entry(const Scope& scope, int depth);
    void read_value(FoamEntry& entry, const Scope& scope);
    std::filesystem::path in_case(const std::string& name) const;
    void read_entries(const Scope& into, int depth, bool until_brace);
    std::optional<DataArray> read_typed_list(std::string_view type, std::vector<std::string>& words);
    DataArray read_rows(std::int64_t num_rows, int num_components, bool labels, bool parenthesised);
    const std::byte* take_raw(std::size_t size);

    std::filesystem::path path_;
    std::string where_;
    std::shared_ptr<const MappedFile> file_;
    std::shared_ptr<const std::string> inflated_;
    std::string_view text_;
    std::size_t at_ = 0;
    std::string class_, note_;
    bool binary_ = false;
    std::size_t label_size_ = 4, scalar_size_ = 8;
    std::int64_t most_rows_ = std::int64_t{1} << 26;  // limit for a list of one repeated value
    int include_depth_ = 0;
};

/// Components of a primitive type of OpenFOAM's (`scalar` 1, `vector` 3, `symmTensor` 6, ...), 0 for others.
int foam_components(std::string_view type);

}  // namespace meshard
