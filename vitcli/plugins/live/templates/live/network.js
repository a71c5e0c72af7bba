/* The model inside the page: its weights and its forward pass.

   `packing.py` writes the model as steps. A step refers to weights as [kind, place, number], where
   the kind is 0 for values that are stored in half precision and 1 for single precision. Axes: N
   tokens (prefix first), D features, h heads, d = D / h. */

/* Decode numbers in half precision (IEEE 754, binary16). All of them are finite. */
function fromHalves(halves) {
  return Float64Array.from(halves, (bits) => {
    const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
    const size = exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
    return bits >> 15 ? -size : size;
  });
}

class Network {
  constructor(data) {
    Object.assign(this, data.model);
    const [halves, floats] = data.weights.map((text) => bytesOf(text).buffer);
    this.values = [fromHalves(new Uint16Array(halves)), Float64Array.from(new Float32Array(floats))];
    this.first = this.prefix ? this.prefix[2] / this.width : 0; // the first patch
    [this.rows, this.columns] = this.grid;
    this.tokens = this.first + this.rows * this.columns;
  }

  weight(place) {
    return place && this.values[place[0]].subarray(place[1], place[1] + place[2]);
  }

  /* Classify pixels, rows of H W C bytes.

     `removed` has two sets: `heads` ("layer head", from 0), whose output becomes 0, and `patches`
     (indices in reading order), whose pixels become the mean colour. Returns the logits, the logits
     after each layer (`lens`), the attention (layers, h, N, N) and the weight of each token in the
     pooling (`reading`). */
  run(pixels, removed = { heads: new Set(), patches: new Set() }) {
    let x = this.withPrefix(this.through(this.embed, this.normalised(pixels, removed.patches)));
    const size = this.heads * this.tokens ** 2;
    const attention = new Float32Array(this.blocks.length * size);
    const lens = this.blocks.map((block, layer) => {
      const matrices = attention.subarray(layer * size, (layer + 1) * size);
      const isRemoved = (head) => removed.heads.has(`${layer} ${head}`);
      for (const branch of block) x = this.branch(branch, x, matrices, isRemoved);
      return this.classify(x);
    });
    const { logits, reading } = lens.at(-1) ?? this.classify(x);
    return { logits, reading, attention, lens: lens.map((each) => each.logits) };
  }

  normalised(pixels, removedPatches) {
    const [height, width] = this.size;
    const { channels, scale, shift } = this;
    const x = new Grid(height, width, channels);
    for (let i = 0; i < pixels.length; i += 1) {
      const place = Math.floor(i / channels);
      const row = Math.floor((Math.floor(place / width) * this.rows) / height);
      const column = Math.floor(((place % width) * this.columns) / width);
      const channel = i % channels;
      const isGone = removedPatches.has(row * this.columns + column);
      x.data[i] = isGone ? 0 : pixels[i] * scale[channel] - shift[channel];
    }
    return x;
  }

  /* Add the positions, and put the prefix before the patches. */
  withPrefix(patches) {
    const positions = this.weight(this.positions);
    const made = new Grid(1, this.tokens, patches.width);
    if (this.prefix) made.data.set(this.weight(this.prefix));
    const from = this.first * patches.width;
    for (let i = 0; i < patches.data.length; i += 1) {
      made.data[from + i] = patches.data[i] + (positions ? positions[i] : 0);
    }
    return made;
  }

  through(steps, x, ...more) {
    return steps.reduce((value, step) => this[step.step](value, step, ...more), x);
  }

  /* A residual branch: post(x + gain * inner(pre(x))). */
  branch({ pre, inner, gain, adds, post }, x, ...more) {
    const out = this.through(inner, this.through(pre, x), ...more);
    const gains = this.weight(gain);
    for (let i = 0; i < out.data.length; i += 1) {
      const value = gains ? out.data[i] * gains[i % out.width] : out.data[i];
      out.data[i] = adds ? x.data[i] + value : value;
    }
    return this.through(post, out);
  }

  /* The final norm, the pooling and the head. */
  classify(tokens) {
    const x = this.through(this.norm, tokens);
    const reading = this.reads(x);
    const pooled = new Grid(1, 1, x.width);
    for (let i = 0; i < x.width; i += 1) {
      let sum = 0;
      for (let token = 0; token < this.tokens; token += 1) {
        sum += reading[token] * x.data[token * x.width + i];
      }
      pooled.data[i] = sum;
    }
    return { logits: this.through(this.head, pooled).data, reading };
  }

  /* The weight of each token in the pooling. */
  reads(x) {
    const reading = new Float64Array(this.tokens);
    const { kind, score } = this.pool;
    if (kind === "cls") {
      reading[0] = 1;
    } else if (kind === "mean") {
      reading.fill(1 / (this.tokens - this.first), this.first);
    } else {
      const scores = Float64Array.from(this.through(score, x).data.subarray(this.first));
      reading.set(softmax(scores), this.first);
    }
    return reading;
  }

  // --- steps, called by their names

  linear(x, { weight, bias }) {
    return linear(x, this.weight(weight), this.weight(bias));
  }

  layerNorm(x, { weight, bias, epsilon }) {
    return normalise(x, this.weight(weight), this.weight(bias), epsilon, true);
  }

  rmsNorm(x, { weight, epsilon }) {
    return normalise(x, this.weight(weight), null, epsilon, false);
  }

  affine(x, { weight, bias }) {
    return affine(x, this.weight(weight), this.weight(bias));
  }

