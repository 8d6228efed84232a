// The operations of the bytecode by their names: the second place of each row of
// kungfu/signal/operation/vocabulary.py, and a few more.
#ifndef KUNGFU_NATIVE_POLICY_OPERATION_H_
#define KUNGFU_NATIVE_POLICY_OPERATION_H_

#include <string>
#include <vector>

#include "value.h"

namespace kungfu {

using Operands = std::vector<const Value*>;
using Operation = void (*)(const Operands& operands, Value* result);

// By "name.type", or by the name alone where the type does not matter; null if there is none.
Operation operation_called(const std::string& name);

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_POLICY_OPERATION_H_
