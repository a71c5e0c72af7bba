// LayerNorm over the last WIDTH features of float rows, fused with the residual sum before it.
#include "amx.h"

enum { VECTORS = UP(WIDTH, 16) / 16 };
#define EACH(v) _Pragma("GCC unroll 8") for (int v = 0; v < VECTORS; v++)
#define COUNT(v) (WIDTH - 16 * (v))

INLINE __m512 part(const float *from, int v) { return _mm512_maskz_loadu_ps(lanes(COUNT(v)), from + 16 * v); }
INLINE void put(float *to, int v, __m512 x) { _mm512_mask_storeu_ps(to + 16 * v, lanes(COUNT(v)), x); }

// Computes sum = x + branch and y = norm(sum) weight + bias. If branch is null, y is computed from x
// and sum is not written. x and sum are float (rows, WIDTH), branch and y are bfloat16. statistics
// (rows, 2) gets the mean and 1 / sqrt(variance + eps).
void forward(const float *x, const bf16 *branch, const float *weight, const float *bias, float *sum,
             bf16 *y, float *statistics, long rows, float eps,
             int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long i = 0; i < rows; i++) {
    __m512 row[VECTORS], total = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
    EACH(v) {
      row[v] = part(x + i * WIDTH, v);
      if (branch) {
        row[v] = _mm512_add_ps(row[v], load(branch + i * WIDTH + 16 * v, COUNT(v)));
        put(sum + i * WIDTH, v, row[v]);
      }
      total = _mm512_add_ps(total, row[v]);
    }
    const float mean = _mm512_reduce_add_ps(total) / WIDTH;
    EACH(v) {
      row[v] = _mm512_maskz_sub_ps(lanes(COUNT(v)), row[v], _mm512_set1_ps(mean));
      squares = _mm512_fmadd_ps(row[v], row[v], squares);
    }
    const float scale = inverse_deviation(_mm512_reduce_add_ps(squares), WIDTH, eps);
    EACH(v) {
      __m512 normal = _mm512_mul_ps(row[v], _mm512_set1_ps(scale));
      store(y + i * WIDTH + 16 * v, _mm512_fmadd_ps(normal, part(weight, v), part(bias, v)), COUNT(v));
    }
    statistics[2 * i] = mean, statistics[2 * i + 1] = scale;
  }
}

// Computes gradients from grad_y and grad_sum (null if there is none). grad_x is float. grad_branch
// is the same in bfloat16 (null if there is no branch). partial (threads, 2, WIDTH) gets the sums
// of each thread for weight and bias.
void backward(const bf16 *grad_y, const float *grad_sum, const float *sum, const float *statistics,
              const float *weight, float *grad_x, bf16 *grad_branch, float *partial, long rows,
              int threads) {
#pragma omp parallel num_threads(threads)
  {
    __m512 slopes[VECTORS], shifts[VECTORS];
    EACH(v) slopes[v] = shifts[v] = _mm512_setzero_ps();
#pragma omp for schedule(static)
    for (long i = 0; i < rows; i++) {
      const __m512 mean = _mm512_set1_ps(statistics[2 * i]), scale = _mm512_set1_ps(statistics[2 * i + 1]);
      __m512 normal[VECTORS], g[VECTORS], first = _mm512_setzero_ps(), second = _mm512_setzero_ps();
      EACH(v) {
        __m512 dy = load(grad_y + i * WIDTH + 16 * v, COUNT(v));
        normal[v] = _mm512_mul_ps(_mm512_sub_ps(part(sum + i * WIDTH, v), mean), scale);
        shifts[v] = _mm512_add_ps(shifts[v], dy);
        slopes[v] = _mm512_fmadd_ps(dy, normal[v], slopes[v]);
        g[v] = _mm512_mul_ps(dy, part(weight, v));
        first = _mm512_add_ps(first, g[v]);
        second = _mm512_fmadd_ps(g[v], normal[v], second);
      }
      const __m512 a = _mm512_set1_ps(_mm512_reduce_add_ps(first) / WIDTH);
      const __m512 b = _mm512_set1_ps(_mm512_reduce_add_ps(second) / WIDTH);
      EACH(v) {
        __m512 dx = _mm512_mul_ps(_mm512_sub_ps(g[v], _mm512_fmadd_ps(normal[v], b, a)), scale);
        if (grad_sum) dx = _mm512_add_ps(dx, part(grad_sum + i * WIDTH, v));
        put(grad_x + i * WIDTH, v, dx);
        if (grad_branch) store(grad_branch + i * WIDTH + 16 * v, dx, COUNT(v));
      }
    }
    float *mine = partial + omp_get_thread_num() * 2L * WIDTH;
    EACH(v) put(mine, v, slopes[v]);
    EACH(v) put(mine + WIDTH, v, shifts[v]);
  }
}
