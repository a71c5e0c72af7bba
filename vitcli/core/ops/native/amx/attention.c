// softmax(scale q k^T) v and its gradients. Each thread computes one head of one image at a time,
// so intermediate results stay in the cache. The backward pass recomputes the weights (as in
// FlashAttention, Dao et al. 2022, https://arxiv.org/abs/2205.14135).
// The code is compiled for one size: TOKENS, HEADS, HEAD_DIM (even).
#include "amx.h"

enum {
  N = UP(TOKENS, 16),    // tokens, padded to rows or columns of tiles
  NC = UP(TOKENS, 32),   // tokens, padded for products that sum over tokens
  D = UP(HEAD_DIM, 16),  // features, padded in the same way
  DC = UP(HEAD_DIM, 32),
  EMBED = HEADS * HEAD_DIM,
  ROW = 3 * EMBED,
};

INLINE __mmask32 lanes32(long count) { return count >= 32 ? ~0u : (1u << count) - 1; }

// to[c][r] = from[r][c] for 32-bit elements. Missing rows and columns become zero.
INLINE void transposed(const bf16 *from, long stride, long rows, long columns, bf16 *to, long width) {
  __m512i a[16];
  for (int r = 0; r < 16; r++)
    a[r] = _mm512_maskz_loadu_epi32(r < rows ? lanes(columns) : 0, from + r * stride);
  transpose(a);
  for (int r = 0; r < 16; r++) _mm512_store_si512(to + r * width, a[r]);
}

// Packs the rows of one head as a left factor (N, DC).
INLINE void pack_left(const bf16 *from, long stride, bf16 *to) {
  for (int i = 0; i < TOKENS; i++)
    for (int d = 0; d < HEAD_DIM; d += 32)
      _mm512_store_si512(to + i * DC + d,
                         _mm512_maskz_loadu_epi16(lanes32(HEAD_DIM - d), from + i * stride + d));
}

// Packs the rows of one head as a right factor (DC / 2, N, 2), for sums over features.
INLINE void pack_transposed(const bf16 *from, long stride, bf16 *to) {
  for (int i = 0; i < TOKENS; i += 16)
    for (int d = 0; d < HEAD_DIM; d += 32)
      transposed(from + i * stride + d, stride, TOKENS - i, (HEAD_DIM - d) / 2, to + d * N + i * 2, N * 2);
}

// Packs the rows of one head as a right factor (NC / 2, D, 2), for sums over tokens.
INLINE void pack_right(const bf16 *from, long stride, bf16 *to) {
  for (int i = 0; i < TOKENS; i += 2)
    for (int d = 0; d < HEAD_DIM; d += 16) {
      const bf16 *row = from + i * stride + d;
      __m256i even = _mm256_maskz_loadu_epi16(lanes(HEAD_DIM - d), row);
      __m256i odd = _mm256_maskz_loadu_epi16(i + 1 < TOKENS ? lanes(HEAD_DIM - d) : 0, row + stride);
      _mm512_store_si512(to + i * D + d * 2, interleave(even, odd));
    }
}

// c (m, n) = a (m, k) b (k, n). m and n are multiples of 16, k is a multiple of 32.
INLINE void multiply(const bf16 *a, const bf16 *b, float *c, int m, int n, int k) {
  for (int i = 0; i < m; i += 32)
    for (int j = 0; j < n; j += 32) {
      const int tall = i + 16 < m, wide = j + 16 < n;
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int s = 0; s < k; s += 32) {
        _tile_loadd(4, a + i * k + s, k * 2);
        _tile_loadd(6, b + s * n + j * 2, n * 4);
        _tile_dpbf16ps(0, 4, 6);
        if (tall) {
          _tile_loadd(5, a + (i + 16) * k + s, k * 2);
          _tile_dpbf16ps(1, 5, 6);
        }
        if (wide) {
          _tile_loadd(7, b + s * n + (j + 16) * 2, n * 4);
          _tile_dpbf16ps(2, 4, 7);
          if (tall) _tile_dpbf16ps(3, 5, 7);
        }
      }
      _tile_stored(0, c + i * n + j, n * 4);
      if (tall) _tile_stored(1, c + (i + 16) * n + j, n * 4);
      if (wide) _tile_stored(2, c + i * n + j + 16, n * 4);
      if (tall && wide) _tile_stored(3, c + (i + 16) * n + j + 16, n * 4);
    }
}

