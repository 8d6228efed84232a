// The operations of the bytecode by name: the second column of the table in
// kungfu/signal/operation/vocabulary.py, and a few more.
#ifndef KUNGFU_NATIVE_POLICY_OPERATION_H_
#define KUNGFU_NATIVE_POLICY_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kungfu {

// The instruction that wrote the word determines which of the three types it has.
union Word {
  float number;
  int64_t whole;
  bool flag;
};

inline void get(const Word& word, float* to) { *to = word.number; }
inline void get(const Word& word, int64_t* to) { *to = word.whole; }
inline void get(const Word& word, bool* to) { *to = word.flag; }

inline void set(Word* word, float value) { word->number = value; }
inline void set(Word* word, int64_t value) { word->whole = value; }
inline void set(Word* word, bool value) { word->flag = value; }

// The contents of a register: a number, an integer or a boolean, or a vector of these.
struct Value {
  bool scalar = true;
  std::vector<Word> words{1};  // exactly one for a scalar; its memory is reused by later runs

  size_t size() const { return words.size(); }

  // A scalar is broadcast to every index.
  const Word& word(size_t index) const { return words[scalar ? 0 : index]; }

  template <typename T>
  T at(size_t index) const {
    T found;
    get(word(index), &found);
    return found;
  }

  template <typename T>
  void put(size_t index, T value) {
    set(&words[index], value);
  }

  void become_scalar() {
    scalar = true;
    words.resize(1);
  }

  void become_vector(size_t length) {
    scalar = false;
    words.resize(length);
  }
};

using Operands = std::vector<const Value*>;
using Operation = void (*)(const Operands& operands, Value* result);

// The operation "name.type", or the operation of this name if the type does not matter; null if there is none.
Operation operation_called(const std::string& name);

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_POLICY_OPERATION_H_
