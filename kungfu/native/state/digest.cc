// A fast checksum of a variable's bytes.
//
// Each block of a megabyte is folded separately, so that several threads can share one large variable: each of four
// lanes folds 16 bytes per iteration by one wide multiplication, and the lanes, the rest and the length are folded at
// the end. The checksum of a variable folds the checksums of its blocks in order. It is computed at the speed of memory
// with plain instructions, is the same in every process on machines of one byte order, and depends on the order of the
// bytes. It gives no protection against an attacker who searches for two states with the same checksum; two states that
// differ by accident have the same checksum with probability 2^-64.

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "extents.h"

namespace kungfu {
namespace {

constexpr int64_t kDigestBlockBytes = 1 << 20;

// A multiplication takes several cycles, but the processor can start one in each cycle: so several chains run in
// parallel.
constexpr int kLanes = 4;
constexpr int64_t kTurnBytes = kLanes * 16;
// A page: the processor does not prefetch beyond the end of a page by itself, and would take twice as long.
constexpr int64_t kAheadBytes = 4096;
constexpr int64_t kBytesWorthAThread = 8 << 20;  // half a millisecond
constexpr int64_t kMostThreads = 4;

// Numbers without a pattern: the fractional parts of the square roots of the first nine primes. They are all different,
// since otherwise a lane could not distinguish its two factors.
constexpr uint64_t kKeys[kLanes] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1};
constexpr uint64_t kSeeds[kLanes] = {0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
constexpr uint64_t kEnd = 0xcbbb9d5dc1059ed8;

inline uint64_t word(const char* memory) {
  uint64_t value;
  std::memcpy(&value, memory, sizeof(value));
  return value;
}

// Combines the two halves of the product: every bit of either factor affects many bits of the result.
inline uint64_t folded(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

struct Lanes {
  uint64_t lane[kLanes] = {kSeeds[0], kSeeds[1], kSeeds[2], kSeeds[3]};

  void turn(const char* memory) {
    for (int i = 0; i < kLanes; ++i) {
      // The lane is also added, so that a factor of zero cannot erase the earlier bytes.
      lane[i] = folded(word(memory + 16 * i) ^ lane[i], word(memory + 16 * i + 8) ^ kKeys[i]) + (lane[i] << 1 | 1);
    }
  }
};

uint64_t block_digest(const char* memory, int64_t bytes) {
  Lanes lanes;
  int64_t at = 0;
  for (; at + kTurnBytes <= bytes; at += kTurnBytes) {
    __builtin_prefetch(memory + at + kAheadBytes);  // may lie beyond the end: a prefetch does not fault
    lanes.turn(memory + at);
  }
  // The last bytes, less than an iteration, padded with zeros; the length, folded below, reveals how many are padding.
  char rest[kTurnBytes] = {};
  if (bytes > at) std::memcpy(rest, memory + at, bytes - at);
  lanes.turn(rest);
  uint64_t sum = folded(static_cast<uint64_t>(bytes) ^ kSeeds[0], kEnd);
  for (int i = 0; i < kLanes; ++i) sum = folded(sum ^ lanes.lane[i], kKeys[i]) + sum;
  return sum;
}

// A run of bytes that one thread folds at a time; every variable has at least one run, even an empty variable.
struct Block {
  int64_t variable;
  const char* memory;
  int64_t bytes;
};

std::vector<Block> blocks_of(const Extent* variables, int64_t count) {
  std::vector<Block> blocks;
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = 0;
    do {
      blocks.push_back({i, variables[i].data() + at, std::min(kDigestBlockBytes, variables[i].bytes - at)});
      at += kDigestBlockBytes;
    } while (at < variables[i].bytes);
  }
  return blocks;
}

int threads_for(int64_t bytes) {
  cpu_set_t allowed;
  const int64_t cores = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  return static_cast<int>(std::clamp<int64_t>(bytes / kBytesWorthAThread, 1, std::min<int64_t>(cores, kMostThreads)));
}

}  // namespace

// The checksum of each of `count` variables, by as many threads as there are cores, at most four.
extern "C" void kungfu_digest(const Extent* variables, int64_t count, uint64_t* digests) {
  const std::vector<Block> blocks = blocks_of(variables, count);
  std::vector<uint64_t> folds(blocks.size());
  std::atomic<size_t> next{0};
  // Each thread takes the next remaining block; the result does not depend on which thread takes a block.
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < blocks.size();) folds[i] = block_digest(blocks[i].memory, blocks[i].bytes);
  };
  int64_t bytes = 0;
  for (const Block& block : blocks) bytes += block.bytes;
  std::vector<std::thread> others;
  for (int i = 1; i < threads_for(bytes); ++i) others.emplace_back(work);
  work();  // this thread is one of them
  for (std::thread& other : others) other.join();
  // In the order of the blocks, so that exchanging two blocks changes the checksum.
  std::fill(digests, digests + count, 0);
  for (size_t i = 0; i < blocks.size(); ++i) {
    uint64_t& sum = digests[blocks[i].variable];
    sum = folded(sum ^ folds[i], kEnd) + (sum << 1 | 1);
  }
}

}  // namespace kungfu
