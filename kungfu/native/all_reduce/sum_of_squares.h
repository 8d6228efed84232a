// The sum of the squares of a tensor's entries, with the same bits on every processor.
//
// An entry is converted to the nearest float. The square of a float has at most 48 binary digits, so it is exact in
// double, and it makes no difference whether a compiler fuses the multiplication with the next addition. Only the
// additions round, and their order is part of the definition:
//   1. A tensor is cut into blocks of kSquaresBlock entries.
//   2. Entry i of a block is added to lane i % kLanes, in the order of the entries.
//   3. The lanes of a block are added in halves: lane i and lane i + 8, then 4, 2, 1.
//   4. The sums of the blocks are added in order. The rounding errors of these additions are summed separately, and
//      that sum is added to the result at the end (Knuth, TAOCP 2, 4.2.2, theorem B).
// The squares of 32 numbers with the same exponent, the entries of a lane, add up without any error. The result differs
// from the exact sum by about one unit in the last place, for any number of entries.
// The result does not depend on the pieces in which entries arrive, the instructions, or the number of threads.
#ifndef KUNGFU_NATIVE_SUM_OF_SQUARES_H_
#define KUNGFU_NATIVE_SUM_OF_SQUARES_H_

#include <cstdint>

#include "element.h"

namespace kungfu {

constexpr int kLanes = 16;

constexpr int64_t kSquaresBlock = 32 * kLanes;

// The sums of a tensor's blocks, added in order.
class SumOfBlocks {
 public:
  void add(double block);
  double sum() const;

 private:
  double total_ = 0.0;
  double rounded_off_ = 0.0;
};

// Sums the entries of one tensor, received from its front to its end in pieces of any length.
class SumOfSquares {
 public:
  // Adds the next `count` entries of the tensor.
  void add(ElementType type, const char* from, int64_t count);
  // Adds the next entries, and copies them to `to` like copy_scaled; `scale` (not 0) does not affect the sum.
  void add_and_copy(ElementType type, const char* from, char* to, int64_t count, double scale);
  // The sum of all entries so far.
  double sum() const;

 private:
  // Passes on whole blocks one by one, to be summed, and incomplete blocks in pieces.
  template <typename Whole, typename Piece>
  void take(int64_t count, Whole whole, Piece piece);
  void close_block();

  double lanes_[kLanes] = {};
  int64_t in_block_ = 0;  // the number of entries in the incomplete block
  SumOfBlocks blocks_;
};

// The sum of one block, of at most kSquaresBlock entries.
double sum_of_block(ElementType type, const char* from, int64_t count);

// True if floats are squared with AVX2 and fused additions: the processor has both, and no test forbids them.
bool squares_use_avx2();
void let_squares_use_avx2(bool allowed);

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_SUM_OF_SQUARES_H_
