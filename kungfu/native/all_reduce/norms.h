// The squared norms of a call's tensors, taken while they are copied: a pass over memory of its own costs several times
// as much.
//
// Two norms are known: that of what this peer hands in, before it is scaled, and that of the sums. The last tensor does
// not count. The first norm belongs to this peer alone; where it is to be sent to the others, an entry of the last tensor
// stands for it until it is copied in, as the last one of the message.
#ifndef KUNGFU_NATIVE_NORMS_H_
#define KUNGFU_NATIVE_NORMS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "flat_message.h"
#include "sum_of_squares.h"

namespace kungfu {

// The sum over tensors, in their order in the call; each one's entries must come from its front to its end.
class SquaredNorm {
 public:
  void begin(size_t tensors);
  void add(const TensorPart& part, const char* from, int64_t bytes);
  // As add, and copies what it adds, scaled; see copy_scaled.
  void add_and_copy(const TensorPart& part, const char* from, char* to, int64_t bytes, double scale);
  double sum() const;

 private:
  SumOfSquares* of(const TensorPart& part);

  std::vector<double> sums_;  // one for each tensor of the call
  SumOfSquares current_;
  size_t place_ = 0;  // of the tensor that the current sum is about
};

// Which norms a call takes, and what is made of them.
struct Wanted {
  bool inputs;
  bool sums;
  double factor;         // of both: what turns scaled gradients' norms into those of the gradients
  bool without_samples;  // this peer's inputs count nothing: they have no norm
  uint32_t stands_for_inputs;  // the bits of the entries of the last tensor that the inputs' norm takes the place of
};

// The norms of one call; keeps its room from call to call.
class Norms {
 public:
  void begin(const Wanted& wanted, size_t tensors);

  // Copies the next bytes of a part's input, scaled; fills in the last tensor's entries.
  void copy_in(const TensorPart& part, const char* from, char* to, int64_t bytes);
  // Copies the next bytes of a part's sum.
  void copy_out(const TensorPart& part, const char* from, char* to, int64_t bytes);
  // For a call that reduces over one peer: the sum is what was copied in, or the input itself.
  void take_alone(const TensorPart& part);

  // Minus infinity where it is not wanted; the inputs' is NaN without samples.
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
