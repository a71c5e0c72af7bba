// The tile instructions of AMX in plain C, for processors with AVX-512 but without AMX. Include this
// file before all others.
// Each thread has eight tiles of 16 rows of 64 bytes. Sums are float. The last bits may
// differ from a real AMX unit.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
  uint32_t word[16][16];
} emulated_tile;

static __thread emulated_tile emulated_tiles[8];

static inline void emulated_loadd(int tile, const void *from, long stride) {
  for (int r = 0; r < 16; r++)
    memcpy(emulated_tiles[tile].word[r], (const char *)from + r * stride, 64);
}

static inline void emulated_stored(int tile, void *to, long stride) {
  for (int r = 0; r < 16; r++)
    memcpy((char *)to + r * stride, emulated_tiles[tile].word[r], 64);
}

static inline float emulated_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// c += a b. Each 32-bit word holds a pair of bfloat16, the first in the lower half.
static inline void emulated_dpbf16ps(int c, int a, int b) {
  for (int m = 0; m < 16; m++) {
    float sums[16];
    memcpy(sums, emulated_tiles[c].word[m], 64);
    for (int k = 0; k < 16; k++) {
      const uint32_t left = emulated_tiles[a].word[m][k];
      const float even = emulated_float(left << 16), odd = emulated_float(left & 0xffff0000u);
      for (int n = 0; n < 16; n++) {
        const uint32_t right = emulated_tiles[b].word[k][n];
        sums[n] += even * emulated_float(right << 16);
        sums[n] += odd * emulated_float(right & 0xffff0000u);
      }
    }
    memcpy(emulated_tiles[c].word[m], sums, 64);
  }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) ((void)(config))
#define _tile_release() ((void)0)
#define _tile_zero(tile) memset(&emulated_tiles[tile], 0, sizeof(emulated_tile))
#define _tile_loadd(tile, from, stride) emulated_loadd(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated_stored(tile, to, stride)
#define _tile_dpbf16ps(c, a, b) emulated_dpbf16ps(c, a, b)
#define syscall(...) 0  // the registers need no permission

#ifndef __AVX512BF16__
// bfloat16 with AVX-512 only. Rounds to nearest, ties to even. NaN stays NaN.
static inline __m256i emulated_cvtneps_pbh(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
  const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  rounded = _mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7fc00000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

static inline __m512 emulated_dpbf16_ps(__m512 sum, __m512i a, __m512i b) {
  const __m512i high = _mm512_set1_epi32(0xffff0000);
  const __m512 odd_a = _mm512_castsi512_ps(_mm512_and_si512(a, high));
  const __m512 odd_b = _mm512_castsi512_ps(_mm512_and_si512(b, high));
  const __m512 even_a = _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
  const __m512 even_b = _mm512_castsi512_ps(_mm512_slli_epi32(b, 16));
  return _mm512_fmadd_ps(even_a, even_b, _mm512_fmadd_ps(odd_a, odd_b, sum));
}

#define _mm512_cvtneps_pbh(x) emulated_cvtneps_pbh(x)
#define _mm512_dpbf16_ps(sum, a, b) emulated_dpbf16_ps(sum, (__m512i)(a), (__m512i)(b))
#endif