// Writes 2^(factor (s - top)) of one row of scores as bfloat16, where top is the maximum of s. Returns
// the sum of these powers. The maximum is subtracted first: factor times a large score is rounded, by
// more than 1 from 2^24 on.
INLINE float exponentials(const float *s, __m512 factor, bf16 *p, float *top) {
  __m512 most = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
#pragma GCC unroll 8
  for (int j = 0; j < TOKENS; j += 16)
    most = _mm512_mask_max_ps(most, lanes(TOKENS - j), most, _mm512_load_ps(s + j));
  most = _mm512_set1_ps(_mm512_reduce_max_ps(most));
#pragma GCC unroll 8
  for (int j = 0; j < TOKENS; j += 16) {
    __m512 e = exp2_ps(_mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(s + j), most), factor));
    e = _mm512_maskz_mov_ps(lanes(TOKENS - j), e);
    sum = _mm512_add_ps(sum, e);
    store(p + j, e, 16);
  }
  *top = _mm512_cvtss_f32(most);
  return _mm512_reduce_add_ps(sum);
}

typedef struct {
  bf16 q[N * DC] ALIGNED, k[DC * N] ALIGNED, v[NC * D] ALIGNED, p[N * NC] ALIGNED;
  float s[N * N] ALIGNED, o[N * D] ALIGNED, sums[N] ALIGNED;
} Forward;

// Computes out (batch, TOKENS, HEADS, HEAD_DIM) from qkv (batch, TOKENS, 3, HEADS, HEAD_DIM). Also
// writes norms (batch, HEADS, 2, TOKENS) for the backward pass: the largest score of each query, and
// the binary logarithm of the sum of its powers. scale is positive. scratch has forward_bytes() for
// each thread, filled with zeros and aligned to 64 bytes.
void forward(const bf16 *qkv, bf16 *out, float *norms, long batch, float scale, Forward *scratch,
             int threads) {
  const __m512 factor = _mm512_set1_ps(scale * LOG2E);
#pragma omp parallel num_threads(threads)
  {
    Forward *w = scratch + omp_get_thread_num();
    use_tiles();
#pragma omp for schedule(static)
    for (long head = 0; head < batch * HEADS; head++) {
      const bf16 *from = qkv + head / HEADS * TOKENS * ROW + head % HEADS * HEAD_DIM;
      bf16 *to = out + head / HEADS * TOKENS * EMBED + head % HEADS * HEAD_DIM;
      pack_left(from, ROW, w->q);
      pack_transposed(from + EMBED, ROW, w->k);
      pack_right(from + 2 * EMBED, ROW, w->v);
      multiply(w->q, w->k, w->s, N, N, DC);
      for (int i = 0; i < TOKENS; i++) {
        float *top = norms + head * 2 * TOKENS + i;
        w->sums[i] = exponentials(w->s + i * N, factor, w->p + i * NC, top);
        top[TOKENS] = log2f(w->sums[i]);
      }
      multiply(w->p, w->v, w->o, N, D, NC);
      for (int i = 0; i < TOKENS; i++)
        for (int d = 0; d < HEAD_DIM; d += 16) {
          __m512 row = _mm512_load_ps(w->o + i * D + d);
          store(to + i * EMBED + d, _mm512_mul_ps(row, _mm512_set1_ps(1 / w->sums[i])), HEAD_DIM - d);
        }
    }
    _tile_release();
  }
}

typedef struct {
  bf16 k[N * DC] ALIGNED, v[N * DC] ALIGNED, q_t[DC * N] ALIGNED, g_t[DC * N] ALIGNED;
  bf16 q[NC * D] ALIGNED, g[NC * D] ALIGNED, k_right[NC * D] ALIGNED;
  bf16 p_t[N * NC] ALIGNED, ds_t[N * NC] ALIGNED, pairs[NC * N] ALIGNED, ds[N * NC] ALIGNED;
  float s[N * N] ALIGNED, dp[N * N] ALIGNED, r[N * D] ALIGNED;
  float delta[N] ALIGNED, tops[N] ALIGNED, logs[N] ALIGNED;
} Backward;

// Returns the weights p of 16 queries for one key, and writes the gradients ds of their scores.
INLINE __m512 slopes(const Backward *w, int key, int i, __m512 factor, __m512 scale, __m512 *ds) {
  __m512 s = _mm512_load_ps(w->s + key * N + i), dp = _mm512_load_ps(w->dp + key * N + i);
  s = _mm512_sub_ps(s, _mm512_load_ps(w->tops + i));
  __m512 p = exp2_ps(_mm512_fmsub_ps(s, factor, _mm512_load_ps(w->logs + i)));
  *ds = _mm512_mul_ps(_mm512_mul_ps(p, scale), _mm512_sub_ps(dp, _mm512_load_ps(w->delta + i)));
  return p;
}

