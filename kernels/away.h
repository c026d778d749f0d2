// Gives up the interpreter's lock for a kernel's time, as nb::gil_scoped_release does, but see Crew::ask.
#pragma once
#include <nanobind/nanobind.h>

#include "crew.h"

namespace blockscale {

class Away {
 public:
  explicit Away(Crew& crew) : crew_(crew), state_(PyEval_SaveThread()) {}
  ~Away() {
    crew_.ask(interpreter_ends);
    PyEval_RestoreThread(state_);
    crew_.have();
  }
  Away(const Away&) = delete;
  Away& operator=(const Away&) = delete;

 private:
  static bool interpreter_ends() {
#if defined(Py_LIMITED_API)
    return false;  // not told
#elif PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
  }

  Crew& crew_;
  PyThreadState* state_;
};

}  // namespace blockscale
