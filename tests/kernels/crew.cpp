// Calls on crews from several threads at once, to be built with -fsanitize=thread: each piece is done once, a call
// ends after its pieces, failures are told. Usage: crew [calls per thread].
#include "crew.h"

#include <stdio.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

using blockscale::Crew;

namespace {

void check(bool ok, const char* what) {
  if (ok) return;
  fprintf(stderr, "crew: %s\n", what);
  exit(1);
}

void calls(Crew& crew, int count, unsigned seed) {
  for (int c = 0; c < count; ++c) {
    seed = seed * 1664525u + 1013904223u;
    const int64_t rows = seed >> 8 & 63;
    const int32_t threads = 1 + (seed >> 16 & 7);
    const int64_t failing = seed >> 20 & 127;
    const bool slow = seed >> 27 == 0;  // long enough for threads that wait to fall asleep
    std::vector<int> done(static_cast<size_t>(rows));  // plain: a piece has its rows to itself
    const bool ok = blockscale::over_rows(crew, threads, rows, [&](int64_t, int64_t begin, int64_t end) {
      bool good = true;
      if (slow && begin % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
      for (int64_t i = begin; i < end; ++i) ++done[static_cast<size_t>(i)], good &= i != failing;
      return good;
    });
    for (const int times : done) check(times == 1, "a row was not done once");
    check(ok == (failing >= rows), "a failure was not told");
    if (slow) std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
}

// Threads that come and go until the interpreter ends, or does not: after closing, none is where it asks for the lock.
std::atomic<bool> ended{false};

void closing(bool ends) {
  ended = false;
  auto* crew = new Crew;  // outlives threads that never end
  auto *asking = new std::atomic<int>{0}, *working = new std::atomic<int>{3};
  auto* stop = new std::atomic<bool>{false};
  for (int t = 0; t < 3; ++t)
    std::thread([=] {
      while (!*stop) {
        crew->run(4, 1, [](int64_t) { return true; });
        crew->ask([] { return ended.load(); });
        ++*asking;
        std::this_thread::yield();
        --*asking;
        crew->have();
      }
      --*working;
    }).detach();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  crew->close();
  check(*asking == 0, "a thread asked after closing");
  crew->ask([] { return true; });  // who closed may go on
  crew->have();
  ended = ends, *stop = true;
  for (int i = 0; i < 100 && (i < 4 || *working); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (ends && i == 3) break;
  }
  check(ends ? *asking == 0 : *working == 0, ends ? "a thread went on after the end" : "a thread waits for no end");
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? atoi(argv[1]) : 2000;
  for (int round = 0; round < 4; ++round) {
    Crew crew;
    std::vector<std::thread> callers;
    for (unsigned t = 0; t < 3; ++t) callers.emplace_back([&, t] { calls(crew, count, t + 7u * round); });
    for (std::thread& caller : callers) caller.join();
    crew.forget();  // as in a forked child; the threads of before are left alone
    calls(crew, count / 8, 1);
  }
  for (int round = 0; round < 4; ++round) closing(round % 2);
  printf("crew: %d calls, 0 failures\n", 4 * (3 * count + count / 8));
}
