// The sum of the squares of a tensor's entries, with the same bits on every processor.
//
// An entry counts as the float next to it. The square of a float has at most 48 digits, so it is exact in double, and
// whether a compiler fuses the multiplication with the addition that follows makes no difference. What rounds are the
// additions, and their order is part of the definition:
//   1. A tensor is cut into blocks of kSquaresBlock entries.
//   2. Entry i of a block is added to lane i % kLanes, in the order of the entries.
//   3. The lanes of a block are added in halves: lane i and lane i + 8, then 4, 2, 1.
//   4. The sums of the blocks are added in their order, and what each of these additions rounds off is added up beside
//      them, and to the result in the end (Knuth, TAOCP 2, 4.2.2, theorem B).
// The squares of 32 numbers of one exponent, the entries of a lane, add up without any error. The whole differs from the
// exact sum by about one digit in the last place, for any number of entries.
// How the entries are handed over, with which instructions and by how many threads, changes nothing.
#ifndef KUNGFU_NATIVE_SUM_OF_SQUARES_H_
#define KUNGFU_NATIVE_SUM_OF_SQUARES_H_

#include <cstdint>

#include "element.h"

namespace kungfu {

constexpr int kLanes = 16;

constexpr int64_t kSquaresBlock = 32 * kLanes;

// The sums of a tensor's blocks, added up in their order.
class SumOfBlocks {
 public:
  void add(double block);
  double sum() const;

 private:
  double total_ = 0.0;
  double rounded_off_ = 0.0;
};

// Takes the entries of one tensor from its front to its end, in pieces of any length.
class SumOfSquares {
 public:
  // The next `count` entries of the tensor.
  void add(ElementType type, const char* from, int64_t count);
  // The same, and copies them to `to` like copy_scaled; `scale` does not count in the sum, and is not 0.
  void add_and_copy(ElementType type, const char* from, char* to, int64_t count, double scale);
  // Of all entries so far.
  double sum() const;

 private:
  // Hands over blocks that are whole one by one, for their sums, and what is less in pieces.
  template <typename Whole, typename Piece>
  void take(int64_t count, Whole whole, Piece piece);
  void close_block();

  double lanes_[kLanes] = {};
  int64_t in_block_ = 0;  // entries of the block that is not full yet
  SumOfBlocks blocks_;
};

// The sum of one block, of at most kSquaresBlock entries.
double sum_of_block(ElementType type, const char* from, int64_t count);

// Whether floats are squared with AVX2 and fused additions: where the processor has both, unless a test forbids it.
bool squares_use_avx2();
void let_squares_use_avx2(bool allowed);

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_SUM_OF_SQUARES_H_
