// Matrix products in registers: tiles of up to ROWS rows and two vectors.
#include "numbers.h"

enum { ROWS = 6, PANEL = 2 * LANES };

typedef struct {  // element (i, k) is at[i * row + k * step]
  const float *at;
  long row, step;
} Left;

typedef struct {  // vector v of row k of the panel at column c is at[c * panel + k * step + v * LANES]
  const float *at;
  long panel, step;
} Right;

typedef struct {      // what happens to a sum before it is stored
  int adds;           // whether it is added to what is there
  const float *bias;  // for each column, or null
  const float *extra; // added, with the rows of the output, or null
  int rounds;         // whether the result is stored as numbers
} Finish;

INLINE void tile(const float *a, long row, long step, const float *b, long b_step, void *c,
                 long c_row, long depth, const Finish *finish, const int R, const int W) {
  vec sums[ROWS][2];
  UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < W; j++) sums[i][j] = (vec){0};
  for (long k = 0; k < depth; k++) {
    vec right[2];
    UNROLL for (int j = 0; j < W; j++) right[j] = load(b + k * b_step + j * LANES);
    UNROLL for (int i = 0; i < R; i++) {
      const vec left = all(a[i * row + k * step]);
      UNROLL for (int j = 0; j < W; j++) sums[i][j] = add_product(sums[i][j], left, right[j]);
    }
  }
  UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < W; j++) {
    const long at = i * c_row + j * LANES;
    float *to = (float *)c + at;
    vec x = sums[i][j];
    if (finish->adds) x += load(to);
    if (finish->bias) x += load(finish->bias + j * LANES);
    if (finish->extra) x += load(finish->extra + at);
    if (PER > 1 && finish->rounds) store_numbers((number *)c + at, x);
    else store(to, x);
  }
}

typedef void Tile(const float *, long, long, const float *, long, void *, long, long,
                  const Finish *);
#define TILE(R, W)                                                                                 \
  static void tile_##R##_##W(const float *a, long row, long step, const float *b, long b_step,     \
                             void *c, long c_row, long depth, const Finish *finish) {              \
    tile(a, row, step, b, b_step, c, c_row, depth, finish, R, W);                                  \
  }
#define BOTH(R) TILE(R, 1) TILE(R, 2)
BOTH(1) BOTH(2) BOTH(3) BOTH(4) BOTH(5) BOTH(6)
#define PAIR(R) {tile_##R##_1, tile_##R##_2}
static Tile *const TILES[][2] = {PAIR(1), PAIR(2), PAIR(3), PAIR(4), PAIR(5), PAIR(6)};

// c (rows, columns) = a (rows, depth) b (depth, columns). columns is a multiple of LANES.
static void multiply(Left a, Right b, void *c, long c_row, long rows, long depth, long columns,
                     Finish finish) {
  const long tiles = (rows + ROWS - 1) / ROWS, least = rows / tiles, taller = rows % tiles;
  const long size = finish.rounds ? sizeof(number) : sizeof(float);
  depth = (depth + PER - 1) / PER;
  for (long j = 0; j < columns; j += PANEL) {
    const int wide = columns - j >= PANEL;
    Finish here = finish;
    if (here.bias) here.bias += j;
    for (long t = 0, i = 0, count; t < tiles; t++, i += count) {
      count = least + (t < taller);
      if (finish.extra) here.extra = finish.extra + i * c_row + j;
      TILES[count - 1][wide](a.at + i * a.row, a.row, a.step, b.at + j * b.panel, b.step,
                             (char *)c + (i * c_row + j) * size, c_row, depth, &here);
    }
  }
}

INLINE Left rows_of(const number *x, long width) { return (Left){(const float *)x, width / PER, 1}; }
INLINE Left columns_of(const float *x, long width) { return (Left){x, 1, width}; }
INLINE Right matrix(const float *x, long width) { return (Right){x, 1, width}; }
INLINE Right packed(const float *x, long depth) { return (Right){x, depth / PER, PANEL}; }

// to gets count columns of a packed panel. The number in row k and column j is w[k * down + j * right].
INLINE void pack_panel(const float *w, long down, long right, long depth, long count, float *to) {
  for (long k = 0; k < depth; k += PER, to += PANEL) {
    float rows[PER][PANEL];
    for (int e = 0; e < PER; e++)
      for (long j = 0; j < count; j++) rows[e][j] = w[(k + e) * down + j * right];
    for (long j = 0; j < count; j += LANES) store(to + j, weave_floats(rows[0] + j, rows[PER - 1] + j));
  }
}

// Packs panel p of w (outputs, inputs) for products with its transpose: depth is inputs.
static void pack_transposed(const float *w, long outputs, long inputs, long p, float *to) {
  const long first = p * PANEL, count = outputs - first < PANEL ? outputs - first : PANEL;
  pack_panel(w + first * inputs, 1, inputs, inputs, count, to + first * inputs / PER);
}

// Packs panel p of w (outputs, inputs) for products with w: depth is outputs.
static void pack(const float *w, long outputs, long inputs, long p, float *to) {
  const long first = p * PANEL, count = inputs - first < PANEL ? inputs - first : PANEL;
  pack_panel(w + first, inputs, 1, outputs, count, to + first * outputs / PER);
}

// weight (outputs, inputs) += g^T x and bias += column sums of g, for woven g (rows, outputs).
static void add_gradients(const float *g, long g_row, const float *x, long x_row, long rows,
                          long outputs, long inputs, float *weight, float *bias) {
  multiply(columns_of(g, g_row), matrix(x, x_row), weight, inputs, outputs, rows, inputs,
           (Finish){.adds = 1});
  for (long m = 0; m < outputs; m += LANES) {
    vec total = load(bias + m);
    for (long i = 0; i < (rows + PER - 1) / PER; i++)
      total = add_product(total, load(g + i * g_row + m), all(ONES));
    store(bias + m, total);
  }
}
