#include "operation.h"

#include <map>

#include "elementwise.h"
#include "vectors.h"

namespace kungfu {
namespace {

const std::map<std::string, Operation>& operations() {
  static const auto* const only = new std::map<std::string, Operation>{
      {"add.float32", Each<add<float>>::run},
      {"add.int64", Each<add<int64_t>>::run},
      {"subtract.float32", Each<subtract<float>>::run},
      {"subtract.int64", Each<subtract<int64_t>>::run},
      {"multiply.float32", Each<multiply<float>>::run},
      {"multiply.int64", Each<multiply<int64_t>>::run},
      {"divide.float32", Each<divide>::run},
      {"floor_divide.int64", Each<floor_divide>::run},
      {"modulo.int64", Each<modulo>::run},
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
      {"less.float32", Each<less<float>>::run},
      {"less.int64", Each<less<int64_t>>::run},
      {"less_equal.float32", Each<less_equal<float>>::run},
      {"less_equal.int64", Each<less_equal<int64_t>>::run},
      {"greater.float32", Each<greater<float>>::run},
      {"greater.int64", Each<greater<int64_t>>::run},
      {"greater_equal.float32", Each<greater_equal<float>>::run},
      {"greater_equal.int64", Each<greater_equal<int64_t>>::run},
      {"equal.float32", Each<equal<float>>::run},
      {"equal.int64", Each<equal<int64_t>>::run},
      {"equal.bool", Each<equal<bool>>::run},
      {"not_equal.float32", Each<not_equal<float>>::run},
      {"not_equal.int64", Each<not_equal<int64_t>>::run},
      {"not_equal.bool", Each<not_equal<bool>>::run},
      {"and.bool", Each<both>::run},
      {"or.bool", Each<either>::run},
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
      {"mean_present", reduce<mean, Missing::kIsPassedOver>},
      {"min_present", reduce<smallest, Missing::kIsPassedOver>},
      {"max_present", reduce<largest, Missing::kIsPassedOver>},
      {"median_present", reduce<median, Missing::kIsPassedOver>},
  };
  return *only;
}

}  // namespace

Operation operation_called(const std::string& name) {
  // By name and type; what only moves entries stands there by its name alone.
  auto found = operations().find(name);
  if (found == operations().end()) found = operations().find(name.substr(0, name.find('.')));
  return found == operations().end() ? nullptr : found->second;
}

}  // namespace kungfu
