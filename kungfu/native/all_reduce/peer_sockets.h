// The sockets to the other peers. They carry nothing: the kernel closes them with the process, which shows its death.
#ifndef KUNGFU_NATIVE_PEER_SOCKETS_H_
#define KUNGFU_NATIVE_PEER_SOCKETS_H_

#include <poll.h>

#include <vector>

namespace kungfu {

// Final; owns duplicates of the descriptors that it is given.
class PeerSockets {
 public:
  // `sockets` holds one descriptor per rank; this rank's own is negative.
  PeerSockets(const int* sockets, int size);
  ~PeerSockets();
  PeerSockets(const PeerSockets&) = delete;
  PeerSockets& operator=(const PeerSockets&) = delete;

  // False where a descriptor could not be duplicated; errno says why.
  bool complete() const { return complete_; }
  // Polls every socket without waiting; afterwards `closed` tells which ranks are gone.
  void poll_all();
  bool closed(int rank) const;
  // Tells the other ends that this one is done, even if a forked child still holds the descriptors.
  void shut_down();

 private:
  std::vector<pollfd> sockets_;
  bool complete_ = true;
};

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_PEER_SOCKETS_H_
