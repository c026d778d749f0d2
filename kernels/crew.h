// Threads that share the pieces of one kernel's work. Kernels stay single-threaded functions over a range of rows:
// a crew calls them. Waking a thread of Python's own takes as long as a small matmul.
#pragma once
#include <stdint.h>

#include <functional>

namespace blockscale {

class Crew {
 public:
  using Job = std::function<bool(int64_t piece)>;  // must not throw

  Crew();
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Calls job(i) once for each 0 <= i < pieces, here and on up to `helpers` other threads, which are started when
  // first needed; returns whether all returned true. A call that meets another one does its work alone.
  bool run(int64_t pieces, int32_t helpers, const Job& job);

  // In a forked child: the threads stayed with the parent. What they share stays allocated, as it may be in use.
  void forget();

  // Around taking the interpreter's lock back: `ask` before, `have` after. A thread that asks when the interpreter ends
  // would be unwound in the midst of C++, which ends the process. So once the crew is closed `ask` waits in other
  // threads than the one that closed: for ever if `ends()`, else until it is clear that someone waits for this thread.
  void ask(bool (*ends)());
  void have();

  // Before the interpreter ends, without its lock: returns when no other thread is between `ask` and `have`.
  void close();

 private:
  struct Shared;
  Shared* shared_;
};

// Rows [0, rows) cut into pieces for `threads` threads: job(piece, begin, end). Several pieces each, so that none waits
// long for the last.
template <typename RowsJob>
bool over_rows(Crew& crew, int32_t threads, int64_t rows, const RowsJob& job, int64_t each = 4) {
  const int64_t most = threads == 1 ? 1 : threads * each;
  const int64_t pieces = rows < most ? rows : most;
  return crew.run(pieces, threads - 1,
                  [&](int64_t i) { return job(i, rows * i / pieces, rows * (i + 1) / pieces); });
}

}  // namespace blockscale
