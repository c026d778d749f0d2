// The error near a scale, where its codes stay what they are, for the search of optimal_signed.inl.h.

namespace group_search {

// The scales about one that give the same codes: parabolas of the error.
struct Cells {
  Floats lo[kSets], hi[kSets], error_lo[kSets], error_hi[kSets];
};

// The codes of a storable scale s, and how far they reach: u = 1 / s may grow by the part `grow` of it, or fall by
// `fall`, before an element comes to a half. Both are 2^-18 short, so that no rounding matters between; they are not
// positive where an element is as near as that. Codes beyond the ends count as if there were some: what is found is
// only the smaller.
//
// There the error is the parabola error - 2 t product + t^2 squares. Float32 sums err by `relative` of their terms,
// of which 2 t |d k| is at most d^2 + t^2 k^2: in all by 2 relative (error + t^2 squares).
struct Fit {
  Floats error = {}, squares = {}, product = {}, grow = spread(0.5f), fall = spread(0.5f);
  [[gnu::always_inline]] Fit(const Floats* x, int64_t n, const Ends& ends, Floats s) {
    const Floats inverse = 1.0f / s;
    Floats errors[2] = {};
    for (int64_t i = 0; i < n; i += 2)
      for (int j = 0; j < 2; ++j) {
        const Floats w = x[(i + j) * kSets], v = w * inverse, whole = rounded(v);
        const Floats k = minimum(maximum(whole, ends.lo), ends.hi), d = less_product(w, s, k);
        errors[j] = plus_product(errors[j], d, d);
        squares = plus_product(squares, k, k);
        product = plus_product(product, d, k);
        const Floats size = magnitude(v), rest = size - magnitude(whole), part = coarse_reciprocal(size);
        grow = minimum((0.5f - rest) * part, grow);
        fall = minimum((0.5f + rest) * part, fall);
      }
    error = errors[0] + errors[1];
    grow = grow * (1 - 0x1p-10f) - 0x1p-18f, fall = fall * (1 - 0x1p-10f) - 0x1p-18f;
  }
  Floats lo(Floats s) const { return (Floats)((Words)(s * (1 - grow + grow * grow)) | 1u); }  // no storable scales
  Floats hi(Floats s) const { return (Floats)((Words)(s * (1 + fall)) | 1u); }
  // Of a scale that is larger by t.
  Floats at(Floats t) const { return error + t * (t * squares - 2 * product); }
  Floats unsure(Floats t, float relative) const { return 2 * relative * (error + t * t * squares); }
  Floats at_least(Floats t, float relative) const { return maximum(at(t) - unsure(t, relative), Floats{}); }
};

}  // namespace group_search
