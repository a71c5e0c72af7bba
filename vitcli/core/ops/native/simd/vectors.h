// Vectors of LANES floats, in the vector extensions of GCC and Clang: 16 for AVX-512, 8 for AVX2 and
// 4 for NEON. LANES is a macro of the command line.
#if LANES >= 8
#include <immintrin.h>
#endif
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define UP(x, m) (((x) + (m) - 1) / (m) * (m))
#define LOG2E 1.44269504f

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec x) { *(vec *)to = x; }
INLINE vec all(float x) { return x - (vec){0}; }
INLINE vec choose(ints mask, vec yes, vec no) { return (vec)(((ints)yes & mask) | ((ints)no & ~mask)); }

INLINE vec larger(vec x, vec y) {  // NaN in x stays
#if LANES == 16
  return (vec)_mm512_max_ps((__m512)y, (__m512)x);  // one instruction instead of three
#elif LANES == 8
  return (vec)_mm256_max_ps((__m256)y, (__m256)x);
#else
  return choose(x < y, y, x);
#endif
}

// Exchanges lanes whose numbers differ in the bit `b`.
#if LANES == 16
#define LANE_NUMBERS(b) 0 ^ b, 1 ^ b, 2 ^ b, 3 ^ b, 4 ^ b, 5 ^ b, 6 ^ b, 7 ^ b, 8 ^ b, 9 ^ b, 10 ^ b, \
    11 ^ b, 12 ^ b, 13 ^ b, 14 ^ b, 15 ^ b
#elif LANES == 8
#define LANE_NUMBERS(b) 0 ^ b, 1 ^ b, 2 ^ b, 3 ^ b, 4 ^ b, 5 ^ b, 6 ^ b, 7 ^ b
#else
#define LANE_NUMBERS(b) 0 ^ b, 1 ^ b, 2 ^ b, 3 ^ b
#endif
#ifdef __clang__
#define SHUFFLE(type, x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define SHUFFLE(type, x, y, ...) __builtin_shuffle(x, y, (type){__VA_ARGS__})
#endif
#define EXCHANGED(x, b) SHUFFLE(ints, x, x, LANE_NUMBERS(b))

INLINE float sum(vec x) {
#if LANES == 16
  x += EXCHANGED(x, 8);
#endif
#if LANES >= 8
  x += EXCHANGED(x, 4);
#endif
  x += EXCHANGED(x, 2);
  x += EXCHANGED(x, 1);
  return x[0];
}

INLINE float maximum(vec x) {
#if LANES == 16
  x = larger(x, EXCHANGED(x, 8));
#endif
#if LANES >= 8
  x = larger(x, EXCHANGED(x, 4));
#endif
  x = larger(x, EXCHANGED(x, 2));
  x = larger(x, EXCHANGED(x, 1));
  return x[0];
}

// Returns 1 / sqrt(squares / width + eps), or NaN if the sum of squares overflowed: 1 / infinity would
// be 0, and a row that diverges would become the bias.
INLINE float inverse_deviation(float squares, long width, float eps) {
  return isfinite(squares) ? 1 / sqrtf(squares / width + eps) : NAN;
}

// Returns 2^x for x <= 127, with a relative error below 2e-7; below 2^-126 it returns 2^-126.
// Polynomial: Cephes, exp2f.
INLINE vec exp2_of(vec x) {
  x = larger(x, all(-126));
  const vec shifted = x + 12582912.f;  // 1.5 * 2^23: rounds to an integer in the lowest bits
  const vec f = x - (shifted - 12582912.f);
  vec p = f * 1.535336188e-4f + 1.339887440e-3f;
  p = p * f + 9.618437357e-3f;
  p = p * f + 5.550332471e-2f;
  p = p * f + 2.402264791e-1f;
  p = p * f + 6.931472028e-1f;
  p = p * f + 1;
  return (vec)((ints)p + ((ints)shifted << 23));
}