// Computes weights and gradients of the scores as keys x queries, and the gradients also as queries
// x keys.
INLINE void all_slopes(Backward *w, __m512 factor, __m512 scale) {
  for (int j = 0; j < TOKENS; j += 2)
#pragma GCC unroll 8
    for (int i = 0; i < N; i += 16) {
      __m512 even, odd = _mm512_setzero_ps();
      store(w->p_t + j * NC + i, slopes(w, j, i, factor, scale, &even), 16);
      store(w->ds_t + j * NC + i, even, 16);
      if (j + 1 < TOKENS) {
        store(w->p_t + (j + 1) * NC + i, slopes(w, j + 1, i, factor, scale, &odd), 16);
        store(w->ds_t + (j + 1) * NC + i, odd, 16);
      }
      __m512i pair = interleave((__m256i)_mm512_cvtneps_pbh(even), (__m256i)_mm512_cvtneps_pbh(odd));
      _mm512_store_si512(w->pairs + j * N + i * 2, pair);
    }
  for (int j = 0; j < NC; j += 32)
    for (int i = 0; i < N; i += 16)
      transposed(w->pairs + j * N + i * 2, N * 2, 16, 16, w->ds + i * NC + j, NC);
}

INLINE void write_rows(const float *r, bf16 *to) {
  for (int i = 0; i < TOKENS; i++)
    for (int d = 0; d < HEAD_DIM; d += 16)
      store(to + i * ROW + d, _mm512_load_ps(r + i * D + d), HEAD_DIM - d);
}

// Computes the gradient of qkv from the gradient of out. The other arguments are as in forward().
// scratch has backward_bytes() for each thread.
void backward(const bf16 *qkv, const bf16 *out, const float *norms, const bf16 *grad_out,
              bf16 *grad_qkv, long batch, float scale, Backward *scratch,
              int threads) {
  const __m512 factor = _mm512_set1_ps(scale * LOG2E), scales = _mm512_set1_ps(scale);
#pragma omp parallel num_threads(threads)
  {
    Backward *w = scratch + omp_get_thread_num();
    use_tiles();
#pragma omp for schedule(static)
    for (long head = 0; head < batch * HEADS; head++) {
      const long rows = head / HEADS * TOKENS, column = head % HEADS * HEAD_DIM;
      const bf16 *from = qkv + rows * ROW + column, *o = out + rows * EMBED + column;
      const bf16 *g = grad_out + rows * EMBED + column;
      bf16 *to = grad_qkv + rows * ROW + column;
      pack_transposed(from, ROW, w->q_t), pack_right(from, ROW, w->q);
      pack_left(from + EMBED, ROW, w->k), pack_right(from + EMBED, ROW, w->k_right);
      pack_left(from + 2 * EMBED, ROW, w->v);
      pack_transposed(g, EMBED, w->g_t), pack_right(g, EMBED, w->g);
      for (int i = 0; i < TOKENS; i++) {
        __m512 sum = _mm512_setzero_ps();
        for (int d = 0; d < HEAD_DIM; d += 16)
          sum = _mm512_fmadd_ps(load(o + i * EMBED + d, HEAD_DIM - d),
                                load(g + i * EMBED + d, HEAD_DIM - d), sum);
        w->delta[i] = _mm512_reduce_add_ps(sum);
        w->tops[i] = norms[head * 2 * TOKENS + i];
        w->logs[i] = norms[(head * 2 + 1) * TOKENS + i];
      }
      multiply(w->k, w->q_t, w->s, N, N, DC);
      multiply(w->v, w->g_t, w->dp, N, N, DC);
      all_slopes(w, factor, scales);
      multiply(w->ds, w->k_right, w->r, N, D, NC);
      write_rows(w->r, to);
      multiply(w->ds_t, w->q, w->r, N, D, NC);
      write_rows(w->r, to + EMBED);
      multiply(w->p_t, w->g, w->r, N, D, NC);
      write_rows(w->r, to + 2 * EMBED);
    }
    _tile_release();
  }
}

long forward_bytes(void) { return sizeof(Forward); }
long backward_bytes(void) { return sizeof(Backward); }
