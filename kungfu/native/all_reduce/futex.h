// Sleeping on a word of memory until another thread wakes the sleepers.
#ifndef KUNGFU_NATIVE_FUTEX_H_
#define KUNGFU_NATIVE_FUTEX_H_

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace kungfu {

// Sleeps while the word equals `seen`, for at most `most_ns` (less than a second); may return early.
inline void sleep_on(std::atomic<uint32_t>* word, uint32_t seen, long most_ns) {
  const timespec timeout = {0, most_ns};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

// Wakes all threads that sleep on the word, in any process that has mapped it.
inline void wake_all_on(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace kungfu

#endif  // KUNGFU_NATIVE_FUTEX_H_
