// The sockets to the other peers. They carry nothing: the kernel closes them with the process, which shows its death.
#ifndef KUNGFU_NATIVE_PEER_SOCKETS_H_
#define KUNGFU_NATIVE_PEER_SOCKETS_H_

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

namespace kungfu {

// Final; owns duplicates of the descriptors that it is given.
class PeerSockets {
 public:
  // `sockets` holds one descriptor per rank; this rank's own is negative.
  PeerSockets(const int* sockets, int size) {
    for (int rank = 0; rank < size; ++rank) {
      // Not inherited by a program that this process starts: the socket would outlive the process by it.
      const int copy = sockets[rank] < 0 ? -1 : fcntl(sockets[rank], F_DUPFD_CLOEXEC, 0);
      if (sockets[rank] >= 0 && copy < 0) complete_ = false;
      sockets_.push_back({copy, POLLRDHUP, 0});
    }
  }
  ~PeerSockets() {
    for (const pollfd& socket : sockets_) {
      if (socket.fd >= 0) close(socket.fd);
    }
  }
  PeerSockets(const PeerSockets&) = delete;
  PeerSockets& operator=(const PeerSockets&) = delete;

  // False where a descriptor could not be duplicated; errno says why.
  bool complete() const { return complete_; }
  // Polls every socket without waiting; afterwards `closed` tells which ranks are gone.
  void poll_all() {
    // A negative descriptor, this rank's own, is passed over by the kernel.
    poll(sockets_.data(), sockets_.size(), 0);
  }
  bool closed(int rank) const {
    // The other end was shut down (left), or the kernel closed it with the process (died), or the descriptor is no good.
    return (sockets_[rank].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
  }
  // Tells the other ends that this one is done, even if a forked child still holds the descriptors.
  void shut_down() {
    for (const pollfd& socket : sockets_) {
      // Closing would not do: the connection lives as long as any process holds the descriptor.
      if (socket.fd >= 0) shutdown(socket.fd, SHUT_RDWR);
    }
  }

 private:
  std::vector<pollfd> sockets_;
  bool complete_ = true;
};

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_PEER_SOCKETS_H_
