#include "crew.h"

#if defined(__unix__) || defined(__APPLE__)
#include <signal.h>
#endif

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace blockscale {
namespace {

// Looks at memory before a thread goes to sleep: some 100 us. Calls often come in a row, and a thread without work waits
// for another's last piece before the next: to be woken each time takes as long as a small matmul.
constexpr int kLooks = 2500;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// While it lives, this thread and those that it starts get no signals.
struct NoSignals {
#if defined(__unix__) || defined(__APPLE__)
  sigset_t before;
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
#endif
};

[[noreturn]] void sleep_on() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

// How long what comes after Crew::close may take before the interpreter ends, if nobody waits for a thread.
constexpr int kStepsToEnd = 50;
constexpr auto kStepToEnd = std::chrono::milliseconds(5);
constexpr auto kLongestClose = std::chrono::seconds(1);

}  // namespace

// The gate holds the helpers inside (lower 16 bits) and the number of the call, which is odd while helpers may enter.
// What the call consists of is written before the gate opens and stays until the last helper has left.
struct Crew::Shared {
  static constexpr uint32_t kCall = 1u << 16;
  static uint32_t inside(uint32_t gate) { return gate % kCall; }
  static uint32_t number(uint32_t gate) { return gate / kCall; }

  std::mutex one_call;
  std::vector<std::thread> threads;
  std::atomic<bool> stop{false};
  alignas(64) std::atomic<uint32_t> gate{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<uint32_t> helpers{0};
  const Job* job = nullptr;
  int64_t pieces = 0;
  std::atomic<bool> ok{true};
  alignas(64) std::atomic<int64_t> next{0};

  std::mutex door;  // of what follows: threads that ask for the interpreter's lock
  std::condition_variable changed;
  int64_t asking = 0;
  bool closed = false;
  std::thread::id closer;

  ~Shared() {
    stop = true;
    gate += kCall;
    gate.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  void start_threads(size_t count) {
    if (threads.size() >= count) return;
    const NoSignals none;  // they are for the threads that the program knows
    try {
      while (threads.size() < count) threads.emplace_back([this] { help(); });
    } catch (const std::system_error&) {  // no more threads to be had: fewer do the work
    }
  }

  void work() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < pieces;)
      if (!(*job)(i)) ok = false;
  }

  // Waits until the gate is no longer as it was.
  void wait(uint32_t old) {
    for (int i = 0; i < kLooks; ++i) {
      if (gate.load(std::memory_order_relaxed) != old) return;
      pause();
    }
    gate.wait(old);
  }

  void help() {
    for (uint32_t last = 0; !stop;) {
      uint32_t now = gate;
      if (number(now) % 2 == 0 || number(now) == last || inside(now) >= helpers) {
        wait(now);
        continue;
      }
      if (!gate.compare_exchange_strong(now, now + 1)) continue;
      last = number(now);
      work();
      if (inside(--gate) == 0 && caller_sleeps) gate.notify_all();
    }
  }

  void open(uint32_t most) {
    next = 0, helpers = most, ok = true, caller_sleeps = false;
    gate += kCall;
    if (most >= threads.size()) return gate.notify_all();
    for (uint32_t i = 0; i < most; ++i) gate.notify_one();
  }

  // Helpers that have not come yet find the gate closed.
  void close() {
    gate += kCall;
    for (int i = 0; i < kLooks && inside(gate); ++i) pause();
    caller_sleeps = true;
    for (uint32_t now; inside(now = gate);) gate.wait(now);
  }
};

Crew::Crew() : shared_(new Shared) {}
Crew::~Crew() { delete shared_; }
void Crew::forget() { shared_ = new Shared; }

bool Crew::run(int64_t pieces, int32_t helpers, const Job& job) {
  Shared& s = *shared_;
  std::unique_lock<std::mutex> alone(s.one_call, std::defer_lock);
  if (helpers > pieces - 1) helpers = static_cast<int32_t>(pieces - 1);
  if (helpers <= 0 || !alone.try_lock()) {
    bool ok = true;
    for (int64_t i = 0; i < pieces; ++i) ok &= job(i);
    return ok;
  }
  s.start_threads(static_cast<size_t>(helpers));
  s.job = &job, s.pieces = pieces;
  s.open(static_cast<uint32_t>(helpers));
  s.work();
  s.close();
  return s.ok;
}

void Crew::ask(bool (*ends)()) {
  Shared& s = *shared_;
  std::unique_lock<std::mutex> lock(s.door);
  const auto open = [&s] { return !s.closed || s.closer == std::this_thread::get_id(); };
  for (int i = 0; i < kStepsToEnd && !s.changed.wait_for(lock, kStepToEnd, open); ++i) {
    if (!ends()) continue;
    lock.unlock();
    sleep_on();
  }
  if (!open()) {  // the interpreter lives on
    s.closed = false;
    s.changed.notify_all();
  }
  ++s.asking;
}

void Crew::have() {
  std::lock_guard<std::mutex> lock(shared_->door);
  --shared_->asking;
  if (shared_->closed) shared_->changed.notify_all();
}

void Crew::close() {
  Shared& s = *shared_;
  std::unique_lock<std::mutex> lock(s.door);
  s.closed = true, s.closer = std::this_thread::get_id();
  s.changed.wait_for(lock, kLongestClose, [&s] { return s.asking == 0; });
}

}  // namespace blockscale
