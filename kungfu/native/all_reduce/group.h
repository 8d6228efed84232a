// A group: the ranks of one view, and the all-reduce over their shared memory.
//
// A message goes through the blocks chunk by chunk, the two buffers in turn:
//   1. Each rank copies its chunk into its own block, and takes its norm meanwhile; barrier.
//   2. Rank r sums the r-th portion of all blocks, in rank order, into its own block; barrier.
//   3. Each rank copies every portion out of the block in which it was summed, and takes the norm of the sums meanwhile.
//      Its next chunk goes to the other buffer.
// That buffer is free: every rank that reached the last barrier had copied the previous chunk out of it.
#ifndef KUNGFU_NATIVE_GROUP_H_
#define KUNGFU_NATIVE_GROUP_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "failure.h"
#include "flat_message.h"
#include "group_barrier.h"
#include "norms.h"
#include "shared_memory.h"

namespace kungfu {

// Final.
class Group {
 public:
  Group(int memory_descriptor, const int* sockets, const Member& me);

  // Empty when the group can be used; else what is wrong.
  std::string setup_error() const;
  // Sets every part's output to the left fold, in rank order, over the peers' scaled inputs, and takes the norms that
  // are wanted. Parts of one type must stand together. Outputs may be their own inputs; after a failure they and the
  // norms hold nothing of use.
  MaybeFailure all_reduce(const std::string& tag, std::vector<TensorPart>* parts, Norms* norms);
  GroupBarrier& barrier() { return barrier_; }

 private:
  // Whether all ranks run the same message. Every rank compares; the first to find a difference publishes it.
  MaybeFailure compare_signatures();
  // Step 2 of a chunk: this rank's portion of every block, summed into its own.
  void sum_portion(const Span& chunk, const Layout& layout, int buffer);
  // Step 3 of a chunk: each rank's portion, out of that rank's block.
  void copy_out(const Span& chunk, int buffer, MessageCursor* outputs);

  const Member me_;
  SharedMemory memory_;
  GroupBarrier barrier_;
  std::mutex one_message_;  // ops of one group may be started by several threads
};

// The groups of this process, each under the number by which the graph's ops find it.
void register_group(int64_t number, std::shared_ptr<Group> group);
// Leaves and forgets the group; an op inside it ends with a failure. False when there is none.
bool unregister_group(int64_t number);
// Null when no group has this number.
std::shared_ptr<Group> find_group(int64_t number);
// Keeps why the last message of a group failed, until another group is registered under its number.
void note_failure(int64_t number, const Failure& failure);
// Empty when no message has failed since the group was registered.
MaybeFailure last_failure(int64_t number);

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_GROUP_H_
