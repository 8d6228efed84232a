// The element types that an all-reduce carries, in the order in which a message packs them.
#ifndef KUNGFU_NATIVE_ELEMENT_H_
#define KUNGFU_NATIVE_ELEMENT_H_

#include <cstdint>

namespace kungfu {

enum class ElementType { kHalf, kBfloat16, kFloat, kDouble, kInt32, kInt64 };

constexpr int kElementTypes = 6;

constexpr int64_t kElementBytes[kElementTypes] = {2, 2, 4, 8, 4, 8};

constexpr const char* kElementNames[kElementTypes] = {"float16", "bfloat16", "float32", "float64", "int32", "int64"};

constexpr int64_t element_bytes(ElementType type) { return kElementBytes[static_cast<int>(type)]; }

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_ELEMENT_H_
