#include "bytecode.h"

#include <cstdlib>
#include <iterator>
#include <sstream>

namespace kungfu {
std::string Bytecode::parse(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!parse_line(line)) return "kungfu: no instruction of this library: " + line;
  }
  return "";
}

bool Bytecode::parse_line(const std::string& line) {
  std::istringstream words(line);
  std::string head;
  words >> head;
  // A constant is written into its register here, once for all runs.
  if (head == "constant") {
    std::string type, text;
    int number = -1;
    words >> type >> number >> text;
    return number >= 0 && parse_constant(type, text, number);
  }
  std::vector<int> numbers{std::istream_iterator<int>(words), std::istream_iterator<int>()};
  // A skip has no operation: its last number is the number of skipped instructions, and a number before that is the
  // condition.
  if (head == "skip" || head == "skip_unless") {
    if (numbers.empty()) return false;
    const size_t skipped = numbers.back();
    numbers.pop_back();
    instructions_.push_back({nullptr, -1, std::move(numbers), skipped});
    return true;
  }
  hold(numbers);
  // A list of registers.
  if (head == "states") return states_ = std::move(numbers), true;
  if (head == "inputs") return inputs_ = std::move(numbers), true;
  if (head == "results") return results_ = std::move(numbers), true;
  if (head == "kept") return kept_ = std::move(numbers), true;
  if (head == "exchange") {
    if (numbers.size() != 2) return false;
    instructions_.push_back({nullptr, numbers[0], {numbers[1]}, 0});
    return true;
  }
  // An operation: the register of its result, then those of its operands.
  const Operation operation = operation_called(head);
  if (operation == nullptr || numbers.empty()) return false;
  instructions_.push_back({operation, numbers[0], {numbers.begin() + 1, numbers.end()}, 0});
  return true;
}

bool Bytecode::parse_constant(const std::string& type, const std::string& text, int number) {
  hold({number});
  Word& word = value(number).words[0];
  if (type == "float32") {
    word.number = std::strtof(text.c_str(), nullptr);
  } else if (type == "int64") {
    word.whole = std::strtoll(text.c_str(), nullptr, 10);
  } else if (type == "bool") {
    word.flag = text == "1";
  } else {
    return false;
  }
  return true;
}

void Bytecode::hold(const std::vector<int>& numbers) {
  for (const int number : numbers) {
    if (number >= static_cast<int>(peers_[0].size())) peers_[0].resize(number + 1);
  }
}

void Bytecode::run() {
  for (size_t at = 0; at < instructions_.size(); ++at) {
    const Instruction& next = instructions_[at];
    if (next.operation == nullptr && next.result >= 0) {
      exchange(next.operands[0], next.result);
      continue;
    }
    if (next.operation == nullptr) {
      // A skip without a condition always jumps; a skip with a condition jumps if the condition is false.
      if (next.operands.empty() || !value(next.operands[0]).words[0].flag) at += next.skipped;
      continue;
    }
    for (std::vector<Value>& registers : peers_) {
      operands_.clear();
      for (const int number : next.operands) operands_.push_back(&registers[number]);
      next.operation(operands_, &registers[next.result]);
    }
  }
}

void Bytecode::exchange(int message, int result) {
  Value& sum = value(result);
  sum = value(message);
  // One after the other, in rank order: another order would round differently from the attachments.
  for (size_t peer = 1; peer < peers_.size(); ++peer) {
    const Value& next = value(message, peer);
    for (size_t i = 0; i < sum.size(); ++i) sum.put(i, sum.at<float>(i) + next.at<float>(i));
  }
  for (size_t peer = 1; peer < peers_.size(); ++peer) value(result, peer) = sum;
}

}  // namespace kungfu
