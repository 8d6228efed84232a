// Why an all-reduce ended without sums.
#ifndef KUNGFU_NATIVE_FAILURE_H_
#define KUNGFU_NATIVE_FAILURE_H_

#include <optional>
#include <string>

namespace kungfu {

enum class FailureKind { kPeerGone = 1, kLate = 2, kPeersDiffer = 3, kClosed = 4 };

struct Failure {
  FailureKind kind;
  std::string text;
};

// Empty when all went well.
using MaybeFailure = std::optional<Failure>;

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_FAILURE_H_
