// Residual branches of a transformer block: x + proj(attention(norm(x))) and
// x + fc2(gelu(fc1(norm(x)))). An image, or a block of rows, is computed from begin to end, so what
// is in between stays in the cache. Every width is a multiple of 16. Every thread computes its own
// images in order, so results depend on the number of threads only. Inputs, outputs, sums and
// gradients of weights are float; the factors of products are numbers (numbers.h).
#include "product.h"
#include "norm.h"
#include "heads.h"
#include "gelu.h"

enum { BLOCK = 96 };  // rows that the FFN computes at a time
static const Finish NOTHING = {0}, ROUNDS = {.rounds = 1};

long number_bytes(void) { return sizeof(number); }

typedef struct {  // tensors of a norm; weight is null if there is no norm
  const float *weight, *bias;
  float eps;
} Norm;

#define PANELS(columns) (((columns) + PANEL - 1) / PANEL)
#define PACK(how, from, outputs, inputs, columns, to)                                              \
  _Pragma("omp for schedule(static) nowait") for (long p = 0; p < PANELS(columns); p++)           \
      how(from, outputs, inputs, p, to);

// Returns the input of the branch's first layer: the normalised rows, or the rows.
static const number *enter(Norm norm, const float *x, long rows, long width, number *y,
                           float *statistics) {
  if (!norm.weight) return rounded(x, rows * width, y);
  normalise(x, norm.weight, norm.bias, y, statistics, rows, width, norm.eps);
  return y;
}

// grad_x += the gradient of the norm's input for the gradient g of its output.
static void leave(Norm norm, const float *g, const float *x, const float *statistics, float *grad_x,
                  float *slopes, long rows, long width) {
  if (norm.weight) {
    normalise_back(g, x, statistics, norm.weight, grad_x, slopes, slopes + width, rows, width);
    return;
  }
  for (long i = 0; i < rows * width; i += LANES) store(grad_x + i, load(grad_x + i) + load(g + i));
}

// total (count) = sum over threads of their gradients, in the order of the threads.
static void add_threads(const char *scratch, long bytes, long count, float *total, int threads) {
#pragma omp for schedule(static)
  for (long i = 0; i < count; i += LANES) {
    vec x = load((const float *)scratch + i);
    for (int t = 1; t < threads; t++) x += load((const float *)(scratch + t * bytes) + i);
    store(total + i, x);
  }
}

// ---- attention

typedef struct {
  float *grads, *statistics, *norms, *grad_normal;
  float *left, *right;  // woven factors of the gradients of weights
  number *normal, *qkv, *out, *grad, *grad_out, *grad_qkv;
  Head head;
} AttentionRoom;

static long attention_gradients(long width) { return 2 * width + 3 * width * (width + 1) + width * (width + 1); }

static AttentionRoom take_attention(Sizes s, int backward, char **room) {
  const long plane = s.tokens * s.width;
  AttentionRoom r = {0};
  r.grads = take(room, backward ? attention_gradients(s.width) : 0);
  r.normal = take_numbers(room, plane), r.statistics = take(room, 2 * s.tokens);
  if (backward) {
    r.grad = take_numbers(room, plane), r.grad_normal = take(room, plane);
    r.grad_out = take_numbers(room, plane), r.grad_qkv = take_numbers(room, 3 * plane);
    r.left = take_woven(room, s.tokens, 3 * s.width), r.right = take_woven(room, s.tokens, s.width);
  } else {
    r.qkv = take_numbers(room, 3 * plane), r.out = take_numbers(room, plane);
    r.norms = take(room, 2 * s.tokens * s.heads);
  }
  r.head = take_head(s, backward, room);
  return r;
}

long attention_bytes(long tokens, long queries, long width, long heads, int backward) {
  char *end = 0;
  take_attention((Sizes){tokens, queries, width, heads}, backward, &end);
  return (long)end;
}

