// torch's own threads, where it computes with OpenMP. They wait for its next call busily, so threads of ours beside them
// would share the CPUs with them. What is called here is the runtime's C interface, which compilers count on.
#pragma once

#include <dlfcn.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace hardpoint::HARDPOINT_ISA {

// Whether this process is a child of fork that has not begun another program: its OpenMP runtime, if the parent has used
// it, waits for threads that exist in the parent alone. Where that cannot be told, it is taken for one.
inline bool forked() {
    constexpr unsigned FORKED_BUT_NOT_EXECUTED = 0x40;  // PF_FORKNOEXEC
    char text[1024] = {};
    FILE *file = std::fopen("/proc/self/stat", "re");
    if (file == nullptr) return true;
    const size_t size = std::fread(text, 1, sizeof text - 1, file);
    std::fclose(file);
    // The name in brackets may have brackets itself. Behind it: state, parent, group, session, terminal, its group, flags.
    const char *rest = size ? std::strrchr(text, ')') : nullptr;
    unsigned flags = 0;
    if (rest == nullptr || std::sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) != 1) return true;
    return flags & FORKED_BUT_NOT_EXECUTED;
}

class OpenMp {
  public:
    OpenMp() {
        if (forked()) return;
        parallel_ = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
        most_ = reinterpret_cast<Most>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
        if (most_ == nullptr) parallel_ = nullptr;
    }

    // Calls work(item) for each of `count` items on at most `threads` of them; false where there are none to be had.
    // All of torch's threads are woken, since a smaller number would end those left over, to be started anew for torch.
    template <class Work>
    bool run(int threads, int count, const Work &work) const {
        if (parallel_ == nullptr || !startable()) return false;
        struct Shared {
            const Work &work;
            int threads, count;
            std::atomic<int> here{0}, next{0};
        } shared{work, threads, count};
        const auto take = [](void *p) {
            Shared &s = *static_cast<Shared *>(p);
            if (s.here.fetch_add(1, std::memory_order_relaxed) >= s.threads) return;
            for (int i; (i = s.next.fetch_add(1, std::memory_order_relaxed)) < s.count;) s.work(i);
        };
        parallel_(take, &shared, 0, 0);
        return true;
    }

  private:
    using Parallel = void (*)(void (*)(void *), void *, unsigned, unsigned);
    using Most = int (*)();

    // The runtime ends the process where the system refuses it a thread. So before it is asked to by this one for the
    // first time, as many are started as it will want, all there at once; and a limit counts them until they are gone.
    bool startable() const {
        thread_local int tried = 1;
        const int wanted = most_();
        if (wanted <= tried) return true;
        std::vector<std::thread> threads;
        std::vector<std::atomic<long>> numbers(wanted);
        std::mutex closed;
        bool all = true;
        {
            std::lock_guard<std::mutex> until_all_are_there(closed);
            try {
                for (int i = 1; i < wanted; i++)
                    threads.emplace_back([&closed, &number = numbers[i]] {
                        number = own_number();
                        std::lock_guard<std::mutex> wait(closed);
                    });
            } catch (const std::system_error &) {
                all = false;
            }
        }
        for (std::thread &thread : threads) thread.join();
        for (size_t i = 1; i <= threads.size(); i++)
            for (int tries = 0; tries < 1000 && exists(numbers[i]); tries++) std::this_thread::yield();
        if (all) tried = wanted;
        return all;
    }

#if defined(__linux__)
    static long own_number() { return syscall(SYS_gettid); }
    static bool exists(long number) { return syscall(SYS_tgkill, getpid(), number, 0) == 0; }
#else
    static long own_number() { return 0; }
    static bool exists(long) { return false; }
#endif

    Parallel parallel_ = nullptr;
    Most most_ = nullptr;
};

}  // namespace hardpoint::HARDPOINT_ISA