  gelu(x) {
    return apply(x, (value) => 0.5 * value * (1 + erf(value * Math.SQRT1_2)));
  }

  relu(x) {
    return apply(x, (value) => Math.max(0, value));
  }

  gate(x) {
    return gate(x);
  }

  unfold(x, step) {
    return unfold(x, step);
  }

  maxPool(x, step) {
    return maxPool(x, step);
  }

  /* Write the weights into `matrices` (h, N, N). The output of a removed head is 0. */
  attention(x, step, matrices, isRemoved) {
    const qkv = this.through(step.qkv, x);
    const width = qkv.width / 3;
    if (step.turn) this.rotate(qkv, step.turn.map((place) => this.weight(place)));
    const out = x.like(width);
    for (let head = 0; head < this.heads; head += 1) {
      const weights = matrices.subarray(head * this.tokens ** 2, (head + 1) * this.tokens ** 2);
      this.weigh(qkv, step, head, weights);
      if (!isRemoved(head)) this.mix(qkv, head, weights, out);
    }
    return this.through(step.proj, out);
  }

  /* softmax(scale q k^T + bias) of one head: (N, N). */
  weigh(qkv, step, head, weights) {
    const { tokens } = this;
    const { data, width: all } = qkv;
    const size = all / 3 / this.heads;
    const scale = this.weight(step.scale)[head];
    const scores = new Float64Array(tokens);
    const offsets = this.weight(step.offsets);
    for (let query = 0; query < tokens; query += 1) {
      const q = query * all + head * size;
      for (let key = 0; key < tokens; key += 1) {
        const k = key * all + all / 3 + head * size;
        let sum = 0;
        for (let i = 0; i < size; i += 1) sum += data[q + i] * data[k + i];
        sum *= scale;
        if (step.clamp) sum = Math.min(step.clamp[1], Math.max(step.clamp[0], sum));
        scores[key] = sum;
        if (offsets) scores[key] += this.offsetBias(offsets, head, query, key);
      }
      weights.set(softmax(scores), query * tokens);
    }
  }

  /* The sum of the values, weighted by one head. */
  mix(qkv, head, weights, out) {
    const { tokens } = this;
    const { data } = qkv;
    const size = out.width / this.heads;
    const sums = new Float64Array(size);
    for (let query = 0; query < tokens; query += 1) {
      sums.fill(0);
      for (let key = 0; key < tokens; key += 1) {
        const share = weights[query * tokens + key];
        const v = key * qkv.width + 2 * out.width + head * size;
        for (let i = 0; i < size; i += 1) sums[i] += share * data[v + i];
      }
      out.data.set(sums, query * out.width + head * size);
    }
  }

  /* Rotate neighbouring features of q and k by the angles of the token: (N, d / 2). */
  rotate(qkv, [cos, sin]) {
    const pairs = cos.length / this.tokens;
    for (let token = 0; token < this.tokens; token += 1) {
      for (let head = 0; head < 2 * this.heads; head += 1) {
        for (let i = 0; i < pairs; i += 1) {
          const at = token * qkv.width + (head * pairs + i) * 2;
          const [even, odd] = [qkv.data[at], qkv.data[at + 1]];
          const [c, s] = [cos[token * pairs + i], sin[token * pairs + i]];
          qkv.data[at] = even * c - odd * s;
          qkv.data[at + 1] = even * s + odd * c;
        }
      }
    }
  }

  /* The learned bias of a head for the offset between two patches; 0 for the prefix. */
  offsetBias(offsets, head, query, key) {
    if (query < this.first || key < this.first) return 0;
    const [from, to] = [query - this.first, key - this.first];
    const { rows, columns } = this;
    const down = Math.floor(from / columns) - Math.floor(to / columns) + rows - 1;
    const right = (from % columns) - (to % columns) + columns - 1;
    const across = 2 * columns - 1;
    return offsets[(head * (2 * rows - 1) + down) * across + right];
  }
}

/* Return the attention rollout up to each layer, (layers, N, N): Abnar and Zuidema 2020.

   `keptHeads` lists the heads of each layer that are not removed. A removed head passes nothing on, so
   it is not in the mean over heads. */
function rollouts(attention, { heads, tokens, residual }, keptHeads) {
  const size = tokens * tokens;
  const made = new Float32Array(keptHeads.length * size);
  for (const [layer, kept] of keptHeads.entries()) {
    const mixed = new Float32Array(size);
    for (const head of kept) {
      const from = (layer * heads + head) * size;
      for (let i = 0; i < size; i += 1) mixed[i] += attention[from + i] / kept.length;
    }
    if (residual) addIdentity(mixed, tokens, kept.length > 0);
    const through = made.subarray(layer * size, (layer + 1) * size);
    if (layer === 0) through.set(mixed);
    else multiply(mixed, made.subarray((layer - 1) * size, layer * size), tokens, through);
  }
  return made;
}

/* Replace A by (A + I) / 2, or an empty A by I. */
function addIdentity(matrix, tokens, halves) {
  for (let i = 0; i < tokens; i += 1) matrix[i * (tokens + 1)] += 1;
  if (halves) for (let i = 0; i < matrix.length; i += 1) matrix[i] /= 2;
}

function multiply(left, right, tokens, target) {
  for (let row = 0; row < tokens; row += 1) {
    for (let i = 0; i < tokens; i += 1) {
      const share = left[row * tokens + i];
      for (let j = 0; j < tokens; j += 1) {
        target[row * tokens + j] += share * right[i * tokens + j];
      }
    }
  }
}
