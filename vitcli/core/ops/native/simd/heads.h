// Attention of one head, softmax(scale q k^T) v, for a few queries at a time.

enum { QUERIES = 36 };

typedef struct {
  long tokens, queries, width, heads;
} Sizes;

typedef struct {  // memory of one thread; rows are padded to whole vectors with zeros
  float *q, *k, *v, *grad_out;      // (tokens, head width), woven
  float *out, *grad_k, *grad_v;     // (tokens, head width)
  float *k_t, *v_t;                 // (head width, tokens)
  float *scores, *grad_scores;      // (QUERIES, tokens)
  number *grad_rows;                // grad_scores before they are woven
} Head;

// Returns the next count floats of the room. If the room starts at null, only its end is counted.
static float *take(char **room, long count) {
  float *found = (float *)*room;
  *room += UP(count * 4, 64) + 64;
  return found;
}

static number *take_numbers(char **room, long count) { return (number *)take(room, count); }

// Returns room for woven rows; without weaving, none is needed.
static float *take_woven(char **room, long rows, long width) {
  return take(room, PER > 1 ? (rows + 1) / 2 * width : 0);
}

static Head take_head(Sizes s, int backward, char **room) {
  const long wide = UP(s.width / s.heads, LANES), n = UP(s.tokens, LANES);
  Head h = {0};
  float **each[] = {&h.v, &h.out, &h.q, &h.k, &h.grad_out, &h.grad_k, &h.grad_v};
  for (int i = 0; i < (backward ? 7 : 2); i++) *each[i] = take(room, s.tokens * wide);
  h.k_t = take(room, wide * n), h.scores = take(room, QUERIES * n);
  if (!backward) return h;
  h.v_t = take(room, wide * n), h.grad_scores = take(room, QUERIES * n);
  h.grad_rows = PER > 1 ? take_numbers(room, QUERIES * n) : (number *)h.grad_scores;
  return h;
}

// Copies rows of count floats, times factor, as numbers.
INLINE void copy_rows(const float *from, long row, number *to, long to_row, long rows, long count,
                      float factor, const float *factors) {
  const long whole = count / LANES * LANES;
  for (long i = 0; i < rows; i++, from += row, to += to_row) {
    const float f = factors ? factors[2 * i + 1] : factor;
    for (long j = 0; j < whole; j += LANES) store_numbers(to + j, load(from + j) * f);
    if (whole < count) store_some(to + whole, load(from + whole) * f, count - whole);
  }
}

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t fours __attribute__((vector_size(16)));

INLINE four load_four(const float *from, long count) {
  four x = {0};
  if (count >= 4) return *(const four *)from;
  for (long i = 0; i < count; i++) x[i] = from[i];
  return x;
}

// to (columns, UP(rows)) = elements of from (rows, columns) transposed, in blocks of 4 x 4.
static void transpose(const number *numbers, long row, long rows, long columns, float *to) {
  const float *from = (const float *)numbers;
  const long n = UP(rows, LANES);
  row /= PER, columns /= PER;
  for (long i = 0; i < n; i += 4)
    for (long j = 0; j < columns; j += 4) {
      four x[4], y[4];
      UNROLL for (int r = 0; r < 4; r++)
        x[r] = (i + r < rows ? load_four(from + (i + r) * row + j, columns - j) : (four){0});
      UNROLL for (int r = 0; r < 2; r++) {
        y[2 * r] = SHUFFLE(fours, x[r], x[r + 2], 0, 4, 1, 5);
        y[2 * r + 1] = SHUFFLE(fours, x[r], x[r + 2], 2, 6, 3, 7);
      }
      UNROLL for (int r = 0; r < 2; r++) {
        x[2 * r] = SHUFFLE(fours, y[r], y[r + 2], 0, 4, 1, 5);
        x[2 * r + 1] = SHUFFLE(fours, y[r], y[r + 2], 2, 6, 3, 7);
      }
      for (long c = 0; c < 4 && j + c < columns; c++) *(four *)(to + (j + c) * n + i) = x[c];
    }
}

// Replaces scores (count, tokens) by numbers, exp2(factor (scores - maximum)). norms (count, 2) gets
// the maximum of each row, and 1 / the sum of its numbers. The maximum is subtracted first: factor
// times a large score is rounded, by more than 1 from 2^24 on, so the largest number would not be 1.
static void softmax(float *scores, long count, long tokens, float factor, float *norms) {
  const long n = UP(tokens, LANES);
  for (long i = 0; i < count; i++, scores += n) {
    for (long j = tokens; j < n; j++) scores[j] = -INFINITY;
    vec top = load(scores), total = {0};
    for (long j = LANES; j < n; j += LANES) top = larger(load(scores + j), top);
    norms[2 * i] = maximum(top);
    for (long j = 0; j < n; j += LANES) {
      const vec e = exp2_of((load(scores + j) - norms[2 * i]) * factor);
      store_numbers((number *)scores + j, e);
      total += e;
    }
    norms[2 * i + 1] = 1 / sum(total);
  }
}

