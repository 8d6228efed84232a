// IEEE half and bfloat16 as sixteen bits: widening to float, and narrowing by round-to-nearest-even.
//
// Both branches of every case are computed and one is selected, so that compilers vectorise the loops around them.
// Adding in float and narrowing once rounds like an addition in the narrow type itself, because float has more than
// twice as many digits as the narrow types, plus two. A NaN keeps its sign and payload, as in NumPy.
#ifndef KUNGFU_NATIVE_HALF_H_
#define KUNGFU_NATIVE_HALF_H_

#include <cstdint>
#include <cstring>

#include "element.h"

namespace kungfu {

struct Half {
  uint16_t bits;
};

struct Bfloat16 {
  uint16_t bits;
};

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline float widen(Half half) {
  const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half.bits & 0x7fffu) << 13;
  // The exponent of float has a bias of 127, the exponent of half a bias of 15.
  const uint32_t normal = magnitude + (112u << 23);
  // A subnormal has no implicit leading 1: so build a float with a leading 1, and subtract that 1.
  const uint32_t subnormal = bits_of(float_of(magnitude + (113u << 23)) - 0x1p-14f);
  const uint32_t special = magnitude | 0x7f800000u;  // infinity or NaN: all ones in the exponent
  uint32_t bits = magnitude < (1u << 23) ? subnormal : normal;
  bits = magnitude >= (31u << 23) ? special : bits;
  return float_of(sign | bits);
}

inline float widen(Bfloat16 value) { return float_of(static_cast<uint32_t>(value.bits) << 16); }

inline void narrow(float value, Half* half) {
  const uint32_t sign = (bits_of(value) >> 16) & 0x8000u;
  const uint32_t magnitude = bits_of(value) & 0x7fffffffu;
  // Adds just under half of the last kept digit, and one more if that digit is odd: ties round to even.
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
  // The last digit of a float near 0.5 equals the smallest half, so the addition itself rounds.
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  // A quiet NaN with as much of the payload as fits.
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  uint32_t bits = magnitude < (113u << 23) ? subnormal : normal;  // below 2^-14
  bits = magnitude >= (143u << 23) ? 0x7c00u : bits;              // 2^16 and above: infinity
  bits = magnitude > 0x7f800000u ? nan : bits;
  half->bits = static_cast<uint16_t>(sign | bits);
}

inline void narrow(float value, Bfloat16* narrowed) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  narrowed->bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// Calls `use` with an entry of this type, so that `use` is compiled for each type.
template <typename Use>
void for_type(ElementType type, Use use) {
  switch (type) {
    case ElementType::kHalf: return use(Half());
    case ElementType::kBfloat16: return use(Bfloat16());
    case ElementType::kFloat: return use(float());
    case ElementType::kDouble: return use(double());
    case ElementType::kInt32: return use(int32_t());
    case ElementType::kInt64: return use(int64_t());
  }
}

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_HALF_H_
