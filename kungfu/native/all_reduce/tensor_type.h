// The element type of a tensor.
#ifndef KUNGFU_NATIVE_TENSOR_TYPE_H_
#define KUNGFU_NATIVE_TENSOR_TYPE_H_

#include "element.h"
#include "tensorflow/core/framework/types.h"

namespace kungfu {

inline ElementType element_type(tensorflow::DataType type) {
  switch (type) {
    case tensorflow::DT_HALF:
      return ElementType::kHalf;
    case tensorflow::DT_BFLOAT16:
      return ElementType::kBfloat16;
    case tensorflow::DT_FLOAT:
      return ElementType::kFloat;
    case tensorflow::DT_DOUBLE:
      return ElementType::kDouble;
    case tensorflow::DT_INT32:
      return ElementType::kInt32;
    default:
      return ElementType::kInt64;
  }
}

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_TENSOR_TYPE_H_