// y (batch, queries, D) from x (batch, tokens, D). qkv, out and norms are stored for the backward
// pass, unless they are null. packs has room for the four matrices.
void attention_forward(const float *x, const float *norm_weight, const float *norm_bias,
                       const float *qkv_weight, const float *qkv_bias, const float *proj_weight,
                       const float *proj_bias, float *y, number *qkv, number *out, float *norms,
                       float *packs, char *scratch, long batch, long tokens, long queries, long width,
                       long heads, long adds, float eps, float scale, int threads) {
  const Sizes s = {tokens, queries, width, heads};
  const Norm norm = {norm_weight, norm_bias, eps};
  const long D = width, plane = tokens * D, bytes = attention_bytes(tokens, queries, D, heads, 0);
  float *pack_q = packs, *pack_kv = pack_q + UP(D, PANEL) * D, *pack_proj = pack_kv + UP(2 * D, PANEL) * D;
#pragma omp parallel num_threads(threads)
  {
    char *mine = scratch + omp_get_thread_num() * bytes;
    const AttentionRoom r = take_attention(s, 0, &mine);
    PACK(pack_transposed, qkv_weight, D, D, D, pack_q)
    PACK(pack_transposed, qkv_weight + D * D, 2 * D, D, 2 * D, pack_kv)
    PACK(pack_transposed, proj_weight, D, D, D, pack_proj)
#pragma omp barrier
#pragma omp for schedule(static)
    for (long b = 0; b < batch; b++) {
      const float *from = x + b * plane;
      number *q = qkv ? qkv + b * 3 * plane : r.qkv, *o = out ? out + b * queries * D : r.out;
      float *n = norms ? norms + b * heads * queries * 2 : r.norms;
      const number *normal = enter(norm, from, tokens, D, r.normal, r.statistics);
      const Finish q_bias = {.rounds = 1, .bias = qkv_bias};
      const Finish kv_bias = {.rounds = 1, .bias = qkv_bias ? qkv_bias + D : 0};
      multiply(rows_of(normal, D), packed(pack_q, D), q, 3 * D, queries, D, D, q_bias);
      multiply(rows_of(normal, D), packed(pack_kv, D), q + D, 3 * D, tokens, D, 2 * D, kv_bias);
      for (long h = 0; h < heads; h++)
        attend(s, q + h * (D / heads), scale, o + h * (D / heads), n + h * queries * 2, r.head);
      const Finish last = {.bias = proj_bias, .extra = adds ? from : 0};
      multiply(rows_of(o, D), packed(pack_proj, D), y + b * queries * D, D, queries, D, D, last);
    }
  }
}

