// Functions that all kernels use: bfloat16 in memory, float in registers, products on AMX tiles.
// They need a CPU with AMX-BF16 and AVX512-BF16 (Intel Xeon since 2023, "Sapphire Rapids").
#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define UP(n, to) (((n) + (to) - 1) / (to) * (to))
#define ALIGNED __attribute__((aligned(64)))
#define INLINE static inline __attribute__((always_inline))
#define LOG2E 1.44269504f

typedef uint16_t bf16;

// Returns a mask of the first `count` of 16 lanes.
INLINE __mmask16 lanes(long count) { return count >= 16 ? 0xffff : (1 << count) - 1; }

INLINE __m512 load(const bf16 *from, long count) {
  __m256i bits = _mm256_maskz_loadu_epi16(lanes(count), from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// Rounds to nearest, ties to even.
INLINE void store(bf16 *to, __m512 x, long count) {
  _mm256_mask_storeu_epi16(to, lanes(count), (__m256i)_mm512_cvtneps_pbh(x));
}

// Interleaves 16 numbers of row i and of row i + 1, as the right factor of a tile product needs.
INLINE __m512i interleave(__m256i even, __m256i odd) {
  __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16);
  return _mm512_or_si512(_mm512_cvtepu16_epi32(even), high);
}

// Returns 2^x with a relative error below 3e-6; NaN for infinite x.
INLINE __m512 exp2_ps(__m512 x) {
  __m512 whole = _mm512_roundscale_ps(x, 0), f = _mm512_sub_ps(x, whole);
  __m512 p = _mm512_set1_ps(1.3333558e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6181291e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, whole);
}

// Returns 1 / sqrt(squares / width + eps), or NaN if the sum of squares overflowed: 1 / infinity would
// be 0, and a row that diverges would become the bias.
INLINE float inverse_deviation(float squares, long width, float eps) {
  return isfinite(squares) ? 1 / sqrtf(squares / width + eps) : NAN;
}

// Transposes 16 rows of 16 32-bit elements in place.
INLINE void transpose(__m512i a[16]) {
  __m512i b[16];
  for (int r = 0; r < 16; r += 2) {
    b[r] = _mm512_unpacklo_epi32(a[r], a[r + 1]);
    b[r + 1] = _mm512_unpackhi_epi32(a[r], a[r + 1]);
  }
  for (int r = 0; r < 16; r += 4) {
    a[r] = _mm512_unpacklo_epi64(b[r], b[r + 2]);
    a[r + 1] = _mm512_unpackhi_epi64(b[r], b[r + 2]);
    a[r + 2] = _mm512_unpacklo_epi64(b[r + 1], b[r + 3]);
    a[r + 3] = _mm512_unpackhi_epi64(b[r + 1], b[r + 3]);
  }
  for (int r = 0; r < 4; r++) {
    b[r] = _mm512_shuffle_i32x4(a[r], a[r + 4], 0x88);
    b[r + 4] = _mm512_shuffle_i32x4(a[r], a[r + 4], 0xdd);
    b[r + 8] = _mm512_shuffle_i32x4(a[r + 8], a[r + 12], 0x88);
    b[r + 12] = _mm512_shuffle_i32x4(a[r + 8], a[r + 12], 0xdd);
  }
  for (int r = 0; r < 4; r++) {
    a[r] = _mm512_shuffle_i32x4(b[r], b[r + 8], 0x88);
    a[r + 8] = _mm512_shuffle_i32x4(b[r], b[r + 8], 0xdd);
    a[r + 4] = _mm512_shuffle_i32x4(b[r + 4], b[r + 12], 0x88);
    a[r + 12] = _mm512_shuffle_i32x4(b[r + 4], b[r + 12], 0xdd);
  }
}

// Requests the tile registers from Linux, once per process. Returns 0 on success.
int prepare(void) {
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) != 0;
}

// Configures eight tiles of 16 rows of 64 bytes for the calling thread, until _tile_release().
INLINE void use_tiles(void) {
  static const struct {
    uint8_t palette, start, zero[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } config = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
  _tile_loadconfig(&config);
}
