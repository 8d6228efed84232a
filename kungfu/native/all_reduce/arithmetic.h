// The two loops over elements: copying with a scale, and the sum over peers.
#ifndef KUNGFU_NATIVE_ARITHMETIC_H_
#define KUNGFU_NATIVE_ARITHMETIC_H_

#include <cfenv>
#include <cstdint>

#include "element.h"

namespace kungfu {

// During the lifetime of an object, this thread rounds to nearest and keeps subnormals. TensorFlow's threads flush
// subnormals to zero, so sums would differ from NumPy's sums, and between a traced and an eager call.
class ExactArithmetic {
 public:
  ExactArithmetic() {
    fegetenv(&saved_);
    fesetenv(FE_DFL_ENV);
  }
  ~ExactArithmetic() { fesetenv(&saved_); }
  ExactArithmetic(const ExactArithmetic&) = delete;
  ExactArithmetic& operator=(const ExactArithmetic&) = delete;

 private:
  fenv_t saved_;
};

// Copies `bytes` of `type`, each floating value multiplied by `scale` and rounded once; types narrower than double are
// multiplied by the float next to `scale`. A scale of 1 copies the bits; a scale of 0 yields zeros for any values.
// Integers are copied unchanged. `to` may equal `from`.
void copy_scaled(ElementType type, const char* from, char* to, int64_t bytes, double scale);

// to[i] = ((blocks[0][i] + blocks[1][i]) + blocks[2][i]) + ...: the left fold in rank order, each addition rounded in
// the type itself; integers wrap. `size` is at least 2; `to` may be one of the blocks.
void sum_blocks(ElementType type, const char* const* blocks, int size, char* to, int64_t bytes);

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_ARITHMETIC_H_
