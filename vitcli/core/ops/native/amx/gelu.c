// GELU, x Phi(x), and its gradient, in bfloat16.
#include "amx.h"

// Returns the normal distribution function Phi(x) with an error below 1e-7, and writes its density,
// which is 0 below 2^-121: a multiple of it would not be small for x near 1e38.
// Abramowitz and Stegun 1964, formula 26.2.17.
INLINE __m512 phi(__m512 x, __m512 *density) {
  __m512 t = _mm512_fmadd_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.2316419f), _mm512_set1_ps(1));
  t = _mm512_div_ps(_mm512_set1_ps(1), t);
  __m512 square = _mm512_max_ps(_mm512_mul_ps(x, _mm512_mul_ps(x, _mm512_set1_ps(-0.5f * LOG2E))), _mm512_set1_ps(-120));
  __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
  __mmask16 seen = _mm512_cmp_ps_mask(square, _mm512_set1_ps(-120), _CMP_GT_OQ);
  *density = _mm512_maskz_mul_ps(seen, exp2_ps(square), _mm512_set1_ps(0.39894228f));
  __m512 p = _mm512_set1_ps(1.330274429f);
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.821255978f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.781477937f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.356563782f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.319381530f));
  __m512 tail = _mm512_mul_ps(_mm512_mul_ps(p, t), *density);
  return _mm512_mask_sub_ps(tail, positive, _mm512_set1_ps(1), tail);
}

void forward(const bf16 *x, bf16 *y, long count, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long i = 0; i < count; i += 16) {
    __m512 value = load(x + i, count - i), density;
    store(y + i, _mm512_mul_ps(value, phi(value, &density)), count - i);
  }
}

void backward(const bf16 *grad_y, const bf16 *x, bf16 *grad_x, long count, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long i = 0; i < count; i += 16) {
    __m512 value = load(x + i, count - i), density, below = phi(value, &density);
    __m512 slope = _mm512_fmadd_ps(value, density, below);
    store(grad_x + i, _mm512_mul_ps(load(grad_y + i, count - i), slope), count - i);
  }
}
