// Gives up the interpreter's lock for a kernel's time, as nb::gil_scoped_release does, but see Crew::close.
#pragma once
#include <nanobind/nanobind.h>

#include "crew.h"

namespace blockscale {

class Away {
 public:
  explicit Away(Crew& crew) : crew_(crew), state_(PyEval_SaveThread()) { crew_.away(); }
  ~Away() {
    crew_.back();
    PyEval_RestoreThread(state_);
    crew_.here();
  }
  Away(const Away&) = delete;
  Away& operator=(const Away&) = delete;

 private:
  Crew& crew_;
  PyThreadState* state_;
};

}  // namespace blockscale
