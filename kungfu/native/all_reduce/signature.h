// What a message is, in a line that peers compare before they reduce it, and that an error can quote.
#ifndef KUNGFU_NATIVE_SIGNATURE_H_
#define KUNGFU_NATIVE_SIGNATURE_H_

#include <string>
#include <vector>

#include "flat_message.h"
#include "shared_memory.h"

namespace kungfu {

// Writes tag, tensors, elements by type, and a hash of the tag and of every tensor's type and length.
void write_signature(const std::string& tag, const std::vector<TensorPart>& parts, const Layout& layout, Signature* to);

// Empty when all ranks run the same message, else which two differ, and how.
std::string difference(const Signature* signatures, int size);

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_SIGNATURE_H_