// grads: norm's weight (D) and bias (D), qkv's weight (3 D, D) and bias (3 D), proj's weight (D, D)
// and bias (D).
void attention_backward(const float *grad_y, const float *x, const float *norm_weight,
                        const float *norm_bias, const float *qkv_weight, const float *proj_weight,
                        const number *qkv, const number *out, const float *norms, float *grad_x,
                        float *grads, float *packs, char *scratch, long batch, long tokens,
                        long queries, long width, long heads, long adds, float eps, float scale,
                        int threads) {
  const Sizes s = {tokens, queries, width, heads};
  const Norm norm = {norm_weight, norm_bias, eps};
  const long D = width, plane = tokens * D, bytes = attention_bytes(tokens, queries, D, heads, 1);
  float *pack_q = packs, *pack_kv = pack_q + UP(D, PANEL) * D, *pack_proj = pack_kv + UP(D, PANEL) * 2 * D;
#pragma omp parallel num_threads(threads)
  {
    char *mine = scratch + omp_get_thread_num() * bytes;
    const AttentionRoom r = take_attention(s, 1, &mine);
    float *qkv_grad = r.grads + 2 * D, *qkv_shift = qkv_grad + 3 * D * D;
    float *proj_grad = qkv_shift + 3 * D, *proj_shift = proj_grad + D * D;
    memset(r.grads, 0, attention_gradients(D) * sizeof(float));
    PACK(pack, qkv_weight, D, D, D, pack_q)
    PACK(pack, qkv_weight + D * D, 2 * D, D, D, pack_kv)
    PACK(pack, proj_weight, D, D, D, pack_proj)
#pragma omp barrier
#pragma omp for schedule(static)
    for (long b = 0; b < batch; b++) {
      const float *from = x + b * plane, *grad = grad_y + b * queries * D;
      const float *n = norms + b * heads * queries * 2;
      const number *q = qkv + b * 3 * plane, *g = rounded(grad, queries * D, r.grad);
      float *to = grad_x + b * plane;
      const float *outs = woven(out + b * queries * D, D, queries, D, r.right);
      add_gradients(woven(g, D, queries, D, r.left), D, outs, D, queries, D, D, proj_grad, proj_shift);
      multiply(rows_of(g, D), packed(pack_proj, D), r.grad_out, D, queries, D, D, ROUNDS);
      for (long h = 0, c = 0; h < heads; h++, c += D / heads)
        attend_back(s, q + c, scale, n + h * queries * 2, r.grad_out + c, r.grad_qkv + c, r.head);
      const number *normal = enter(norm, from, tokens, D, r.normal, r.statistics);
      const float *inputs = woven(normal, D, tokens, D, r.right);
      const float *grad_q = woven(r.grad_qkv, 3 * D, queries, D, r.left);
      const float *grad_kv = woven(r.grad_qkv + D, 3 * D, tokens, 2 * D, r.left + D);
      add_gradients(grad_q, 3 * D, inputs, D, queries, D, D, qkv_grad, qkv_shift);
      add_gradients(grad_kv, 3 * D, inputs, D, tokens, 2 * D, D, qkv_grad + D * D, qkv_shift + D);
      multiply(rows_of(r.grad_qkv + D, 3 * D), packed(pack_kv, 2 * D), r.grad_normal, D, tokens, 2 * D, D, NOTHING);
      multiply(rows_of(r.grad_qkv, 3 * D), packed(pack_q, D), r.grad_normal, D, queries, D, D, (Finish){.adds = 1});
      memset(to, 0, plane * sizeof(float));
      if (adds) memcpy(to, grad, queries * D * sizeof(float));
      leave(norm, r.grad_normal, from, r.statistics, to, r.grads, tokens, D);
    }
    add_threads(scratch, bytes, attention_gradients(D), grads, threads);
  }
}

// ---- FFN

typedef struct {
  float *grads, *statistics, *slope, *grad_hidden, *grad_normal;
  float *left, *right;  // woven factors of the gradients of weights
  number *normal, *hidden, *grad;
} FfnRoom;

static long ffn_gradients(long width, long hidden) { return 2 * width + hidden * (width + 1) + width * (hidden + 1); }

static FfnRoom take_ffn(long width, long hidden, int backward, char **room) {
  FfnRoom r = {0};
  r.grads = take(room, backward ? ffn_gradients(width, hidden) : 0);
  r.normal = take_numbers(room, BLOCK * width), r.statistics = take(room, 2 * BLOCK);
  r.hidden = take_numbers(room, BLOCK * hidden), r.slope = take(room, BLOCK * hidden);
  if (!backward) return r;
  r.grad = take_numbers(room, BLOCK * width), r.grad_normal = take(room, BLOCK * width);
  r.grad_hidden = take(room, BLOCK * hidden);
  const long widest = width > hidden ? width : hidden;
  r.left = take_woven(room, BLOCK, widest), r.right = take_woven(room, BLOCK, widest);
  return r;
}

long ffn_bytes(long width, long hidden, int backward) {
  char *end = 0;
  take_ffn(width, hidden, backward, &end);
  return (long)end;
}

