// The gradients of the weight and the bias of a linear layer.
#include "amx.h"

enum { BLOCK = 256, TILE = 16 * 32, STRIP = BLOCK / 32 * TILE };

// Packs x (rows, width) as a strip of tiles [rows / 32][16][16][2] for every 16 columns.
static void pack_right(const bf16 *x, long rows, long width, bf16 *to) {
  for (long i = 0; i < UP(rows, 32); i += 2)
    for (long k = 0; k < width; k += 16) {
      const bf16 *from = x + i * width + k;
      __m256i even = _mm256_maskz_loadu_epi16(i < rows ? -1 : 0, from);
      __m256i odd = _mm256_maskz_loadu_epi16(i + 1 < rows ? -1 : 0, from + width);
      _mm512_store_si512(to + k / 16 * STRIP + i * 16, interleave(even, odd));
    }
}

// Packs 16 columns of g (rows, width), or 32 if tall, transposed as a strip of tiles
// [rows / 32][16][32] for every 16 columns. Adds the sums of the columns to bias.
static void pack_left(const bf16 *g, long rows, long width, int tall, bf16 *to, float *bias) {
  const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
  const __mmask32 columns = tall ? -1 : 0xffff;
  __m512 low = _mm512_setzero_ps(), high = _mm512_setzero_ps();
  for (long i = 0; i < rows; i += 32) {
    __m512i a[16], b[16];
    for (int r = 0; r < 16; r++) {
      const bf16 *from = g + (i + 2 * r) * width;
      __m512i even = _mm512_maskz_loadu_epi16(i + 2 * r < rows ? columns : 0, from);
      __m512i odd = _mm512_maskz_loadu_epi16(i + 2 * r + 1 < rows ? columns : 0, from + width);
      a[r] = interleave(_mm512_castsi512_si256(even), _mm512_castsi512_si256(odd));
      b[r] = interleave(_mm512_extracti64x4_epi64(even, 1), _mm512_extracti64x4_epi64(odd, 1));
      low = _mm512_dpbf16_ps(low, (__m512bh)a[r], ones);
      high = _mm512_dpbf16_ps(high, (__m512bh)b[r], ones);
    }
    transpose(a);
    for (int r = 0; r < 16; r++) _mm512_store_si512(to + i / 32 * TILE + r * 32, a[r]);
    if (!tall) continue;
    transpose(b);
    for (int r = 0; r < 16; r++) _mm512_store_si512(to + STRIP + i / 32 * TILE + r * 32, b[r]);
  }
  _mm512_storeu_ps(bias, _mm512_add_ps(_mm512_loadu_ps(bias), low));
  if (tall) _mm512_storeu_ps(bias + 16, _mm512_add_ps(_mm512_loadu_ps(bias + 16), high));
}

// c += left right, for 32 rows of c (16 if not tall) and 32 columns (16 if not wide).
INLINE void multiply(const bf16 *left, const bf16 *right, long steps, float *c, long width,
                     int tall, int wide) {
  _tile_loadd(0, c, width * 4);
  if (tall) _tile_loadd(1, c + 16 * width, width * 4);
  if (wide) _tile_loadd(2, c + 16, width * 4);
  if (tall && wide) _tile_loadd(3, c + 16 * width + 16, width * 4);
  for (long s = 0; s < steps; s++, left += TILE, right += TILE) {
    _tile_loadd(4, left, 64);
    _tile_loadd(6, right, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (tall) {
      _tile_loadd(5, left + STRIP, 64);
      _tile_dpbf16ps(1, 5, 6);
    }
    if (wide) {
      _tile_loadd(7, right + STRIP, 64);
      _tile_dpbf16ps(2, 4, 7);
      if (tall) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, width * 4);
  if (tall) _tile_stored(1, c + 16 * width, width * 4);
  if (wide) _tile_stored(2, c + 16, width * 4);
  if (tall && wide) _tile_stored(3, c + 16 * width + 16, width * 4);
}

// Returns the bytes of scratch memory for each thread, from the number of inputs of the layer.
long scratch_bytes(long in) { return (in / 16 + 2) * STRIP * sizeof(bf16); }

// Computes weight (out, in) = g^T x and bias (out) = column sums of g, from g (rows, out) and
// x (rows, in). out and in are multiples of 16. Each thread computes its own columns of g, so the
// result does not depend on the number of threads. scratch has scratch_bytes() for each thread,
// aligned to 64 bytes.
void weight_gradient(const bf16 *g, const bf16 *x, float *weight, float *bias, long rows, long out,
                     long in, char *scratch, int threads) {
#pragma omp parallel num_threads(threads)
  {
    const long thread = omp_get_thread_num(), team = omp_get_num_threads(), tiles = out / 16;
    const long first = tiles * thread / team * 16, last = tiles * (thread + 1) / team * 16;
    bf16 *left = (bf16 *)(scratch + thread * scratch_bytes(in)), *right = left + 2 * STRIP;
    use_tiles();
    memset(weight + first * in, 0, (last - first) * in * sizeof(float));
    memset(bias + first, 0, (last - first) * sizeof(float));
    for (long i = 0; i < rows && first < last; i += BLOCK) {
      const long count = rows - i < BLOCK ? rows - i : BLOCK;
      pack_right(x + i * in, count, in, right);
      for (long n = first; n < last; n += 32) {
        const int tall = n + 16 < last;
        pack_left(g + i * out + n, count, out, tall, left, bias + n);
        for (long k = 0; k < in; k += 32)
          multiply(left, right + k / 16 * STRIP, UP(count, 32) / 32, weight + n * in + k, in, tall,
                   k + 16 < in);
      }
    }
    _tile_release();
  }
}
