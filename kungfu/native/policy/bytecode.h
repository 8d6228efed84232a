// Bytecode: the computation of a step for its policies, one instruction per line, as written by
// kungfu.compiler.assembler.
//
//   states R...           the registers that initially contain the folds' states
//   inputs R...           the registers that initially contain the inputs of the step
//   constant TYPE R TEXT  a register with a constant
//   results R...          the registers with the results, at the end
//   kept R...             the registers with the new states, in order; empty if the states stay unchanged
//   skip N                skips the next N instructions
//   skip_unless R N       skips the next N instructions if R is false
//   exchange R R          the sum of a vector over all peers, in rank order, and that vector
//   NAME.TYPE R R...      an operation by its name and its first operand's type: the result, then the operands
//
// Every register is written before it is read, on every path through the skips. A replay runs all peers of a cluster
// together, instruction by instruction, each with separate registers. The registers of the first peer decide every
// skip, since conditions are agreed.
#ifndef KUNGFU_NATIVE_POLICY_BYTECODE_H_
#define KUNGFU_NATIVE_POLICY_BYTECODE_H_

#include <string>
#include <vector>

#include "operation.h"

namespace kungfu {

struct Instruction {
  Operation operation = nullptr;  // none for a skip, and for an exchange (which has a result)
  int result = -1;
  std::vector<int> operands;  // for a skip: its condition, or none
  size_t skipped = 0;
};

class Bytecode {
 public:
  // Empty, or the error in the text.
  std::string parse(const std::string& text);

  // Executes the instructions; the registers of every peer must contain the states and inputs.
  void run();

  // Sets the number of peers, at least one.
  void convene(size_t peers) { peers_.resize(peers, peers_[0]); }

  Value& value(int number, size_t peer = 0) { return peers_[peer][number]; }

  const std::vector<int>& states() const { return states_; }
  const std::vector<int>& inputs() const { return inputs_; }
  const std::vector<int>& results() const { return results_; }
  const std::vector<int>& kept() const { return kept_; }

 private:
  bool parse_line(const std::string& line);
  bool parse_constant(const std::string& type, const std::string& text, int number);
  void hold(const std::vector<int>& numbers);
  void exchange(int message, int result);

  std::vector<std::vector<Value>> peers_{1};  // the registers of each peer
  std::vector<int> states_, inputs_, results_, kept_;
  std::vector<Instruction> instructions_;
  std::vector<const Value*> operands_;  // of the instruction being executed
};

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_POLICY_BYTECODE_H_
