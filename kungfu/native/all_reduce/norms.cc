#include "norms.h"

#include <cstring>
#include <limits>

#include "arithmetic.h"

namespace kungfu {

void SquaredNorm::begin(size_t tensors) {
  sums_.assign(tensors, 0.0);
  current_ = {};
  place_ = 0;
}

SumOfSquares* SquaredNorm::of(const TensorPart& part) {
  if (part.place != place_) current_ = {};
  place_ = part.place;
  return &current_;
}

void SquaredNorm::add(const TensorPart& part, const char* from, int64_t bytes) {
  SumOfSquares* const squares = of(part);
  squares->add(part.type, from, bytes / element_bytes(part.type));
  sums_[part.place] = squares->sum();
}

void SquaredNorm::add_and_copy(const TensorPart& part, const char* from, char* to, int64_t bytes, double scale) {
  SumOfSquares* const squares = of(part);
  squares->add_and_copy(part.type, from, to, bytes / element_bytes(part.type), scale);
  sums_[part.place] = squares->sum();
}

double SquaredNorm::sum() const {
  double total = 0.0;
  for (const double one : sums_) total += one;
  return total;
}

void Norms::begin(const Wanted& wanted, size_t tensors) {
  wanted_ = wanted;
  inputs_.begin(tensors);
  sums_.begin(tensors);
}

void Norms::copy_in(const TensorPart& part, const char* from, char* to, int64_t bytes) {
  if (part.counts && sums_inputs()) return inputs_.add_and_copy(part, from, to, bytes, part.scale);
  copy_scaled(part.type, from, to, bytes, part.scale);
  // The last tensor is the last of the message: all tensors of the norm have been copied.
  if (!part.counts && wanted_.inputs) fill_in(part, to, bytes);
}

void Norms::copy_out(const TensorPart& part, const char* from, char* to, int64_t bytes) {
  if (part.counts && wanted_.sums) return sums_.add_and_copy(part, from, to, bytes, 1.0);
  copy_scaled(part.type, from, to, bytes, 1.0);
}

void Norms::take_alone(const TensorPart& part) {
  // An input that is its own sum is not copied; both norms are equal.
  if (part.counts && part.input == part.output && part.scale == 1.0) {
    if (sums_inputs()) inputs_.add(part, part.input, part.bytes);
  } else {
    copy_in(part, part.input, part.output, part.bytes);
  }
  if (part.counts && wanted_.sums) sums_.add(part, part.output, part.bytes);
}

void Norms::fill_in(const TensorPart& part, char* block, int64_t bytes) const {
  if (part.type != ElementType::kFloat) return;
  const float norm = static_cast<float>(of_inputs());
  for (int64_t at = 0; at < bytes; at += sizeof(norm)) {
    uint32_t bits;
    std::memcpy(&bits, block + at, sizeof(bits));
    if (bits == wanted_.stands_for_inputs) std::memcpy(block + at, &norm, sizeof(norm));
  }
}

double Norms::of_inputs() const {
  if (!wanted_.inputs) return -std::numeric_limits<double>::infinity();
  if (wanted_.without_samples) return std::numeric_limits<double>::quiet_NaN();
  return inputs_.sum() * wanted_.factor;
}

double Norms::of_sums() const {
  return wanted_.sums ? sums_.sum() * wanted_.factor : -std::numeric_limits<double>::infinity();
}

}  // namespace kungfu
