"use strict";
/* The numbers of a scene: every row of every attention matrix.

   Tokens are counted from 0: the prefix (CLS, registers), then the patches in reading order. A query
   is a token or `scene.readOut`, the input of the classifier. If that is CLS alone, the read-out is
   CLS; otherwise it is an extra row after the last token. A layer is an index into `scene.layers`.
   A head is an index, MEAN (over the heads of the layer) or ROLLOUT (the attention rollout up to
   the layer). */

const MEAN = "mean";
const ROLLOUT = "rollout";

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/* Rows of bytes. A value is (byte / 255)^2 times the maximum of its row. */
class Rows {
  constructor(bytes, maxima) {
    this.bytes = bytesOf(bytes);
    this.maxima = new Float32Array(bytesOf(maxima).buffer);
    this.length = this.bytes.length / this.maxima.length;
  }

  addTo(target, row, factor) {
    const step = (factor * this.maxima[row]) / 255 ** 2;
    const first = row * this.length;
    for (let i = 0; i < this.length; i += 1) target[i] += step * this.bytes[first + i] ** 2;
  }
}

class Scene {
  constructor(data) {
    Object.assign(this, data);
    [this.rows, this.columns] = data.grid;
    this.first = data.prefix.length; // the first patch
    this.tokens = this.first + this.rows * this.columns;
    this.queries = Math.max(this.tokens, this.readOut + 1); // rows of a matrix
    this.kept = new Map();
  }

  /* Decode the rows when the scene is first shown. */
  get numbers() {
    this.decoded ??= {
      heads: new Rows(this.attention, this.maxima),
      rollout: new Rows(this.rollout, this.rolloutMaxima),
    };
    return this.decoded;
  }

  /* Return the attention of a query: a share for each token. */
  attends(layer, head, query) {
    const row = new Float32Array(this.tokens);
    const { heads, rollout } = this.numbers;
    const at = (index) => (layer * this.heads + index) * this.queries + query;
    if (head === ROLLOUT) rollout.addTo(row, layer * this.queries + query, 1);
    else if (head !== MEAN) heads.addTo(row, at(head), 1);
    else for (let each = 0; each < this.heads; each += 1) heads.addTo(row, at(each), 1 / this.heads);
    return row;
  }

  /* Return the largest share of a patch in a row. */
  largest(row) {
    let largest = 0;
    for (let i = this.first; i < this.tokens; i += 1) largest = Math.max(largest, row[i]);
    return largest;
  }

  /* Return the largest share of a patch for one query in all layers, over heads or over rollouts. */
  largestOfAll(head, query) {
    const heads = head === ROLLOUT ? [ROLLOUT] : [...Array(this.heads).keys()];
    return this.once(`largest ${head === ROLLOUT} ${query}`, () => {
      const found = this.layers.flatMap((_, layer) =>
        heads.map((each) => this.largest(this.attends(layer, each, query))),
      );
      return Math.max(...found);
    });
  }

  /* Return the strongest attention from patch to patch: [query, key, share], strongest first. */
  edges(layer, head, count) {
    return this.once(`edges ${layer} ${head}`, () => {
      const found = [];
      for (let query = this.first; query < this.tokens; query += 1) {
        const row = this.attends(layer, head, query);
        for (let key = this.first; key < this.tokens; key += 1) {
          if (key !== query && row[key] > 0) found.push([query, key, row[key]]);
        }
      }
      return found.sort((a, b) => b[2] - a[2]).slice(0, Scene.MAX_EDGES);
    }).slice(0, count);
  }

  /* Return the patches with the largest shares, largest first. No patch has the share 0. */
  strongest(row, count) {
    const patches = [...row.keys()].slice(this.first).filter((patch) => row[patch] > 0);
    return patches.sort((a, b) => row[b] - row[a] || a - b).slice(0, count);
  }

  hasTokensOf(other) {
    return `${this.prefix} ${this.grid} ${this.pool}` === `${other.prefix} ${other.grid} ${other.pool}`;
  }

  once(key, compute) {
    if (!this.kept.has(key)) this.kept.set(key, compute());
    return this.kept.get(key);
  }

  isPatch(token) {
    return token >= this.first && token < this.tokens;
  }

  place(patch) {
    const index = patch - this.first;
    return [Math.floor(index / this.columns), index % this.columns];
  }

  patchAt(row, column) {
    return this.first + row * this.columns + column;
  }

  nameOf(query) {
    if (query === this.readOut) return this.reader;
    if (!this.isPatch(query)) return this.prefix[query];
    const [row, column] = this.place(query);
    return `row ${row + 1}, column ${column + 1}`;
  }
}
Scene.MAX_EDGES = 100;

/* Return a probability in per cent, with one decimal. */
function inPercent(probability) {
  return `${(100 * probability).toFixed(1)}\u00a0%`;
}

/* Return a share in per cent, with two decimals below 10 % and one above. */
function percent(share) {
  const hundredfold = 100 * share;
  if (hundredfold > 0 && hundredfold < 0.005) return "<0.01\u00a0%";
  return `${hundredfold.toFixed(hundredfold < 9.995 ? 2 : 1)}\u00a0%`;
}
