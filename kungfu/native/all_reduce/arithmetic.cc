#include "arithmetic.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "half.h"

namespace kungfu {
namespace {

// A tile of the sum stays in the first-level cache while the blocks are added to the tile one after the other.
constexpr int64_t kTileBytes = 4096;

inline float add(float a, float b) { return a + b; }
inline double add(double a, double b) { return a + b; }
// Computed as unsigned numbers, whose overflow wraps around and is not undefined behaviour.
inline int32_t add(int32_t a, int32_t b) { return static_cast<uint32_t>(a) + static_cast<uint32_t>(b); }
inline int64_t add(int64_t a, int64_t b) { return static_cast<uint64_t>(a) + static_cast<uint64_t>(b); }

template <typename Narrow>
inline Narrow add(Narrow a, Narrow b) {
  Narrow sum;
  narrow(widen(a) + widen(b), &sum);
  return sum;
}

inline float scaled(float value, float scale) { return value * scale; }
inline double scaled(double value, double scale) { return value * scale; }

template <typename Narrow>
inline Narrow scaled(Narrow value, float scale) {
  Narrow product;
  narrow(widen(value) * scale, &product);
  return product;
}

template <typename T, typename Scale>
void scale_each(const char* from, char* to, int64_t bytes, Scale scale) {
  const T* source = reinterpret_cast<const T*>(from);
  T* target = reinterpret_cast<T*>(to);
  const int64_t count = bytes / static_cast<int64_t>(sizeof(T));
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) target[i] = scaled(source[i], scale);
}

// The arrays are equal or disjoint, hence ivdep.
template <typename T>
void add_pair(const T* a, const T* b, T* to, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) to[i] = add(a[i], b[i]);
}

template <typename T>
void sum_tile(const char* const* blocks, int size, char* to, int64_t begin, int64_t count) {
  const auto at = [&](int rank) { return reinterpret_cast<const T*>(blocks[rank] + begin); };
  T* target = reinterpret_cast<T*>(to + begin);
  if (size == 2) return add_pair(at(0), at(1), target, count);  // one addition: no partial sums to keep
  // `to` may be a block that is still to be added, so the partial sums are kept in separate memory.
  alignas(64) T tile[kTileBytes / sizeof(T)];
  add_pair(at(0), at(1), tile, count);
  for (int rank = 2; rank < size - 1; ++rank) add_pair<T>(tile, at(rank), tile, count);
  add_pair<T>(tile, at(size - 1), target, count);
}

template <typename T>
void sum_each(const char* const* blocks, int size, char* to, int64_t bytes) {
  for (int64_t begin = 0; begin < bytes; begin += kTileBytes) {
    const int64_t tile_bytes = std::min(kTileBytes, bytes - begin);
    sum_tile<T>(blocks, size, to, begin, tile_bytes / static_cast<int64_t>(sizeof(T)));
  }
}

}  // namespace

void copy_scaled(ElementType type, const char* from, char* to, int64_t bytes, double scale) {
  const bool integer = type == ElementType::kInt32 || type == ElementType::kInt64;
  if (integer || scale == 1.0) {
    // No multiplication: all bits are kept, even the bits of a NaN.
    if (from != to) std::memcpy(to, from, bytes);
  } else if (scale == 0.0) {
    // A peer without samples: its values may be NaN or infinite, and 0 * NaN would be NaN.
    std::memset(to, 0, bytes);
  } else {
    // The narrow types multiply in float and round once.
    for_type(type, [&](auto entry) {
      using T = decltype(entry);
      using Scale = std::conditional_t<std::is_same_v<T, double>, double, float>;
      if constexpr (!std::is_integral_v<T>) scale_each<T>(from, to, bytes, static_cast<Scale>(scale));
    });
  }
}

void sum_blocks(ElementType type, const char* const* blocks, int size, char* to, int64_t bytes) {
  for_type(type, [&](auto entry) { sum_each<decltype(entry)>(blocks, size, to, bytes); });
}

}  // namespace kungfu
