// Operations on vectors as a whole; those that only move entries do not ask what they are.
#ifndef KUNGFU_NATIVE_POLICY_VECTORS_H_
#define KUNGFU_NATIVE_POLICY_VECTORS_H_

#include "operation.h"

namespace kungfu {

// ---- whatever the entries are --------------------------------------------------------------------------------------

void choose(const Operands& operands, Value* result);  // condition, then, otherwise
void copy(const Operands& operands, Value* result);
void join(const Operands& operands, Value* result);    // scalars and vectors, one after the other
void part(const Operands& operands, Value* result);    // vector, first place, number of entries; NaN beyond its end
void scatter(const Operands& operands, Value* result); // vector, place, entry
void push(const Operands& operands, Value* result);    // vector, newest entry
void fill(const Operands& operands, Value* result);    // entry, number of entries
void ranks(const Operands& operands, Value* result);   // number of entries
void places(const Operands& operands, Value* result);  // vector

// The entries at a place or at places, from the end where negative; nothing (NaN, 0, false) where there is none.
void take_number(const Operands& operands, Value* result);
void take_other(const Operands& operands, Value* result);

// ---- reductions ----------------------------------------------------------------------------------------------------

void any(const Operands& operands, Value* result);
void all(const Operands& operands, Value* result);
void count(const Operands& operands, Value* result);
void argmin(const Operands& operands, Value* result);  // NaN is passed over; all NaN gives 0
void argmax(const Operands& operands, Value* result);

// Of numbers to a number; a sum is rounded once, at its end.
using Numbers = std::vector<float>;

float sum(Numbers& numbers);
float mean(Numbers& numbers);
float smallest(Numbers& numbers);
float largest(Numbers& numbers);
float median(Numbers& numbers);

enum class Missing { kSpreads, kIsPassedOver };  // what a NaN among the entries does

Numbers& entries(const Value& vector, Missing missing);
bool has_nan(const Numbers& numbers);

template <float (*function)(Numbers&), Missing missing>
void reduce(const Operands& operands, Value* result) {
  Numbers& numbers = entries(*operands[0], missing);
  result->become_scalar();
  result->put(0, function(numbers));
}

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_POLICY_VECTORS_H_
