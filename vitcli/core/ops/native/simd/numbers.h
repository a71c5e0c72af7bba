// Numbers, the factors of products: float, or bf16 if the macro HALF is defined.
//
// A product multiplies elements of 32 bits: one float, or a pair of bf16, whose two products it adds.
// Numbers that are summed along their row are pairs already. Numbers that are summed over rows are
// woven first: each number of an even row becomes a pair with the number below it.
#include "vectors.h"

#ifndef HALF

enum { PER = 1 };  // numbers in an element
typedef float number;
#define ONES 1.f

INLINE vec load_numbers(const number *from) { return load(from); }
INLINE void store_numbers(number *to, vec x) { store(to, x); }
INLINE void store_some(number *to, vec x, long count) {
  for (long i = 0; i < count; i++) to[i] = x[i];
}

INLINE vec weave_floats(const float *even, const float *odd) { return (void)odd, load(even); }
INLINE vec add_product(vec total, vec x, vec y) { return total + x * y; }

// Returns count numbers: x, or x rounded in the room.
INLINE const number *rounded(const float *x, long count, number *room) {
  return (void)count, (void)room, x;
}

// Returns woven rows, as far apart as the rows of x: x, or x woven in the room.
INLINE const float *woven(const number *x, long row, long rows, long width, float *room) {
  return (void)row, (void)rows, (void)width, (void)room, x;
}

// to (ceil(rows / PER), UP(count)) = from (rows, count), woven and filled with zeros.
INLINE void weave_rows(const number *from, long row, float *to, long rows, long count) {
  const long whole = count / LANES * LANES, wide = UP(count, LANES);
  if (wide > count) memset(to, 0, rows * wide * sizeof(float));
  for (long i = 0; i < rows; i++, from += row, to += wide) {
    for (long j = 0; j < whole; j += LANES) store(to + j, load(from + j));
    for (long j = whole; j < count; j++) to[j] = from[j];
  }
}

#else

enum { PER = 2 };
typedef uint16_t number __attribute__((may_alias));
#define ONES 1.0019378662109375f  // its bits are two ones in bf16

INLINE __m256i narrow(vec x) { return (__m256i)_mm512_cvtneps_pbh((__m512)x); }
INLINE __mmask16 first(long count) { return count >= LANES ? 0xffff : (1 << count) - 1; }

INLINE vec load_numbers(const number *from) {
  return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16);
}
INLINE void store_numbers(number *to, vec x) { _mm256_storeu_si256((void *)to, narrow(x)); }
INLINE void store_some(number *to, vec x, long count) {
  _mm256_mask_storeu_epi16(to, first(count), narrow(x));
}

INLINE vec weave(__m256i even, __m256i odd) {
  const __m512i low = _mm512_cvtepu16_epi32(even), high = _mm512_cvtepu16_epi32(odd);
  return (vec)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

INLINE vec weave_floats(const float *even, const float *odd) {
  return weave(narrow(load(even)), narrow(load(odd)));
}

// With the intrinsic instead of assembly, GCC 12 stores all sums of a tile in every step.
INLINE vec add_product(vec total, vec x, vec y) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(total) : "v"(x), "v"(y));
  return total;
}

INLINE const number *rounded(const float *x, long count, number *room) {
  for (long i = 0; i < count; i += LANES) store_numbers(room + i, load(x + i));
  return room;
}

INLINE void weave_to(const number *from, long row, float *to, long to_row, long rows, long count) {
  for (long i = 0; i < rows; i += 2, from += 2 * row, to += to_row)
    for (long j = 0; j < count; j += LANES) {
      const __mmask16 here = first(count - j), below = i + 1 < rows ? here : 0;
      store(to + j, weave(_mm256_maskz_loadu_epi16(here, from + j),
                          _mm256_maskz_loadu_epi16(below, from + row + j)));
    }
}
INLINE const float *woven(const number *x, long row, long rows, long width, float *room) {
  weave_to(x, row, room, row, rows, width);
  return room;
}
INLINE void weave_rows(const number *from, long row, float *to, long rows, long count) {
  weave_to(from, row, to, UP(count, LANES), rows, count);
}
#endif
