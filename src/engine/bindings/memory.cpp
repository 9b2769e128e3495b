// Allocates memory for results and scratch buffers. Large blocks that are freed are cached for the next call, because
// clearing fresh pages takes longer than writing results.
//
// The cache holds at most a sixteenth of the machine's memory. The kernel may reclaim the pages of its larger blocks when
// memory is short (MADV_FREE), so the cache takes hardly anything away from others. Small blocks come from malloc.
#include <mutex>
#include <utility>

#include "build/build.hpp"

#if defined(__linux__)
#include <pthread.h>
#include <unistd.h>
#endif

namespace hitbox {
namespace {

constexpr size_t HEADER = 64;  // bytes before the caller's memory; they store the block's size
constexpr size_t LARGE_BYTES = size_t(1) << 18;
constexpr size_t RECLAIMABLE_BYTES = size_t(4) << 20;  // telling the kernel takes longer than it is worth for less
constexpr u32 CACHED_BLOCKS = 16;

// A block with its header.
struct Block {
  char* at = nullptr;
  size_t bytes = 0;
};

size_t bytes_of(const char* at) {
  size_t bytes;
  std::memcpy(&bytes, at, sizeof bytes);
  return bytes;
}

size_t max_cached_bytes() {
#if defined(__linux__) && defined(MADV_FREE)
  long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? size_t(pages) / 16 * size_t(size) : 0;
#else
  return 0;
#endif
}

void mark_reclaimable(Block block) {
#if defined(__linux__) && defined(MADV_FREE)
  constexpr std::uintptr_t page = 4096;
  if (block.bytes < RECLAIMABLE_BYTES) return;
  std::uintptr_t from = (reinterpret_cast<std::uintptr_t>(block.at) + HEADER + page - 1) / page * page;
  std::uintptr_t to = (reinterpret_cast<std::uintptr_t>(block.at) + block.bytes) / page * page;
  if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_FREE);
#else
  (void)block;
#endif
}

// Threads that find the cache locked bypass it. Only fork waits for the lock: the child must find the cache unlocked and
// consistent.
class FreeBlockCache {
 public:
  // The smallest block that is large enough, but less than about twice as large.
  Block take(size_t bytes) {
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    Block* best = nullptr;
    for (Block& one : blocks_)
      if (lock && one.bytes >= bytes && one.bytes / 2 <= bytes && (!best || one.bytes < best->bytes)) best = &one;
    if (!best) return {};
    total_ -= best->bytes;
    return std::exchange(*best, {});
  }

  // Returns false if the block was not cached.
  bool put(Block block) {
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    static const size_t max_bytes = max_cached_bytes();
    if (!lock || block.bytes > max_bytes) return false;
    u32 slot = next_++ % CACHED_BLOCKS;  // round robin: the oldest block
    for (u32 i = 0; i < CACHED_BLOCKS && (blocks_[slot].at || total_ + block.bytes > max_bytes); ++i) {
      Block& oldest = blocks_[(slot + i) % CACHED_BLOCKS];
      total_ -= oldest.bytes;
      std::free(std::exchange(oldest, {}).at);
    }
    mark_reclaimable(block);
    blocks_[slot] = block;
    total_ += block.bytes;
    return true;
  }

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  Block blocks_[CACHED_BLOCKS];
  size_t total_ = 0;
  u32 next_ = 0;
};

FreeBlockCache cache;
#if defined(__linux__)
[[maybe_unused]] const int fork_handlers =
    pthread_atfork([] { cache.lock(); }, [] { cache.unlock(); }, [] { cache.unlock(); });
#endif

char* allocate_block(size_t bytes) {
  void* at = bytes < LARGE_BYTES ? std::malloc(bytes) : aligned_memory(bytes);
  if (!at) throw std::bad_alloc();
  return static_cast<char*>(at);
}

}  // namespace

void* resize_memory(void* memory, size_t bytes) {
  char* old = memory ? static_cast<char*>(memory) - HEADER : nullptr;
  size_t before = old ? bytes_of(old) : 0, after = bytes + HEADER;
  if (after <= before) return memory;
  Block block;
  if (after >= LARGE_BYTES) block = cache.take(after);
  if (!block.at && old) {
    block = {static_cast<char*>(std::realloc(old, after)), after};
    if (!block.at) throw std::bad_alloc();
    if (after >= LARGE_BYTES) prefer_large_pages(block.at, after);
    old = nullptr;
  }
  if (!block.at) block = {allocate_block(after), after};
  if (old) {
    std::memcpy(block.at + HEADER, old + HEADER, before - HEADER);
    free_memory(memory);
  }
  std::memcpy(block.at, &block.bytes, sizeof block.bytes);
  return block.at + HEADER;
}

void* trim_memory(void* memory, size_t bytes) noexcept {
  char* at = static_cast<char*>(memory) - HEADER;
  size_t after = bytes + HEADER;
  if (bytes_of(at) >= LARGE_BYTES || bytes_of(at) <= after) return memory;
  char* less = static_cast<char*>(std::realloc(at, after));
  if (!less) return memory;
  std::memcpy(less, &after, sizeof after);
  return less + HEADER;
}

void free_memory(void* memory) noexcept {
  if (!memory) return;
  char* at = static_cast<char*>(memory) - HEADER;
  size_t bytes = bytes_of(at);
  if (bytes < LARGE_BYTES || !cache.put({at, bytes})) std::free(at);
}

}  // namespace hitbox
