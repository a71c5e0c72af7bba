// Attention of one head, softmax(scale q k^T) v, for a few queries at a time.

enum { QUERIES = 36 };

typedef struct {
  long tokens, queries, width, heads;
} Sizes;

typedef struct {  // memory of one thread; rows are padded to whole vectors with zeros
  float *q, *k, *v, *out, *grad_out, *grad_k, *grad_v;  // (tokens, head width)
  float *k_t, *v_t;                                     // (head width, tokens)
  float *scores, *grad_scores;                          // (QUERIES, tokens)
} Head;

// Returns the next count floats of the room. If the room starts at null, only its end is counted.
static float *take(char **room, long count) {
  float *found = (float *)*room;
  *room += UP(count * 4, 64) + 64;
  return found;
}

static Head take_head(Sizes s, int backward, char **room) {
  const long wide = UP(s.width / s.heads, LANES), n = UP(s.tokens, LANES);
  Head h = {0};
  float **each[] = {&h.v, &h.out, &h.q, &h.k, &h.grad_out, &h.grad_k, &h.grad_v};
  for (int i = 0; i < (backward ? 7 : 2); i++) *each[i] = take(room, s.tokens * wide);
  h.k_t = take(room, wide * n), h.scores = take(room, QUERIES * n);
  if (backward) h.v_t = take(room, wide * n), h.grad_scores = take(room, QUERIES * n);
  return h;
}

// Copies rows of count floats, times factor, and fills them with zeros up to to_row.
INLINE void copy_rows(const float *from, long row, float *to, long to_row, long rows, long count,
                      float factor, const float *factors) {
  const long whole = count / LANES * LANES;
  for (long i = 0; i < rows; i++, from += row, to += to_row) {
    const float f = factors ? factors[2 * i + 1] : factor;
    for (long j = 0; j < whole; j += LANES) store(to + j, load(from + j) * f);
    for (long j = whole; j < count; j++) to[j] = from[j] * f;
  }
}

INLINE void pad_rows(const float *from, long row, float *to, long rows, long count) {
  const long wide = UP(count, LANES);
  if (wide > count) memset(to, 0, rows * wide * sizeof(float));
  copy_rows(from, row, to, wide, rows, count, 1, 0);
}

// to (columns, UP(rows)) = from (rows, columns) transposed, times factor.
static void transpose(const float *from, long row, long rows, long columns, float factor, float *to) {
  const long n = UP(rows, LANES);
  for (long j = 0; j < columns; j++) {
    for (long i = 0; i < rows; i++) to[j * n + i] = from[i * row + j] * factor;
    for (long i = rows; i < n; i++) to[j * n + i] = 0;
  }
}

// scores (count, tokens) = exp2(q k^T - maximum) for count queries. norms (count, 2) gets the maximum
// of each row and 1 / its sum.
static void softmax(float *scores, long count, long tokens, float *norms) {
  const long n = UP(tokens, LANES);
  for (long i = 0; i < count; i++, scores += n) {
    for (long j = tokens; j < n; j++) scores[j] = -INFINITY;
    vec top = load(scores), total = {0};
    for (long j = LANES; j < n; j += LANES) top = larger(load(scores + j), top);
    norms[2 * i] = maximum(top);
    for (long j = 0; j < n; j += LANES) {
      const vec e = exp2_of(load(scores + j) - norms[2 * i]);
      store(scores + j, e);
      total += e;
    }
    norms[2 * i + 1] = 1 / sum(total);
  }
}

// out (queries, D) gets the head's columns. qkv points at the head's columns of q in (tokens, 3 D).
static void attend(Sizes s, const float *qkv, float scale, float *out, float *norms, Head h) {
  const long d = s.width / s.heads, wide = UP(d, LANES), n = UP(s.tokens, LANES), row = 3 * s.width;
  transpose(qkv + s.width, row, s.tokens, d, scale * LOG2E, h.k_t);
  pad_rows(qkv + 2 * s.width, row, h.v, s.tokens, d);
  for (long i = 0; i < s.queries; i += QUERIES) {
    const long count = s.queries - i < QUERIES ? s.queries - i : QUERIES;
    multiply(rows_of(qkv + i * row, row), matrix(h.k_t, n), h.scores, n, count, d, n, (Finish){0});
    softmax(h.scores, count, s.tokens, norms + 2 * i);
    multiply(rows_of(h.scores, n), matrix(h.v, wide), h.out, wide, count, s.tokens, wide, (Finish){0});
    copy_rows(h.out, wide, out + i * s.width, s.width, count, d, 1, norms + 2 * i);
  }
}

// grad_qkv gets the gradients of the head's columns of q (for the queries), k and v.
static void attend_back(Sizes s, const float *qkv, float scale, const float *out, const float *norms,
                        const float *grad, float *grad_qkv, Head h) {
  const long d = s.width / s.heads, wide = UP(d, LANES), n = UP(s.tokens, LANES), row = 3 * s.width;
  transpose(qkv + s.width, row, s.tokens, d, scale * LOG2E, h.k_t);
  transpose(qkv + 2 * s.width, row, s.tokens, d, 1, h.v_t);
  pad_rows(qkv, row, h.q, s.queries, d);
  pad_rows(qkv + s.width, row, h.k, s.tokens, d);
  pad_rows(grad, s.width, h.grad_out, s.queries, d);
  for (long i = 0; i < s.queries; i += QUERIES) {
    const long count = s.queries - i < QUERIES ? s.queries - i : QUERIES;
    const float *g = h.grad_out + i * wide, *q = h.q + i * wide;
    multiply(rows_of(q, wide), matrix(h.k_t, n), h.scores, n, count, d, n, (Finish){0});
    multiply(rows_of(g, wide), matrix(h.v_t, n), h.grad_scores, n, count, d, n, (Finish){0});
    for (long r = 0; r < count; r++) {
      float *p = h.scores + r * n, *dp = h.grad_scores + r * n, dot = 0;
      const float *o = out + (i + r) * s.width, top = norms[2 * (i + r)], inverse = norms[2 * (i + r) + 1];
      for (long j = 0; j < d; j++) dot += o[j] * g[r * wide + j];
      for (long j = 0; j < n; j += LANES) {
        const vec weight = exp2_of(load(p + j) - top) * inverse;
        store(p + j, weight);
        store(dp + j, weight * (load(dp + j) - dot));
      }
    }
    const Finish adds = {.adds = i > 0};
    multiply(rows_of(h.grad_scores, n), matrix(h.k, wide), h.out, wide, count, s.tokens, wide, (Finish){0});
    copy_rows(h.out, wide, grad_qkv + i * row, row, count, d, scale, 0);
    multiply(columns_of(h.grad_scores, n), matrix(q, wide), h.grad_k, wide, s.tokens, count, wide, adds);
    multiply(columns_of(h.scores, n), matrix(g, wide), h.grad_v, wide, s.tokens, count, wide, adds);
  }
  copy_rows(h.grad_k, wide, grad_qkv + s.width, row, s.tokens, d, scale, 0);
  copy_rows(h.grad_v, wide, grad_qkv + 2 * s.width, row, s.tokens, d, 1, 0);
}
