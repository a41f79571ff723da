// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/case_body.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace meshard {
namespace {

constexpr std::int64_t kMostBytesOfBodies = std::int64_t{1} << 30;

std::int64_t bytes_of_body(const CaseBody& body)
{
    return static_cast<std::int64_t>(body.vertices.nbytes() + body.triangles.nbytes());
}

}  // namespace

std::shared_ptr<const CaseBody> case_body(const Wall& wall, const CaseFrame& frame)
{
    std::vector<float> places(wall.vertices.size());
    for (std::size_t i = 0; i < places.size(); ++i)
        places[i] = static_cast<float>((wall.vertices[i] - frame.center[i % 3]) / frame.lengths[i % 3]);
    auto body = std::make_shared<CaseBody>();
    body->vertices = at::tensor(places, at::kFloat).view({-1, 3});
    body->triangles =
        at::tensor(std::vector<std::int64_t>(wall.triangles.begin(), wall.triangles.end()), at::kLong).view({-1, 3});
    return body;
}

std::shared_ptr<const CaseBody> CaseBodies::of(const std::string& id,
                                               const std::function<std::shared_ptr<const CaseBody>()>& read)
{
    const auto found = std::ranges::find_if(kept_, [&](const auto& one) { return one.first == id; });
    if (found != kept_.end()) return found->second;
    auto body = read();
    kept_.emplace_back(id, body);
    bytes_ += bytes_of_body(*body);
    while (bytes_ > kMostBytesOfBodies && kept_.size() > 1) {
        bytes_ -= bytes_of_body(*kept_.front().second);
        kept_.pop_front();
    }
    return body;
}

}  // namespace meshard
