#include "sum_of_squares.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "arithmetic.h"
#include "half.h"

namespace kungfu {
namespace {

// What is done with an entry, apart from squaring.
enum class Copying { kNone, kCopied, kScaled };

inline float as_float(float value) { return value; }
inline float as_float(double value) { return static_cast<float>(value); }
inline float as_float(int32_t value) { return static_cast<float>(value); }
inline float as_float(int64_t value) { return static_cast<float>(value); }
inline float as_float(Half value) { return widen(value); }
inline float as_float(Bfloat16 value) { return widen(value); }

inline double square(double value) { return value * value; }

// The lanes of a block, in halves.
double sum_of(const double* lanes) {
  double sums[kLanes];
  std::copy_n(lanes, kLanes, sums);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

// ---- whole rows: one entry for each lane ---------------------------------------------------------------------------

template <typename T>
void add_rows(const T* from, int64_t rows, double* lanes) {
  double sums[kLanes];
  std::memcpy(sums, lanes, sizeof(sums));
  for (int64_t row = 0; row < rows; ++row, from += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += square(as_float(from[lane]));
  }
  std::memcpy(lanes, sums, sizeof(sums));
}

// The compiler translates these to the instructions of the target.
typedef float Floats __attribute__((vector_size(16), aligned(4), may_alias));
typedef double Doubles __attribute__((vector_size(32), aligned(8), may_alias));
constexpr int kFloats = 4;

template <Copying copying>
void float_rows(const float* from, float* to, int64_t rows, float scale, double* lanes) {
  Doubles sums[kLanes / kFloats];
  std::memcpy(sums, lanes, sizeof(sums));
  for (int64_t row = 0; row < rows; ++row, from += kLanes, to += kLanes) {
    for (int i = 0; i < kLanes / kFloats; ++i) {
      const Floats entries = *reinterpret_cast<const Floats*>(from + kFloats * i);
      const Doubles wide = __builtin_convertvector(entries, Doubles);
      sums[i] += wide * wide;
      if (copying == Copying::kCopied) *reinterpret_cast<Floats*>(to + kFloats * i) = entries;
      if (copying == Copying::kScaled) *reinterpret_cast<Floats*>(to + kFloats * i) = entries * scale;
    }
  }
  std::memcpy(lanes, sums, sizeof(sums));
}

// The sum of a whole block.
template <Copying copying>
double float_block(const float* from, float* to, float scale) {
  double lanes[kLanes] = {};
  float_rows<copying>(from, to, kSquaresBlock / kLanes, scale, lanes);
  return sum_of(lanes);
}

#ifdef __x86_64__
// The same with registers of 256 bits and fused additions, which not every x86-64 processor has: a pass over memory
// then costs little more than the copy alone. Written by hand, since the compiler widens four floats in two halves.
template <Copying copying>
__attribute__((target("avx2,fma"))) double float_block_avx2(const float* from, float* to, float scale) {
  const __m256 factor = _mm256_set1_ps(scale);
  __m256d sums[4];
  for (__m256d& one : sums) one = _mm256_setzero_pd();
  for (int64_t row = 0; row < kSquaresBlock / kLanes; ++row, from += kLanes, to += kLanes) {
    // A whole row is read before any part is written, since `to` may be `from`.
    const __m256 first = _mm256_loadu_ps(from), second = _mm256_loadu_ps(from + 8);
    for (int i = 0; i < 4; ++i) {
      const __m256d wide = _mm256_cvtps_pd(_mm_loadu_ps(from + 4 * i));
      sums[i] = _mm256_fmadd_pd(wide, wide, sums[i]);
    }
    if (copying == Copying::kNone) continue;
    const bool scaled = copying == Copying::kScaled;
    _mm256_storeu_ps(to, scaled ? _mm256_mul_ps(first, factor) : first);
    _mm256_storeu_ps(to + 8, scaled ? _mm256_mul_ps(second, factor) : second);
  }
  // In halves, as sum_of does.
  const __m256d four = _mm256_add_pd(_mm256_add_pd(sums[0], sums[2]), _mm256_add_pd(sums[1], sums[3]));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

bool has_avx2() {
  static const bool found = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return found;
}

template <Copying copying>
constexpr auto wide_float_block = float_block_avx2<copying>;
#else
bool has_avx2() { return false; }

template <Copying copying>
constexpr auto wide_float_block = float_block<copying>;
#endif

std::atomic<bool> use_avx2{true};

template <Copying copying>
auto float_block_of() {
  return squares_use_avx2() ? wide_float_block<copying> : float_block<copying>;
}

template <Copying copying>
void add_floats(const float* from, float* to, int64_t count, float scale, int lane, double* lanes) {
  const auto one_by_one = [&](int64_t entries, int first_lane) {
    for (int64_t i = 0; i < entries; ++i) {
      const float entry = *from++;
      lanes[first_lane + i] += square(entry);
      if (copying != Copying::kNone) *to++ = copying == Copying::kScaled ? entry * scale : entry;
    }
  };
  // If a piece begins within a row, entries are added one by one up to the row's end.
  const int64_t head = lane == 0 ? 0 : std::min<int64_t>(count, kLanes - lane);
  one_by_one(head, lane);
  const int64_t rows = (count - head) / kLanes;
  float_rows<copying>(from, to, rows, scale, lanes);
  from += rows * kLanes;
  if (copying != Copying::kNone) to += rows * kLanes;
  // The last row of a piece may be short.
  one_by_one((count - head) % kLanes, 0);
}

template <typename T>
void add_narrow_or_wide(const char* bytes, int64_t count, int lane, double* lanes) {
  const T* from = reinterpret_cast<const T*>(bytes);
  for (; lane != 0 && count > 0; lane = (lane + 1) % kLanes, --count) lanes[lane] += square(as_float(*from++));
  add_rows(from, count / kLanes, lanes);
  from += count / kLanes * kLanes;
  for (int64_t i = 0; i < count % kLanes; ++i) lanes[i] += square(as_float(from[i]));
}

// Adds `count` entries, of which the first belongs to `lane`.
void add_entries(ElementType type, const char* from, int64_t count, int lane, double* lanes) {
  if (type == ElementType::kFloat) {
    return add_floats<Copying::kNone>(reinterpret_cast<const float*>(from), nullptr, count, 1.0f, lane, lanes);
  }
  for_type(type, [&](auto entry) { add_narrow_or_wide<decltype(entry)>(from, count, lane, lanes); });
}

// Like add_entries, for less than a block; also copies the entries, scaled.
void copy_entries(ElementType type, const char* from, char* to, int64_t count, double scale, int lane, double* lanes) {
  if (type == ElementType::kFloat) {
    const float* const source = reinterpret_cast<const float*>(from);
    float* const target = reinterpret_cast<float*>(to);
    const auto copy = scale == 1.0 ? add_floats<Copying::kCopied> : add_floats<Copying::kScaled>;
    return copy(source, target, count, static_cast<float>(scale), lane, lanes);
  }
  // At most one block: the summed entries are still in the first-level cache.
  add_entries(type, from, count, lane, lanes);
  copy_scaled(type, from, to, count * element_bytes(type), scale);
}

// A whole block, copied and scaled.
double copy_block(ElementType type, const char* from, char* to, double scale) {
  if (type == ElementType::kFloat) {
    const auto copy = scale == 1.0 ? float_block_of<Copying::kCopied>() : float_block_of<Copying::kScaled>();
    return copy(reinterpret_cast<const float*>(from), reinterpret_cast<float*>(to), static_cast<float>(scale));
  }
  // The summed entries are still in the first-level cache.
  const double sum = sum_of_block(type, from, kSquaresBlock);
  copy_scaled(type, from, to, kSquaresBlock * element_bytes(type), scale);
  return sum;
}

}  // namespace

void SumOfBlocks::add(double block) {
  const double total = total_ + block, added = total - total_;
  rounded_off_ += (total_ - (total - added)) + (block - added);
  total_ = total;
}

double SumOfBlocks::sum() const {
  const double sum = total_ + rounded_off_;
  return std::isfinite(sum) ? sum : total_;  // with infinities, the rounding error is NaN
}

template <typename Whole, typename Piece>
void SumOfSquares::take(int64_t count, Whole whole, Piece piece) {
  for (int64_t begin = 0; begin < count;) {
    const int64_t entries = std::min(count - begin, kSquaresBlock - in_block_);
    if (entries == kSquaresBlock) {
      blocks_.add(whole(begin));
    } else {
      // The block began in an earlier piece, or ends in a later piece.
      piece(begin, entries, static_cast<int>(in_block_ % kLanes));
      in_block_ += entries;
      if (in_block_ == kSquaresBlock) close_block();
    }
    begin += entries;
  }
}

void SumOfSquares::add(ElementType type, const char* from, int64_t count) {
  const auto at = [&](int64_t begin) { return from + begin * element_bytes(type); };
  take(
      count, [&](int64_t begin) { return sum_of_block(type, at(begin), kSquaresBlock); },
      [&](int64_t begin, int64_t entries, int lane) { add_entries(type, at(begin), entries, lane, lanes_); });
}

void SumOfSquares::add_and_copy(ElementType type, const char* from, char* to, int64_t count, double scale) {
  take(
      count,
      [&](int64_t begin) {
        const int64_t at = begin * element_bytes(type);
        return copy_block(type, from + at, to + at, scale);
      },
      [&](int64_t begin, int64_t entries, int lane) {
        const int64_t at = begin * element_bytes(type);
        copy_entries(type, from + at, to + at, entries, scale, lane, lanes_);
      });
}

double SumOfSquares::sum() const {
  SumOfBlocks blocks = blocks_;
  if (in_block_ > 0) blocks.add(sum_of(lanes_));
  return blocks.sum();
}

void SumOfSquares::close_block() {
  blocks_.add(sum_of(lanes_));
  std::fill_n(lanes_, kLanes, 0.0);
  in_block_ = 0;
}

double sum_of_block(ElementType type, const char* from, int64_t count) {
  if (type == ElementType::kFloat && count == kSquaresBlock) {
    return float_block_of<Copying::kNone>()(reinterpret_cast<const float*>(from), nullptr, 1.0f);
  }
  double lanes[kLanes] = {};
  add_entries(type, from, count, 0, lanes);
  return sum_of(lanes);
}

bool squares_use_avx2() { return use_avx2.load(std::memory_order_relaxed) && has_avx2(); }

void let_squares_use_avx2(bool allowed) { use_avx2.store(allowed); }

}  // namespace kungfu
