// The squared norms of a call's tensors, computed while the tensors are copied: a separate pass over memory costs
// several times as much.
//
// There are two norms: the norm of this peer's inputs before scaling, and the norm of the sums. Both exclude the last
// tensor. The first norm is known only to this peer. To send this norm to the others, an entry of the last tensor is a
// placeholder, which is replaced by the norm when the entry is copied, at the end of the message.
#ifndef KUNGFU_NATIVE_NORMS_H_
#define KUNGFU_NATIVE_NORMS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "flat_message.h"
#include "sum_of_squares.h"

namespace kungfu {

// The sum over tensors, in their order in the call; the entries of each tensor must be added from its front to its end.
class SquaredNorm {
 public:
  void begin(size_t tensors);
  void add(const TensorPart& part, const char* from, int64_t bytes);
  // Like add, and also copies the added entries, scaled; see copy_scaled.
  void add_and_copy(const TensorPart& part, const char* from, char* to, int64_t bytes, double scale);
  double sum() const;

 private:
  SumOfSquares* of(const TensorPart& part);

  std::vector<double> sums_;  // one for each tensor of the call
  SumOfSquares current_;
  size_t place_ = 0;  // the index of the tensor being summed
};

// The norms that a call computes, and their use.
struct Wanted {
  bool inputs;
  bool sums;
  double factor;         // of both norms: converts the norms of scaled gradients to norms of the gradients
  bool without_samples;  // this peer's inputs do not count, and have no norm
  uint32_t stands_for_inputs;  // the bits of the placeholders in the last tensor that the inputs' norm replaces
};

// The norms of one call; the allocated memory is reused by later calls.
class Norms {
 public:
  void begin(const Wanted& wanted, size_t tensors);

  // Copies the next bytes of a part's input, scaled; replaces the placeholders in the last tensor.
  void copy_in(const TensorPart& part, const char* from, char* to, int64_t bytes);
  // Copies the next bytes of a part's sum.
  void copy_out(const TensorPart& part, const char* from, char* to, int64_t bytes);
  // For a call with one peer: the sum is the copied input, or the input itself.
  void take_alone(const TensorPart& part);

  // Minus infinity if the norm is not requested; the norm of the inputs is NaN without samples.
  double of_inputs() const;
  double of_sums() const;

 private:
  bool sums_inputs() const { return wanted_.inputs && !wanted_.without_samples; }
  void fill_in(const TensorPart& part, char* block, int64_t bytes) const;

  Wanted wanted_ = {};
  SquaredNorm inputs_, sums_;
};

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_NORMS_H_
