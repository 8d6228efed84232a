// The functions that Python calls through ctypes to replay a plan without TensorFlow: they run bytecode for all peers
// of a cluster at once.

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "bytecode.h"

namespace {

struct Cluster {
  kungfu::Bytecode bytecode;
  std::vector<kungfu::Word> results;
};

void read(const kungfu::Word* words, int64_t length, kungfu::Value* value) {
  length < 0 ? value->become_scalar() : value->become_vector(length);
  std::copy_n(words, value->size(), value->words.begin());
}

}  // namespace

extern "C" {

// Returns null if the text is not bytecode; `wrong` then contains the error, in at most the given number of bytes.
Cluster* kungfu_bytecode_open(const char* text, char* wrong, int64_t bytes) {
  auto cluster = std::make_unique<Cluster>();
  const std::string found = cluster->bytecode.parse(text);
  std::strncpy(wrong, found.c_str(), bytes - 1);
  return found.empty() ? cluster.release() : nullptr;
}

void kungfu_bytecode_close(Cluster* cluster) { delete cluster; }

// Runs one step of all peers. Each peer has a row of `inputs`, which are scalars, and a row of `states`, which are
// updated in place; `lengths` are the numbers of entries of the states, -1 for a scalar. Returns the results of the
// first peer, one after the other, valid until the next call, and writes the number of entries of each result. Returns
// null if the memory does not suffice, for example for a vector length from a damaged record: an exception must not
// reach Python's frames.
const kungfu::Word* kungfu_bytecode_run(Cluster* cluster, int64_t peers, const kungfu::Word* inputs,
                                        const int64_t* lengths, kungfu::Word* states, int64_t* entries) try {
  kungfu::Bytecode& bytecode = cluster->bytecode;
  bytecode.convene(peers);
  const kungfu::Word* next = states;
  for (int64_t peer = 0; peer < peers; ++peer) {
    for (const int number : bytecode.inputs()) read(inputs++, -1, &bytecode.value(number, peer));
    for (size_t i = 0; i < bytecode.states().size(); ++i) {
      kungfu::Value& value = bytecode.value(bytecode.states()[i], peer);
      read(next, lengths[i], &value);
      next += value.size();
    }
  }
  bytecode.run();
  for (int64_t peer = 0; peer < peers; ++peer) {
    for (const int number : bytecode.kept()) {
      const kungfu::Value& value = bytecode.value(number, peer);
      states = std::copy(value.words.begin(), value.words.end(), states);
    }
  }
  cluster->results.clear();
  for (const int number : bytecode.results()) {
    const kungfu::Value& value = bytecode.value(number);
    *entries++ = value.size();
    cluster->results.insert(cluster->results.end(), value.words.begin(), value.words.end());
  }
  // Even without results, the address is not null.
  cluster->results.reserve(1);
  return cluster->results.data();
} catch (const std::exception&) {
  return nullptr;
}

}  // extern "C"
