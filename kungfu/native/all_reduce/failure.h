// The reason why an all-reduce ended without sums: data for decisions, and a text for people.
#ifndef KUNGFU_NATIVE_FAILURE_H_
#define KUNGFU_NATIVE_FAILURE_H_

#include <atomic>
#include <optional>
#include <string>
#include <vector>

namespace kungfu {

// The numbers are part of the C interface: see `_FailureKind` in runtime/attachment/local.py.
enum class FailureKind { kPeerGone = 1, kLate = 2, kPeersDiffer = 3, kClosed = 4 };

struct Failure {
  FailureKind kind;
  std::string text;
  std::vector<int> ranks = {};  // the peers at fault; empty if there are none, or none is known
  double waited_s = 0.0;        // kLate: how long the message waited for these peers
};

// Empty without a failure.
using MaybeFailure = std::optional<Failure>;

// Set only by a test, which shows that no decision depends on a text.
inline std::atomic<bool> texts_are_meaningless{false};

// A text that the library is about to return.
inline std::string for_people(const std::string& text) {
  if (text.empty() || !texts_are_meaningless) return text;
  return "otter peers differ: waited for peer rank=0 (peer 0), secret";  // misleading: it blames rank 0
}

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_FAILURE_H_
