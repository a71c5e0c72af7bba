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

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t fours __attribute__((vector_size(16)));

INLINE four load_four(const float *from, long count) {
  four x = {0};
  if (count >= 4) return *(const four *)from;
  for (long i = 0; i < count; i++) x[i] = from[i];
  return x;
}

// to (columns, UP(rows)) = from (rows, columns) transposed, times factor, in blocks of 4 x 4.
static void transpose(const float *from, long row, long rows, long columns, float factor, float *to) {
  const long n = UP(rows, LANES);
  for (long i = 0; i < n; i += 4)
    for (long j = 0; j < columns; j += 4) {
      four x[4], y[4];
      UNROLL for (int r = 0; r < 4; r++)
        x[r] = (i + r < rows ? load_four(from + (i + r) * row + j, columns - j) : (four){0}) * factor;
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
static void attend_back(Sizes s, const float *qkv, float scale, const float *norms,
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
      float *p = h.scores + r * n, *dp = h.grad_scores + r * n;
      const float top = norms[2 * (i + r)], inverse = norms[2 * (i + r) + 1];
      vec products = {0};
      for (long j = s.tokens; j < n; j++) p[j] = -INFINITY;
      for (long j = 0; j < n; j += LANES) {
        const vec weight = exp2_of(load(p + j) - top) * inverse;
        store(p + j, weight);
        products += weight * load(dp + j);
      }
      const float mean = sum(products);
      for (long j = 0; j < n; j += LANES) store(dp + j, load(p + j) * (load(dp + j) - mean));
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
