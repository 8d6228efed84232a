#include "digest.h"

#include <cstring>

namespace kungfu {
namespace {

constexpr int kLanes = 4;
constexpr int64_t kTurnBytes = kLanes * 16;

// Numbers without a pattern, all different, else a lane would not tell its two factors apart: the fractions of the square
// roots of the first nine primes.
constexpr uint64_t kKeys[kLanes] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1};
constexpr uint64_t kSeeds[kLanes] = {0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
constexpr uint64_t kEnd = 0xcbbb9d5dc1059ed8;

inline uint64_t word(const char* memory) {
  uint64_t value;
  std::memcpy(&value, memory, sizeof(value));
  return value;
}

inline uint64_t folded(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

struct Lanes {
  uint64_t lane[kLanes] = {kSeeds[0], kSeeds[1], kSeeds[2], kSeeds[3]};

  void turn(const char* memory) {
    for (int i = 0; i < kLanes; ++i) {
      // The lane also goes into the sum, so that a factor of zero cannot wipe out what came before.
      lane[i] = folded(word(memory + 16 * i) ^ lane[i], word(memory + 16 * i + 8) ^ kKeys[i]) + (lane[i] << 1 | 1);
    }
  }
};

}  // namespace

uint64_t digest(const char* memory, int64_t bytes) {
  Lanes lanes;
  int64_t at = 0;
  for (; at + kTurnBytes <= bytes; at += kTurnBytes) lanes.turn(memory + at);
  char rest[kTurnBytes] = {};
  if (bytes > at) std::memcpy(rest, memory + at, bytes - at);
  lanes.turn(rest);
  uint64_t sum = folded(static_cast<uint64_t>(bytes) ^ kSeeds[0], kEnd);
  for (int i = 0; i < kLanes; ++i) sum = folded(sum ^ lanes.lane[i], kKeys[i]) + sum;
  return sum;
}

}  // namespace kungfu
