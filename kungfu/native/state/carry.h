// A part of a state on its way from one process to another of the same machine.
//
// Both map one small ring of blocks. The giver copies a block out of its variables and sends a byte over the socket; the
// taker copies it into its own and sends a byte back, which frees the block. So each byte is copied twice, the second
// time out of the cache, and no more than the ring is ever held beside the two states. A socket that ends tells that the
// other side is gone.
#ifndef KUNGFU_NATIVE_STATE_CARRY_H_
#define KUNGFU_NATIVE_STATE_CARRY_H_

#include <cstdint>

#include "extents.h"

namespace kungfu {

constexpr int64_t kCarryBlockBytes = 1 << 20;
constexpr int64_t kCarryBlocks = 4;

// What became of a passage; Python knows these numbers.
enum class Carried { kWhole = 0, kHungUp = 1, kLate = 2, kUnmapped = 3 };

// The bytes from `start` to `stop` of the state.
struct Part {
  int64_t start;
  int64_t stop;
};

// What the two sides share; both descriptors stay the caller's. No wait for the other side takes longer than `wait_s`.
struct Passage {
  int ring_fd;
  int socket;
  double wait_s;
};

// `done` is the number of bytes that the taker is known to have.
Carried give(const Extents& state, const Part& part, const Passage& passage, int64_t* done);

// `done` is the number of bytes that came.
Carried take(const Extents& state, const Part& part, const Passage& passage, int64_t* done);

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_STATE_CARRY_H_
