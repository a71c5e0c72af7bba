/* The steps of a forward pass. Values lie on a grid of tokens: an image is a grid whose tokens are
   pixels. All values are in double precision: without conversions, the arithmetic is faster. */

class Grid {
  constructor(rows, columns, width, data = new Float64Array(rows * columns * width)) {
    Object.assign(this, { rows, columns, width, data });
  }

  get tokens() {
    return this.rows * this.columns;
  }

  /* A grid with the same tokens, zeros. */
  like(width) {
    return new Grid(this.rows, this.columns, width);
  }
}

/* x W^T + b. A block of two tokens and four outputs needs six values for eight products. What is left
   over is computed again in the last block, with the same sums. */
function linear(x, weight, bias) {
  const { width, data, tokens } = x;
  const outputs = weight.length / width;
  const made = x.like(outputs);
  if (outputs < 4) return linearByOutput(x, weight, bias, made);
  for (let token = 0; token < tokens; token += 2) {
    const upper = token * width;
    const lower = Math.min(token + 1, tokens - 1) * width;
    for (let next = 0; next < outputs; next += 4) {
      const out = Math.min(next, outputs - 4);
      const first = out * width;
      const [second, third, fourth] = [first + width, first + 2 * width, first + 3 * width];
      let [a, b, c, d, e, f, g, h] = [0, 0, 0, 0, 0, 0, 0, 0];
      for (let i = 0; i < width; i += 1) {
        const one = data[upper + i];
        const two = data[lower + i];
        a += one * weight[first + i];
        b += one * weight[second + i];
        c += one * weight[third + i];
        d += one * weight[fourth + i];
        e += two * weight[first + i];
        f += two * weight[second + i];
        g += two * weight[third + i];
        h += two * weight[fourth + i];
      }
      const [to, below] = [upper / width * outputs + out, lower / width * outputs + out];
      const [p, q, r, s] = bias ? [bias[out], bias[out + 1], bias[out + 2], bias[out + 3]] : [0, 0, 0, 0];
      made.data[to] = a + p;
      made.data[to + 1] = b + q;
      made.data[to + 2] = c + r;
      made.data[to + 3] = d + s;
      made.data[below] = e + p;
      made.data[below + 1] = f + q;
      made.data[below + 2] = g + r;
      made.data[below + 3] = h + s;
    }
  }
  return made;
}

function linearByOutput(x, weight, bias, made) {
  const outputs = made.width;
  for (let place = 0; place < made.data.length; place += 1) {
    const out = place % outputs;
    const from = Math.floor(place / outputs) * x.width;
    let sum = bias ? bias[out] : 0;
    for (let i = 0; i < x.width; i += 1) sum += x.data[from + i] * weight[out * x.width + i];
    made.data[place] = sum;
  }
  return made;
}

/* Normalise each token: subtract its mean if `centres`, then divide by the root of its mean square. */
function normalise(x, weight, bias, epsilon, centres) {
  const { width, data } = x;
  const made = x.like(width);
  for (let from = 0; from < data.length; from += width) {
    let [mean, squares] = [0, 0];
    if (centres) for (let i = 0; i < width; i += 1) mean += data[from + i] / width;
    for (let i = 0; i < width; i += 1) squares += (data[from + i] - mean) ** 2;
    const factor = 1 / Math.sqrt(squares / width + epsilon);
    for (let i = 0; i < width; i += 1) {
      made.data[from + i] = (data[from + i] - mean) * factor * weight[i] + (bias ? bias[i] : 0);
    }
  }
  return made;
}

function affine(x, weight, bias) {
  const made = x.like(x.width);
  for (let i = 0; i < x.data.length; i += 1) {
    made.data[i] = x.data[i] * weight[i % x.width] + bias[i % x.width];
  }
  return made;
}

function apply(x, change) {
  const made = x.like(x.width);
  for (let i = 0; i < x.data.length; i += 1) made.data[i] = change(x.data[i]);
  return made;
}

/* The error function; the error is at most 1.5e-7 (Abramowitz and Stegun 1964, 7.1.26). */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const series =
    t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  const value = 1 - series * Math.exp(-x * x);
  return x < 0 ? -value : value;
}

/* silu(gate) * value of the two halves of each token. */
function gate(x) {
  const half = x.width / 2;
  const made = x.like(half);
  for (let token = 0; token < x.tokens; token += 1) {
    for (let i = 0; i < half; i += 1) {
      const open = x.data[token * x.width + i];
      const value = x.data[token * x.width + half + i];
      made.data[token * half + i] = (open / (1 + Math.exp(-open))) * value;
    }
  }
  return made;
}

/* Visit the kernel's places: visit(output token, index inside the kernel, input token), where the
   input token is -1 in the padding. Return the rows and columns of the output. */
function slide(x, { kernel, stride, padding }, visit) {
  const [rows, columns] = [x.rows, x.columns].map(
    (side) => Math.floor((side + 2 * padding - kernel) / stride) + 1,
  );
  for (let place = 0; place < rows * columns; place += 1) {
    const top = Math.floor(place / columns) * stride - padding;
    const left = (place % columns) * stride - padding;
    for (let inside = 0; inside < kernel * kernel; inside += 1) {
      const row = top + Math.floor(inside / kernel);
      const column = left + (inside % kernel);
      const exists = row >= 0 && row < x.rows && column >= 0 && column < x.columns;
      visit(place, inside, exists ? row * x.columns + column : -1);
    }
  }
  return [rows, columns];
}

/* The pixels under a kernel as one token, row by row, channels last. */
function unfold(x, step) {
  const width = step.kernel ** 2 * x.width;
  const found = [];
  const shape = slide(x, step, (place, inside, from) => {
    if (from >= 0) found.push(place * width + inside * x.width, from * x.width);
  });
  const made = new Grid(...shape, width);
  for (let i = 0; i < found.length; i += 2) {
    for (let channel = 0; channel < x.width; channel += 1) {
      made.data[found[i] + channel] = x.data[found[i + 1] + channel];
    }
  }
  return made;
}

function maxPool(x, step) {
  const largest = [];
  const shape = slide(x, step, (place, inside, from) => {
    largest[place] ??= new Float32Array(x.width).fill(-Infinity);
    if (from < 0) return;
    for (let channel = 0; channel < x.width; channel += 1) {
      const value = x.data[from * x.width + channel];
      if (value > largest[place][channel]) largest[place][channel] = value;
    }
  });
  const made = new Grid(...shape, x.width);
  largest.forEach((values, place) => made.data.set(values, place * x.width));
  return made;
}

/* Replace a row of scores by its softmax. */
function softmax(row) {
  let [largest, sum] = [-Infinity, 0];
  for (let i = 0; i < row.length; i += 1) if (row[i] > largest) largest = row[i];
  for (let i = 0; i < row.length; i += 1) {
    row[i] = Math.exp(row[i] - largest);
    sum += row[i];
  }
  for (let i = 0; i < row.length; i += 1) row[i] /= sum;
  return row;
}
