// A fast checksum of a variable's bytes.
//
// Four lanes each fold 16 bytes a turn into 64 bits by one wide multiplication; the lanes, the rest and the length are
// folded at the end. It runs at the speed of memory with plain instructions, gives the same number in every process on
// machines of one byte order, and depends on the order of the bytes. It is no defence against somebody who looks for
// two states with the same checksum: two that differ by accident have it with probability 2^-64.
#ifndef KUNGFU_NATIVE_STATE_DIGEST_H_
#define KUNGFU_NATIVE_STATE_DIGEST_H_

#include <cstdint>

namespace kungfu {

uint64_t digest(const char* memory, int64_t bytes);

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_STATE_DIGEST_H_
