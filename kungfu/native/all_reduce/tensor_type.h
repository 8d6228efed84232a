// The element type of a tensor.
#ifndef KUNGFU_NATIVE_TENSOR_TYPE_H_
#define KUNGFU_NATIVE_TENSOR_TYPE_H_

#include <algorithm>

#include "element.h"
#include "tensorflow/core/framework/types.h"

namespace kungfu {

// In the order of ElementType.
constexpr tensorflow::DataType kTensorTypes[kElementTypes] = {tensorflow::DT_HALF,   tensorflow::DT_BFLOAT16,
                                                              tensorflow::DT_FLOAT,  tensorflow::DT_DOUBLE,
                                                              tensorflow::DT_INT32,  tensorflow::DT_INT64};

inline ElementType element_type(tensorflow::DataType type) {
  return static_cast<ElementType>(std::find(kTensorTypes, kTensorTypes + kElementTypes, type) - kTensorTypes);
}

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_TENSOR_TYPE_H_
