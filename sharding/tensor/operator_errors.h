// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace meshard {

class MissingShardRule;

/// Called with each MissingShardRule that leaves an operator, to throw an error of another type in its place: between an operator and Python stands LibTorch,
/// which makes RuntimeErrors of types that it does not know. For the whole process; null, as at the start, for none.
using RefusalTranslation = void (*)(const MissingShardRule& error);
void set_refusal_translation(RefusalTranslation translation);

}  // namespace meshard