// y (rows, D) from x (rows, D). before (rows, hidden), the input of GELU, is stored unless it is null.
void ffn_forward(const float *x, const float *norm_weight, const float *norm_bias,
                 const float *fc1_weight, const float *fc1_bias, const float *fc2_weight,
                 const float *fc2_bias, float *y, number *before, float *packs, char *scratch,
                 long rows, long width, long hidden, long adds, float eps, int threads) {
  const Norm norm = {norm_weight, norm_bias, eps};
  const long D = width, F = hidden, bytes = ffn_bytes(D, F, 0);
  float *pack_1 = packs, *pack_2 = pack_1 + UP(F, PANEL) * D;
#pragma omp parallel num_threads(threads)
  {
    char *mine = scratch + omp_get_thread_num() * bytes;
    const FfnRoom r = take_ffn(D, F, 0, &mine);
    PACK(pack_transposed, fc1_weight, F, D, F, pack_1)
    PACK(pack_transposed, fc2_weight, D, F, D, pack_2)
#pragma omp barrier
#pragma omp for schedule(static)
    for (long i = 0; i < rows; i += BLOCK) {
      const long count = rows - i < BLOCK ? rows - i : BLOCK;
      const float *from = x + i * D;
      const number *normal = enter(norm, from, count, D, r.normal, r.statistics);
      number *h = before ? before + i * F : (number *)r.slope;
      const Finish middle = {.rounds = 1, .bias = fc1_bias};
      multiply(rows_of(normal, D), packed(pack_1, D), h, F, count, D, F, middle);
      gelu(h, r.hidden, count * F);
      const Finish last = {.bias = fc2_bias, .extra = adds ? from : 0};
      multiply(rows_of(r.hidden, F), packed(pack_2, F), y + i * D, D, count, F, D, last);
    }
  }
}

// grads: norm's weight (D) and bias (D), fc1's weight (F, D) and bias (F), fc2's weight (D, F) and
// bias (D).
void ffn_backward(const float *grad_y, const float *x, const float *norm_weight, const float *norm_bias,
                  const float *fc1_weight, const float *fc2_weight, const number *before, float *grad_x,
                  float *grads, float *packs, char *scratch, long rows, long width, long hidden,
                  long adds, float eps, int threads) {
  const Norm norm = {norm_weight, norm_bias, eps};
  const long D = width, F = hidden, bytes = ffn_bytes(D, F, 1);
  float *pack_1 = packs, *pack_2 = pack_1 + UP(D, PANEL) * F;
#pragma omp parallel num_threads(threads)
  {
    char *mine = scratch + omp_get_thread_num() * bytes;
    const FfnRoom r = take_ffn(D, F, 1, &mine);
    float *grad_1 = r.grads + 2 * D, *shift_1 = grad_1 + F * D, *grad_2 = shift_1 + F, *shift_2 = grad_2 + D * F;
    memset(r.grads, 0, ffn_gradients(D, F) * sizeof(float));
    PACK(pack, fc1_weight, F, D, D, pack_1)
    PACK(pack, fc2_weight, D, F, F, pack_2)
#pragma omp barrier
#pragma omp for schedule(static)
    for (long i = 0; i < rows; i += BLOCK) {
      const long count = rows - i < BLOCK ? rows - i : BLOCK;
      const float *from = x + i * D, *grad = grad_y + i * D;
      const number *g = rounded(grad, count * D, r.grad);
      gelu_and_slope(before + i * F, r.hidden, r.slope, count * F);
      const float *left = woven(g, D, count, D, r.left), *right = woven(r.hidden, F, count, F, r.right);
      add_gradients(left, D, right, F, count, D, F, grad_2, shift_2);
      multiply(rows_of(g, D), packed(pack_2, D), r.grad_hidden, F, count, D, F, NOTHING);
      number *hidden_grad = (number *)r.grad_hidden;  // a store follows the loads of its place
      for (long j = 0; j < count * F; j += LANES)
        store_numbers(hidden_grad + j, load(r.grad_hidden + j) * load(r.slope + j));
      const number *normal = enter(norm, from, count, D, r.normal, r.statistics);
      left = woven(hidden_grad, F, count, F, r.left), right = woven(normal, D, count, D, r.right);
      add_gradients(left, F, right, D, count, F, D, grad_1, shift_1);
      multiply(rows_of(hidden_grad, F), packed(pack_1, F), r.grad_normal, D, count, F, D, NOTHING);
      if (adds) memcpy(grad_x + i * D, grad, count * D * sizeof(float));
      else memset(grad_x + i * D, 0, count * D * sizeof(float));
      leave(norm, r.grad_normal, from, r.statistics, grad_x + i * D, r.grads, count, D);
    }
    add_threads(scratch, bytes, ffn_gradients(D, F), grads, threads);
  }
}
