// SPDX-License-Identifier: Apache-2.0
#include "sharding/messages/agreement.h"

#include <algorithm>
#include <string_view>
#include <unistd.h>

namespace meshard {

namespace {

Facts unpack(const std::string& text)
{
    Facts facts;
    for (std::size_t at = 0; at < text.size();) {
        const auto middle = text.find('\0', at), end = text.find('\0', middle + 1);
        facts.emplace_back(text.substr(at, middle - at), text.substr(middle + 1, end - middle - 1));
        at = end + 1;
    }
    return facts;
}

const std::string* find(const Facts& facts, const std::string& key)
{
    const auto found = std::ranges::find(facts, key, &Facts::value_type::first);
    return found == facts.end() ? nullptr : &found->second;
}

std::string text_of(const std::vector<std::size_t>& ranks)
{
    constexpr std::size_t kShown = 8;
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < std::min(ranks.size(), kShown); ++i)
        text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
    return text + (ranks.size() > kShown ? ", ..." : "");
}

std::string first_difference(std::span<const std::string> packed)
{
    std::vector<Facts> facts;
    for (const auto& text : packed) facts.push_back(unpack(text));
    for (const auto& of_rank : facts) {
        for (const auto& [key, ignored] : of_rank) {
            // Each value with the ranks that have it.
            std::vector<std::pair<std::string, std::vector<std::size_t>>> values;
            for (std::size_t r = 0; r < facts.size(); ++r) {
                if (facts[r].empty()) continue;
                const auto* value = find(facts[r], key);
                const auto text = value ? "'" + *value + "'" : "not set";
                auto same = std::ranges::find(values, text, &decltype(values)::value_type::first);
                if (same == values.end()) same = values.insert(same, {text, {}});
                same->second.push_back(r);
            }
            if (values.size() < 2) continue;
            std::string sentence = key + " is ";
            for (std::size_t i = 0; i < values.size(); ++i) {
                sentence += (i == 0                  ? ""
                             : i + 1 < values.size() ? ", "
                                                     : " and ") +
                            values[i].first + " on " + text_of(values[i].second);
            }
            return sentence;
        }
    }
    return "what differs is not known, since the other ranks have ended";
}

}  // namespace

RanksDisagree::RanksDisagree(std::span<const std::string> packed)
    : Error("the ranks were started differently: " + first_difference(packed) +
            ". Start all ranks with the same command, settings, environment and files.")
{
}

std::string pack(const Facts& facts)
{
    std::string text;
    for (const auto& [key, value] : facts) text.append(key).append(1, '\0').append(value).append(1, '\0');
    return text;
}

std::uint64_t hash_of(const Facts& facts)
{
    auto sorted = facts;  // the same options may come in another order
    std::ranges::sort(sorted);
    std::uint64_t hash = 14695981039346656037u;  // FNV-1a
    for (const char c : pack(sorted)) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
    return hash;
}

Facts own_environment()
{
    Facts facts;
    for (char** entry = environ; *entry; ++entry) {
        const std::string_view text = *entry;
        const auto equals = text.find('=');
        if (text.starts_with("MESHARD_") && equals != std::string_view::npos)
            facts.emplace_back(text.substr(0, equals), text.substr(equals + 1));
    }
    std::ranges::sort(facts);
    return facts;
}

void check_agreement(RankMessages& messages, const Facts& facts)
{
    const auto hashes = gather_everywhere(messages, std::vector<std::uint64_t>{hash_of(facts)});
    if (std::ranges::adjacent_find(hashes, std::not_equal_to<>()) == hashes.end()) return;
    const auto own = pack(facts);
    std::vector<std::string> packed;
    for (const auto& text :
         exchange(messages, std::vector<std::vector<char>>(messages.size(), {own.begin(), own.end()})))
        packed.emplace_back(text.begin(), text.end());
    throw RanksDisagree(packed);
}

}  // namespace meshard
