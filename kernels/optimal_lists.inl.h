// The rule `optimal`: breakpoints in order, growing lists, the order of ties, sums per zero point.

struct Breakpoint {
  double u;
  int64_t i;
};

// Stable merge sort by u: std::sort would be a library template (see variant.cpp).
inline void sort_breakpoints(Breakpoint* a, Breakpoint* spare, int64_t n) {
  for (int64_t width = 1; width < n; width *= 2) {
    for (int64_t begin = 0; begin < n; begin += 2 * width) {
      const int64_t mid = begin + width < n ? begin + width : n;
      const int64_t end = begin + 2 * width < n ? begin + 2 * width : n;
      int64_t i = begin, j = mid, k = begin;
      while (i < mid && j < end) spare[k++] = a[j].u < a[i].u ? a[j++] : a[i++];
      while (i < mid) spare[k++] = a[i++];
      while (j < end) spare[k++] = a[j++];
    }
    Breakpoint* t = a;
    a = spare;
    spare = t;
  }
}

template <typename T>
struct List {
  T* data = nullptr;
  int64_t n = 0, room = 0;
  bool failed = false;
  ~List() { free(data); }
  void push(const T& v) {
    if (n == room) {
      const int64_t more = room ? 2 * room : 256;
      T* p = static_cast<T*>(realloc(data, static_cast<size_t>(more) * sizeof(T)));
      if (!p) {
        failed = true;
        return;
      }
      data = p;
      room = more;
    }
    data[n++] = v;
  }
};

struct Candidate {
  double s, saving;
};

struct Optimum {
  double err, s, z;
  bool in_range;
};

// The order of ties: zero point in range, smaller |s|, positive s, smaller |z|, positive z.
inline bool precedes(const Optimum& a, const Optimum& b) {
  if (a.err != b.err) return a.err < b.err;
  if (a.in_range != b.in_range) return a.in_range;
  if (absolute(a.s) != absolute(b.s)) return absolute(a.s) < absolute(b.s);
  if (a.s != b.s) return a.s > b.s;
  if (absolute(a.z) != absolute(b.z)) return absolute(a.z) < absolute(b.z);
  return a.z > b.z;
}

// Lattice codes clipped to `qmin + shift .. qmax + shift`, summed; shift is minus the zero point.
struct Windows {
  double* a;  // sum w x k per shift
  double* q;  // sum w k k per shift
  int64_t first = 0, count = 0;
  int64_t clamp(double shift) const {
    const double last = static_cast<double>(first + count - 1);
    return static_cast<int64_t>(clip(shift, static_cast<double>(first), last)) - first;
  }
};