// out (queries, D) gets the head's columns. qkv points at the head's columns of q in (tokens, 3 D).
static void attend(Sizes s, const number *qkv, float scale, number *out, float *norms, Head h) {
  const long d = s.width / s.heads, wide = UP(d, LANES), n = UP(s.tokens, LANES), row = 3 * s.width;
  const Finish nothing = {0};
  transpose(qkv + s.width, row, s.tokens, d, h.k_t);
  weave_rows(qkv + 2 * s.width, row, h.v, s.tokens, d);
  for (long i = 0; i < s.queries; i += QUERIES) {
    const long count = s.queries - i < QUERIES ? s.queries - i : QUERIES;
    multiply(rows_of(qkv + i * row, row), matrix(h.k_t, n), h.scores, n, count, d, n, nothing);
    softmax(h.scores, count, s.tokens, scale * LOG2E, norms + 2 * i);
    const Left shares = rows_of((number *)h.scores, n * PER);
    multiply(shares, matrix(h.v, wide), h.out, wide, count, s.tokens, wide, nothing);
    copy_rows(h.out, wide, out + i * s.width, s.width, count, d, 1, norms + 2 * i);
  }
}

// Replaces scores by the softmax, and its gradients by those of the scores; both are woven. rows gets
// the gradients of the scores as they were before.
static void softmax_back(float *scores, float *grads, number *rows, long count, long tokens,
                         float factor, const float *norms) {
  const long n = UP(tokens, LANES);
  for (long i = 0; i < count; i += PER, scores += PER * n, grads += PER * n, rows += PER * n) {
    const int both = i + PER <= count ? PER : 1;
    float mean[PER];
    for (int e = 0; e < both; e++) {
      float *p = scores + e * n, *dp = grads + e * n;
      const float top = norms[2 * (i + e)], inverse = norms[2 * (i + e) + 1];
      vec products = {0};
      for (long j = tokens; j < n; j++) p[j] = -INFINITY;
      for (long j = 0; j < n; j += LANES) {
        const vec weight = exp2_of((load(p + j) - top) * factor) * inverse;
        store(p + j, weight);
        products += weight * load(dp + j);
      }
      mean[e] = sum(products);
    }
    for (long j = 0; j < n; j += LANES) {
      vec p[2] = {load(scores + j)}, dp[2] = {p[0] * (load(grads + j) - mean[0])};
#ifndef HALF
      store(grads + j, dp[0]);
#else
      if (both > 1) p[1] = load(scores + n + j), dp[1] = p[1] * (load(grads + n + j) - mean[1]);
      const __m256i even = narrow(dp[0]), odd = narrow(dp[1]);
      _mm256_storeu_si256((void *)(rows + j), even);
      _mm256_storeu_si256((void *)(rows + n + j), odd);
      store(grads + j, weave(even, odd));
      store(scores + j, weave(narrow(p[0]), narrow(p[1])));
#endif
    }
  }
}

// grad_qkv gets the gradients of the head's columns of q (for the queries), k and v.
static void attend_back(Sizes s, const number *qkv, float scale, const float *norms,
                        const number *grad, number *grad_qkv, Head h) {
  const long d = s.width / s.heads, wide = UP(d, LANES), n = UP(s.tokens, LANES), row = 3 * s.width;
  const Finish nothing = {0};
  transpose(qkv + s.width, row, s.tokens, d, h.k_t);
  transpose(qkv + 2 * s.width, row, s.tokens, d, h.v_t);
  weave_rows(qkv, row, h.q, s.queries, d);
  weave_rows(qkv + s.width, row, h.k, s.tokens, d);
  weave_rows(grad, s.width, h.grad_out, s.queries, d);
  for (long i = 0; i < s.queries; i += QUERIES) {
    const long count = s.queries - i < QUERIES ? s.queries - i : QUERIES;
    const float *g = h.grad_out + i / PER * wide, *q = h.q + i / PER * wide;
    multiply(rows_of(qkv + i * row, row), matrix(h.k_t, n), h.scores, n, count, d, n, nothing);
    multiply(rows_of(grad + i * s.width, s.width), matrix(h.v_t, n), h.grad_scores, n, count, d, n, nothing);
    softmax_back(h.scores, h.grad_scores, h.grad_rows, count, s.tokens, scale * LOG2E, norms + 2 * i);
    const Finish adds = {.adds = i > 0};
    multiply(rows_of(h.grad_rows, n), matrix(h.k, wide), h.out, wide, count, s.tokens, wide, nothing);
    copy_rows(h.out, wide, grad_qkv + i * row, row, count, d, scale, 0);
    multiply(columns_of(h.grad_scores, n * PER), matrix(q, wide), h.grad_k, wide, s.tokens, count, wide, adds);
    multiply(columns_of(h.scores, n * PER), matrix(g, wide), h.grad_v, wide, s.tokens, count, wide, adds);
  }
  copy_rows(h.grad_k, wide, grad_qkv + s.width, row, s.tokens, d, scale, 0);
  copy_rows(h.grad_v, wide, grad_qkv + 2 * s.width, row, s.tokens, d, 1, 0);
}
