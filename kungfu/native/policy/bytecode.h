// Bytecode: what a step computes for its policies, one instruction per line, as kungfu.compiler.assembler writes.
//
//   states R...           the registers that begin with the folds' states
//   inputs R...           the registers that begin with what the step offers
//   constant TYPE R TEXT  a register that holds a constant throughout
//   results R...          what is handed out at the end
//   kept R...             what the states become, in their order; none where they stay
//   skip N                goes on after the next N instructions
//   skip_unless R N       does so where R is false
//   exchange R R          the sum of a vector over all peers, in rank order, and that vector
//   NAME.TYPE R R...      an operation by its name and its first operand's type: the result, then the operands
//
// Every register is written before it is read, whichever way the skips lead. A replay runs all peers of a cluster side by
// side, instruction by instruction, each with registers of its own; where a skip leads is what the first of them says,
// since conditions are agreed.
#ifndef KUNGFU_NATIVE_POLICY_BYTECODE_H_
#define KUNGFU_NATIVE_POLICY_BYTECODE_H_

#include <string>
#include <vector>

#include "operation.h"

namespace kungfu {

struct Instruction {
  Operation operation = nullptr;  // none: a skip, or with a result an exchange
  int result = -1;
  std::vector<int> operands;  // of a skip its condition, or none
  size_t skipped = 0;
};

class Bytecode {
 public:
  // Empty, or what is wrong with the text.
  std::string parse(const std::string& text);

  // Carries out the instructions; the states and inputs must stand in the registers of every peer.
  void run();

  // From now on for so many peers, at least one.
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

  std::vector<std::vector<Value>> peers_{1};  // the registers of each
  std::vector<int> states_, inputs_, results_, kept_;
  std::vector<Instruction> instructions_;
  std::vector<const Value*> operands_;  // of the instruction that is being carried out
};

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_POLICY_BYTECODE_H_
