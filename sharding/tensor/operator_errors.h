// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace meshard {

class MissingShardRule;

/// Called with each MissingShardRule that leaves an operator, to throw an error of another type instead: on the way to
/// Python, LibTorch turns errors of types that it does not know into RuntimeErrors. Applies to the process; null, the
/// default, for none.
using RefusalTranslation = void (*)(const MissingShardRule& error);
void set_refusal_translation(RefusalTranslation translation);

}  // namespace meshard
