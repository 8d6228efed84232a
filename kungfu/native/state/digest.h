// A fast checksum of a variable's bytes.
//
// Each block of a megabyte is folded by itself, so that several threads can share one large variable: four lanes each
// take 16 bytes per turn by one wide multiplication, and the lanes, the rest and the length are folded at the end. The
// variable's checksum folds those of its blocks, in their order. It runs at the speed of memory with plain
// instructions, gives the same number in every process on machines of one byte order, and depends on the order of the
// bytes. It is no defence against an attacker who searches for two states with the same checksum; two that differ by
// accident have it with probability 2^-64.
#ifndef KUNGFU_NATIVE_STATE_DIGEST_H_
#define KUNGFU_NATIVE_STATE_DIGEST_H_

#include <cstdint>

#include "extents.h"

namespace kungfu {

constexpr int64_t kDigestBlockBytes = 1 << 20;

// The checksum of each of `count` variables, by as many threads as there are cores, at most four.
void digest(const Extent* variables, int64_t count, uint64_t* digests);

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_STATE_DIGEST_H_
