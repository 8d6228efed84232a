// Elementwise operations: scalars yield a scalar, and any vector operand yields a vector.
#ifndef KUNGFU_NATIVE_POLICY_ELEMENTWISE_H_
#define KUNGFU_NATIVE_POLICY_ELEMENTWISE_H_

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <type_traits>
#include <utility>

#include "operation.h"

namespace kungfu {

// Makes an operation from an ordinary function of entries.
template <auto function>
struct Each;

template <typename Result, typename... Entries, Result (*function)(Entries...)>
struct Each<function> {
  static void run(const Operands& operands, Value* result) {
    run(operands, result, std::index_sequence_for<Entries...>{});
  }

 private:
  template <size_t... place>
  static void run(const Operands& operands, Value* result, std::index_sequence<place...>) {
    result->become_scalar();
    for (const Value* one : operands) {
      if (!one->scalar) result->become_vector(one->size());
    }
    for (size_t i = 0; i < result->size(); ++i) result->put(i, function(operands[place]->at<Entries>(i)...));
  }
};

// ---- numbers and whole numbers; the latter wrap around, as in TensorFlow and NumPy ---------------------------------

template <typename T>
using Wrapping = std::conditional_t<std::is_same_v<T, int64_t>, uint64_t, T>;

template <typename T>
T add(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
}

template <typename T>
T subtract(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
}

template <typename T>
T multiply(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
}

template <typename T>
T negative(T a) {
  return static_cast<T>(-static_cast<Wrapping<T>>(a));
}

inline float magnitude(float a) { return std::fabs(a); }
inline int64_t magnitude(int64_t a) { return a < 0 ? negative(a) : a; }

// NaN if either operand is NaN.
template <typename T>
T minimum(T a, T b) {
  if (a != a) return a;
  return b != b || b < a ? b : a;
}

template <typename T>
T maximum(T a, T b) {
  if (a != a) return a;
  return b != b || b > a ? b : a;
}

// ---- numbers -------------------------------------------------------------------------------------------------------

inline float divide(float a, float b) { return a / b; }
inline float square_root(float a) { return std::sqrt(a); }
inline float exponential(float a) { return std::exp(a); }
inline float logarithm(float a) { return std::log(a); }
inline float nearest(float a) { return std::nearbyint(a); }
inline float below(float a) { return std::floor(a); }
inline float above(float a) { return std::ceil(a); }
inline float power(float a, float b) { return std::pow(a, b); }

// With the sign of the divisor.
inline float modulo(float a, float b) {
  const float rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

inline float floor_divide(float a, float b) {
  if (b == 0) return a / b;
  const float rest = std::fmod(a, b);
  const float quotient = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0) ? 1 : 0);
  return std::nearbyint(quotient);  // whole but for rounding, so not down
}

inline bool is_finite(float a) { return std::isfinite(a); }

// ---- whole numbers: 0 where the divisor is, and rounded downwards --------------------------------------------------

inline int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return negative(a);  // the smallest integer has no negative: the processor would trap
  return a / b - (a % b != 0 && (a < 0) != (b < 0));  // C++ rounds towards zero: subtract one if it rounded up
}

inline int64_t modulo(int64_t a, int64_t b) { return b == 0 ? 0 : subtract(a, multiply(floor_divide(a, b), b)); }

// ---- order and logic -----------------------------------------------------------------------------------------------

template <typename Function, typename T>
bool holds(T a, T b) {
  return Function()(a, b);
}

inline bool opposite(bool a) { return !a; }

// ---- casts ---------------------------------------------------------------------------------------------------------

template <typename T>
bool to_bool(T a) {
  return a != T(0);
}

template <typename T>
float to_float32(T a) {
  return static_cast<float>(a);
}

// The number without its fraction, limited to the integers that a float64 represents exactly; 0 if it is not finite.
template <typename T>
int64_t to_int64(T a) {
  if constexpr (std::is_same_v<T, float>) {
    constexpr double kLargest = 9007199254740992.0;  // 2 ** 53
    if (!std::isfinite(a)) return 0;
    return static_cast<int64_t>(std::fmin(std::fmax(static_cast<double>(a), -kLargest), kLargest));
  } else {
    return static_cast<int64_t>(a);
  }
}

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_POLICY_ELEMENTWISE_H_
