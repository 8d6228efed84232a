#include "operation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "elementwise.h"

namespace kungfu {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Word missing_number() {
  Word nothing;
  nothing.number = kNaN;
  return nothing;
}

size_t entries_asked(const Value& number) { return std::max<int64_t>(number.at<int64_t>(0), 0); }

// An index, counted from the end if negative; it may lie outside the vector.
int64_t place_in(const Value& vector, int64_t index) {
  return index < 0 ? index + static_cast<int64_t>(vector.size()) : index;
}

void take(const Operands& operands, const Word& nothing, Value* result) {
  const Value &vector = *operands[0], &places = *operands[1];
  places.scalar ? result->become_scalar() : result->become_vector(places.size());
  for (size_t i = 0; i < result->size(); ++i) {
    const int64_t at = place_in(vector, places.at<int64_t>(i));
    // An index outside the vector yields no entry and no error: the policy decides what this means.
    const bool inside = at >= 0 && at < static_cast<int64_t>(vector.size());
    result->words[i] = inside ? vector.words[at] : nothing;
  }
}

// The index of the first entry that no other entry precedes; a NaN comes after all numbers.
template <typename Precedes>
void first_by(const Operands& operands, Value* result, float last, Precedes precedes) {
  const Value& vector = *operands[0];
  const auto entry = [&](size_t i) { return std::isnan(vector.at<float>(i)) ? last : vector.at<float>(i); };
  size_t best = 0;
  for (size_t i = 1; i < vector.size(); ++i) {
    if (precedes(entry(i), entry(best))) best = i;
  }
  result->become_scalar();
  result->put(0, static_cast<int64_t>(best));
}

int64_t flags_set(const Value& vector) {
  return std::count_if(vector.words.begin(), vector.words.end(), [](const Word& word) { return word.flag; });
}

// ---- whatever the entries are --------------------------------------------------------------------------------------

// The choice between two values by a condition.
void choose(const Operands& operands, Value* result) {
  // A scalar if all three are scalars; otherwise a vector, to which scalars are broadcast.
  result->become_scalar();
  for (const Value* one : operands) {
    if (!one->scalar) result->become_vector(one->size());
  }
  for (size_t i = 0; i < result->size(); ++i) {
    result->words[i] = operands[operands[0]->word(i).flag ? 1 : 2]->word(i);
  }
}

void copy(const Operands& operands, Value* result) {
  result->scalar = operands[0]->scalar;
  result->words = operands[0]->words;
}

// Concatenates scalars and vectors.
void join(const Operands& operands, Value* result) {
  result->become_vector(0);
  for (const Value* one : operands) result->words.insert(result->words.end(), one->words.begin(), one->words.end());
}

// A slice of a vector, given the first index and the number of entries; NaN beyond the vector's end.
void part(const Operands& operands, Value* result) {
  const Value& vector = *operands[0];
  const size_t first = entries_asked(*operands[1]);
  result->become_vector(entries_asked(*operands[2]));
  for (size_t i = 0; i < result->size(); ++i) {
    const bool inside = first + i < vector.size();
    result->words[i] = inside ? vector.words[first + i] : missing_number();
  }
}

// A vector with one entry replaced.
void scatter(const Operands& operands, Value* result) {
  copy(operands, result);
  const int64_t at = place_in(*result, operands[1]->at<int64_t>(0));
  // Nothing is written outside the vector.
  if (at >= 0 && at < static_cast<int64_t>(result->size())) result->words[at] = operands[2]->words[0];
}

// A vector without its first entry, and with a new last entry.
void push(const Operands& operands, Value* result) {
  result->scalar = false;
  result->words.assign(operands[0]->words.begin() + 1, operands[0]->words.end());
  result->words.push_back(operands[1]->words[0]);
}

// An entry, repeated the given number of times.
void fill(const Operands& operands, Value* result) {
  result->scalar = false;
  result->words.assign(entries_asked(*operands[1]), operands[0]->words[0]);
}

void count_up(size_t length, Value* result) {
  result->become_vector(length);
  for (size_t i = 0; i < length; ++i) result->put(i, static_cast<int64_t>(i));
}

void ranks(const Operands& operands, Value* result) { count_up(entries_asked(*operands[0]), result); }

void places(const Operands& operands, Value* result) { count_up(operands[0]->size(), result); }

// The entries at one index or several, counted from the end if negative; NaN, 0 or false outside the vector.
void take_number(const Operands& operands, Value* result) {
  take(operands, missing_number(), result);
}

void take_other(const Operands& operands, Value* result) {
  Word nothing;
  nothing.whole = 0;
  take(operands, nothing, result);
}

// ---- reductions ----------------------------------------------------------------------------------------------------

void any(const Operands& operands, Value* result) {
  result->become_scalar();
  result->put(0, flags_set(*operands[0]) > 0);
}

void all(const Operands& operands, Value* result) {
  result->become_scalar();
  result->put(0, flags_set(*operands[0]) == static_cast<int64_t>(operands[0]->size()));
}

void count(const Operands& operands, Value* result) {
  result->become_scalar();
  result->put(0, flags_set(*operands[0]));
}

// NaN entries are ignored; the result is 0 if all entries are NaN.
void argmin(const Operands& operands, Value* result) {
  const float infinity = std::numeric_limits<float>::infinity();
  first_by(operands, result, infinity, [](float a, float b) { return a < b; });
}

void argmax(const Operands& operands, Value* result) {
  const float infinity = std::numeric_limits<float>::infinity();
  first_by(operands, result, -infinity, [](float a, float b) { return a > b; });
}

// Reduces numbers to a number; a sum is rounded once, at its end.
using Numbers = std::vector<float>;

enum class Missing { kSpreads, kIsPassedOver };  // the effect of a NaN among the entries

Numbers& entries(const Value& vector, Missing missing) {
  static thread_local Numbers numbers;  // reused by later calls
  numbers.clear();
  for (size_t i = 0; i < vector.size(); ++i) {
    const float entry = vector.at<float>(i);
    if (missing == Missing::kSpreads || !std::isnan(entry)) numbers.push_back(entry);
  }
  return numbers;
}

bool has_nan(const Numbers& numbers) {
  return std::any_of(numbers.begin(), numbers.end(), [](float entry) { return std::isnan(entry); });
}

// Added up in double and rounded once, at the end.
float sum(Numbers& numbers) { return static_cast<float>(std::accumulate(numbers.begin(), numbers.end(), 0.0)); }

float mean(Numbers& numbers) { return sum(numbers) / static_cast<float>(numbers.size()); }

float deviation(Numbers& numbers) {
  const double center = std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
  double squares = 0.0;
  for (const float entry : numbers) squares += (entry - center) * (entry - center);
  return static_cast<float>(std::sqrt(squares / static_cast<double>(numbers.size())));
}

float sum_of_any(Numbers& numbers) { return numbers.empty() ? kNaN : sum(numbers); }

float smallest(Numbers& numbers) {
  if (numbers.empty() || has_nan(numbers)) return kNaN;
  return *std::min_element(numbers.begin(), numbers.end());
}

float largest(Numbers& numbers) {
  if (numbers.empty() || has_nan(numbers)) return kNaN;
  return *std::max_element(numbers.begin(), numbers.end());
}

float median(Numbers& numbers) {
  if (numbers.empty() || has_nan(numbers)) return kNaN;
  std::sort(numbers.begin(), numbers.end());
  // The middle entry, or the mean of the two middle entries if their number is even.
  const size_t last = numbers.size() - 1;
  return (numbers[last / 2] + numbers[(last + 1) / 2]) / 2;
}

template <float (*function)(Numbers&), Missing missing>
void reduce(const Operands& operands, Value* result) {
  Numbers& numbers = entries(*operands[0], missing);
  result->become_scalar();
  result->put(0, function(numbers));
}

// ---- the table -----------------------------------------------------------------------------------------------------

const std::map<std::string, Operation>& operations() {
  static const auto* const only = new std::map<std::string, Operation>{
      {"add.float32", Each<add<float>>::run},
      {"add.int64", Each<add<int64_t>>::run},
      {"subtract.float32", Each<subtract<float>>::run},
      {"subtract.int64", Each<subtract<int64_t>>::run},
      {"multiply.float32", Each<multiply<float>>::run},
      {"multiply.int64", Each<multiply<int64_t>>::run},
      {"divide.float32", Each<divide>::run},
      {"floor_divide.float32", Each<static_cast<float (*)(float, float)>(floor_divide)>::run},
      {"floor_divide.int64", Each<static_cast<int64_t (*)(int64_t, int64_t)>(floor_divide)>::run},
      {"modulo.float32", Each<static_cast<float (*)(float, float)>(modulo)>::run},
      {"modulo.int64", Each<static_cast<int64_t (*)(int64_t, int64_t)>(modulo)>::run},
      {"power.float32", Each<power>::run},
      {"negative.float32", Each<negative<float>>::run},
      {"negative.int64", Each<negative<int64_t>>::run},
      {"abs.float32", Each<static_cast<float (*)(float)>(magnitude)>::run},
      {"abs.int64", Each<static_cast<int64_t (*)(int64_t)>(magnitude)>::run},
      {"minimum.float32", Each<minimum<float>>::run},
      {"minimum.int64", Each<minimum<int64_t>>::run},
      {"maximum.float32", Each<maximum<float>>::run},
      {"maximum.int64", Each<maximum<int64_t>>::run},
      {"sqrt.float32", Each<square_root>::run},
      {"exp.float32", Each<exponential>::run},
      {"log.float32", Each<logarithm>::run},
      {"round.float32", Each<nearest>::run},
      {"floor.float32", Each<below>::run},
      {"ceil.float32", Each<above>::run},
      {"is_finite.float32", Each<is_finite>::run},
      {"less.float32", Each<holds<std::less<>, float>>::run},
      {"less.int64", Each<holds<std::less<>, int64_t>>::run},
      {"less_equal.float32", Each<holds<std::less_equal<>, float>>::run},
      {"less_equal.int64", Each<holds<std::less_equal<>, int64_t>>::run},
      {"greater.float32", Each<holds<std::greater<>, float>>::run},
      {"greater.int64", Each<holds<std::greater<>, int64_t>>::run},
      {"greater_equal.float32", Each<holds<std::greater_equal<>, float>>::run},
      {"greater_equal.int64", Each<holds<std::greater_equal<>, int64_t>>::run},
      {"equal.float32", Each<holds<std::equal_to<>, float>>::run},
      {"equal.int64", Each<holds<std::equal_to<>, int64_t>>::run},
      {"equal.bool", Each<holds<std::equal_to<>, bool>>::run},
      {"not_equal.float32", Each<holds<std::not_equal_to<>, float>>::run},
      {"not_equal.int64", Each<holds<std::not_equal_to<>, int64_t>>::run},
      {"not_equal.bool", Each<holds<std::not_equal_to<>, bool>>::run},
      {"and.bool", Each<holds<std::logical_and<>, bool>>::run},
      {"or.bool", Each<holds<std::logical_or<>, bool>>::run},
      {"not.bool", Each<opposite>::run},
      {"to_bool.float32", Each<to_bool<float>>::run},
      {"to_bool.int64", Each<to_bool<int64_t>>::run},
      {"to_bool.bool", copy},
      {"to_int64.float32", Each<to_int64<float>>::run},
      {"to_int64.int64", copy},
      {"to_int64.bool", Each<to_int64<bool>>::run},
      {"to_float32.float32", copy},
      {"to_float32.int64", Each<to_float32<int64_t>>::run},
      {"to_float32.bool", Each<to_float32<bool>>::run},
      {"where", choose},
      {"copy", copy},
      {"join", join},
      {"part", part},
      {"scatter", scatter},
      {"push", push},
      {"fill", fill},
      {"ranks", ranks},
      {"places", places},
      {"take.float32", take_number},
      {"take", take_other},
      {"any", any},
      {"all", all},
      {"count", count},
      {"argmin", argmin},
      {"argmax", argmax},
      {"sum", reduce<sum, Missing::kSpreads>},
      {"mean", reduce<mean, Missing::kSpreads>},
      {"min", reduce<smallest, Missing::kSpreads>},
      {"max", reduce<largest, Missing::kSpreads>},
      {"median", reduce<median, Missing::kSpreads>},
      {"sum_present", reduce<sum_of_any, Missing::kIsPassedOver>},
      {"mean_present", reduce<mean, Missing::kIsPassedOver>},
      {"std_present", reduce<deviation, Missing::kIsPassedOver>},
      {"min_present", reduce<smallest, Missing::kIsPassedOver>},
      {"max_present", reduce<largest, Missing::kIsPassedOver>},
      {"median_present", reduce<median, Missing::kIsPassedOver>},
  };
  return *only;
}

}  // namespace

Operation operation_called(const std::string& name) {
  // By name and type; an operation that only moves entries is listed by its name alone.
  auto found = operations().find(name);
  if (found == operations().end()) found = operations().find(name.substr(0, name.find('.')));
  return found == operations().end() ? nullptr : found->second;
}

}  // namespace kungfu
