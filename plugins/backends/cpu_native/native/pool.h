// Threads that wait for work between calls: torch's own where they may be used, else ours. The caller takes part, and
// items are taken one by one, so that a CPU which somebody else keeps busy delays its own item only.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <unistd.h>

#include "openmp.h"

namespace hardpoint::HARDPOINT_ISA {

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

class Pool {
  public:
    // Calls work(item) for each of `count` items on at most `threads` threads, the caller being one. A second caller
    // at the same time works alone: waiting for the first one's threads would gain nothing. `work` must not throw.
    template <class Work>
    void run(int threads, int count, const Work &work) {
        std::unique_lock<std::mutex> only(callers_, std::try_to_lock);
        if (threads > count) threads = count;
        if (threads <= 1 || !only.owns_lock()) {
            for (int i = 0; i < count; i++) work(i);
            return;
        }
        if (openmp_.run(threads, count, work)) return;
        grow(threads - 1);
        call_ = [](const void *w, int i) { (*static_cast<const Work *>(w))(i); };
        work_ = &work;
        count_ = count;
        helpers_ = threads - 1;
        next_.store(0);
        open_.store(true);
        {
            // Under the lock, so that no thread falls asleep between its look and our call.
            std::lock_guard<std::mutex> lock(mutex_);
            generation_.fetch_add(1);
        }
        wake_.notify_all();
        take();
        // A thread that has not begun by now finds the door closed: nobody waits for one that did not wake in time.
        open_.store(false);
        for (int spins = 0; active_.load() != 0; spins++) {
            if (spins < 2000) relax();
            else std::this_thread::yield();
        }
    }

    // The process's pool. A child of fork has none of its parent's threads, so it gets its own; the parent's is left
    // as it is, since its locks may be held by threads that do not exist here.
    static Pool &instance() {
        static std::atomic<Pool *> current{nullptr};
        pid_t here = getpid();
        Pool *pool = current.load(std::memory_order_acquire);
        while (pool == nullptr || pool->owner_ != here) {
            Pool *fresh = new Pool(here);
            if (current.compare_exchange_strong(pool, fresh, std::memory_order_acq_rel)) return *fresh;
            delete fresh;
        }
        return *pool;
    }

  private:
    explicit Pool(pid_t owner) : owner_(owner) {}

    void grow(int wanted) {
        for (; workers_ < wanted; workers_++) {
            int number = workers_;
            uint64_t seen = generation_.load();
            try {
                std::thread([this, number, seen] { serve(number, seen); }).detach();
            } catch (const std::system_error &) {
                return;  // no more threads to be had: those that are there do
            }
        }
    }

    void take() {
        for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) call_(work_, i);
    }

    void serve(int number, uint64_t seen) {
        for (;;) {
            // The next layer calls soon; a sleeping thread would take longer to wake than a short call takes.
            for (int spins = 0; spins < 3000 && generation_.load(std::memory_order_acquire) == seen; spins++) relax();
            if (generation_.load() == seen) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return generation_.load() != seen; });
            }
            seen = generation_.load();
            // First say that we are here, then look whether the door is open; the caller does it the other way round.
            active_.fetch_add(1);
            if (open_.load() && number < helpers_) take();
            active_.fetch_sub(1);
        }
    }

    const pid_t owner_;
    const OpenMp openmp_;
    std::mutex callers_, mutex_;
    std::condition_variable wake_;
    std::atomic<uint64_t> generation_{0};
    std::atomic<bool> open_{false};
    std::atomic<int> next_{0}, active_{0};
    int count_ = 0, helpers_ = 0, workers_ = 0;
    void (*call_)(const void *, int) = nullptr;
    const void *work_ = nullptr;
};

}  // namespace hardpoint::HARDPOINT_ISA
