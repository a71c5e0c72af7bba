/* A picture whose numbers the model inside the page computes, and its drawing. */

/* Rows of attention that are not compressed. */
class FloatRows {
  constructor(values, length) {
    Object.assign(this, { values, length });
  }

  addTo(target, row, factor) {
    const first = row * this.length;
    for (let i = 0; i < this.length; i += 1) target[i] += factor * this.values[first + i];
  }
}

class LiveScene extends Scene {
  /* `photo` has a name, the picture to show, its size, the box that the model sees, and pixels. */
  constructor(photo, network, about) {
    super({ ...about, ...photo });
    this.network = network;
    this.patches = new Set(); // the removed patches, from 0
  }

  /* Classify the picture, with and without what is removed. */
  compute(heads) {
    this.removedHeads = new Set(heads);
    this.whole ??= this.timed();
    this.result = this.changes ? this.timed({ heads, patches: this.patches }) : this.whole;
    this.reading = Array.from(this.result.reading);
    this.shares = this.probabilities(this.result.logits);
    this.before = this.probabilities(this.whole.logits);
    this.classes = likeliest(this.shares, 5).map((i) => [this.classNames[i], this.shares[i]]);
    this.kept.clear();
    this.decoded = this.rowsOf(this.result.attention);
  }

  timed(removed) {
    const start = performance.now();
    const result = this.network.run(this.pixels, removed);
    return { ...result, milliseconds: performance.now() - start };
  }

  probabilities(logits) {
    return softmax(Float64Array.from(logits, (logit) => logit / this.temperature));
  }

  /* Whether anything is removed. */
  get changes() {
    return this.patches.size + this.removedHeads.size > 0;
  }

  get numbers() {
    return this.decoded;
  }

  rowsOf(attention) {
    const { tokens } = this;
    const sizes = { heads: this.heads, tokens, residual: this.network.residual };
    const through = rollouts(attention, sizes, this.layers.map((_, layer) => this.keptHeads(layer)));
    return {
      heads: new FloatRows(this.withReadOut(attention), tokens),
      rollout: new FloatRows(this.withReadOut(through), tokens),
    };
  }

  /* Append the read-out's row to each matrix, the weighted mean of the rows; none for CLS. */
  withReadOut(matrices) {
    const { tokens, queries, reading } = this;
    if (queries === tokens) return matrices;
    const size = tokens * tokens;
    const made = new Float32Array((matrices.length / size) * queries * tokens);
    for (let matrix = 0; matrix * size < matrices.length; matrix += 1) {
      const rows = matrices.subarray(matrix * size, (matrix + 1) * size);
      const target = made.subarray(matrix * queries * tokens, (matrix + 1) * queries * tokens);
      target.set(rows);
      for (let i = 0; i < size; i += 1) {
        target[size + (i % tokens)] += reading[Math.floor(i / tokens)] * rows[i];
      }
    }
    return made;
  }

  keptHeads(layer) {
    return super.keptHeads().filter((head) => !this.removedHeads.has(`${layer} ${head}`));
  }
}

/* The indices of the largest values, largest first. */
function likeliest(values, count) {
  return [...values.keys()].sort((a, b) => values[b] - values[a] || a - b).slice(0, count);
}

/* The stage shows a removed patch in the colour that the model gets, with a cross. */
class LiveStage extends Stage {
  drawGround(opacity) {
    super.drawGround(opacity);
    this.context.fillStyle = `rgb(${this.scene.fill.join(" ")})`;
    for (const patch of this.scene.patches) {
      this.context.fillRect(...this.cell(this.scene.first + patch));
    }
  }

  drawFrames(query, probe) {
    for (const patch of this.scene.patches) this.drawCross(this.scene.first + patch);
    super.drawFrames(query, probe);
  }

  drawCross(patch) {
    const { context, unit } = this;
    const [x, y, width, height] = this.cell(patch);
    const inset = 0.3 * Math.min(width, height);
    for (const [colour, line] of [["rgb(0 0 0 / 70%)", 4 * unit], ["#fff", 2 * unit]]) {
      context.strokeStyle = colour;
      context.lineWidth = line;
      context.lineCap = "round";
      context.beginPath();
      context.moveTo(x + inset, y + inset);
      context.lineTo(x + width - inset, y + height - inset);
      context.moveTo(x + width - inset, y + inset);
      context.lineTo(x + inset, y + height - inset);
      context.stroke();
    }
  }
}
