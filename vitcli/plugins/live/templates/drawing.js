/* Drawing of a scene: the picture under its map, the small maps and the colour bar. */

/* Colours of shares. With a square-root scale, one strong value does not hide all others. */
class Scale {
  constructor(colours, largest, squareRoot) {
    this.colours = colours; // 256 times red, green, blue
    this.largest = largest || 1;
    this.squareRoot = squareRoot;
  }

  index(share) {
    const part = Math.min(1, share / this.largest);
    return Math.round(255 * (this.squareRoot ? Math.sqrt(part) : part));
  }

  css(share) {
    const i = 3 * this.index(share);
    return `rgb(${this.colours[i]} ${this.colours[i + 1]} ${this.colours[i + 2]})`;
  }

  /* The share at the middle of the colour bar. */
  get middle() {
    return this.largest * (this.squareRoot ? 0.25 : 0.5);
  }
}

/* Draw one pixel for each value. */
function paintPixels(canvas, width, height, index, colours) {
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const pixels = new ImageData(width, height);
  for (let i = 0; i < width * height; i += 1) {
    const colour = 3 * index(i);
    pixels.data.set(colours.subarray(colour, colour + 3), 4 * i);
    pixels.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

function paintThumb(canvas, scene, row, scale) {
  const index = (i) => scale.index(row[scene.first + i]);
  paintPixels(canvas, scene.columns, scene.rows, index, scale.colours);
}

function paintBar(canvas, scale) {
  paintPixels(canvas, 256, 1, (i) => i, scale.colours);
}

/* Picture on a canvas with the resolution of the screen. */
class Stage {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
  }

  show(scene, image) {
    this.scene = scene;
    this.image = image;
    this.grey = toGrey(image, scene.box);
  }

  /* Set the edges of the cells in whole canvas pixels, so that there are no gaps between cells. */
  measure() {
    const { canvas, scene } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight].map((x) =>
      Math.max(1, Math.round(x * ratio)),
    );
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    const [left, top, wide, tall] = scene.box;
    const cuts = (count, start, size, full) =>
      Array.from({ length: count + 1 }, (_, i) => Math.round(full * (start + (size * i) / count)));
    this.xs = cuts(scene.columns, left, wide, width);
    this.ys = cuts(scene.rows, top, tall, height);
    this.unit = ratio;
  }

  /* Return the patch under a point of the window, or null. */
  patchUnder(x, y) {
    const { left, top, width, height } = this.canvas.getBoundingClientRect();
    const [boxLeft, boxTop, wide, tall] = this.scene.box;
    const column = Math.floor((((x - left) / width - boxLeft) / wide) * this.scene.columns);
    const row = Math.floor((((y - top) / height - boxTop) / tall) * this.scene.rows);
    const inside =
      row >= 0 && row < this.scene.rows && column >= 0 && column < this.scene.columns;
    return inside ? this.scene.patchAt(row, column) : null;
  }

  draw({ row, scale, opacity, query, probe, marked, edges }) {
    this.measure();
    this.drawGround(opacity);
    this.drawMap(row, scale, edges ? 0.5 * opacity : opacity);
    this.drawGrid();
    if (edges) this.drawEdges(edges);
    marked.forEach((patch, i) => this.drawNumber(patch, i + 1));
    this.drawFrames(query, probe);
  }

  /* Draw the picture without a map. */
  drawPlain(query, probe) {
    this.measure();
    this.drawGround(0);
    this.drawFrames(query, probe);
  }

  /* Draw the picture: grey under the map, so that only the map has colours, and dimmed outside. */
  drawGround(opacity) {
    const { context, canvas, xs, ys } = this;
    const [x, y] = [xs[0], ys[0]];
    const [width, height] = [xs.at(-1) - x, ys.at(-1) - y];
    context.globalAlpha = 1;
    context.imageSmoothingQuality = "high";
    context.drawImage(this.image, 0, 0, canvas.width, canvas.height);
    context.fillStyle = "rgb(0 0 0 / 62%)";
    context.beginPath();
    context.rect(0, 0, canvas.width, canvas.height);
    context.rect(x, y, width, height);
    context.fill("evenodd");
    context.globalAlpha = Math.min(1, 2 * opacity);
    context.drawImage(this.grey, x, y, width, height);
    context.globalAlpha = 1;
  }

  drawMap(row, scale, opacity) {
    const { context, scene } = this;
    context.globalAlpha = opacity;
    for (let patch = scene.first; patch < scene.tokens; patch += 1) {
      context.fillStyle = scale.css(row[patch]);
      context.fillRect(...this.cell(patch));
    }
    context.globalAlpha = 1;
  }

  drawGrid() {
    const { context, xs, ys, unit } = this;
    if ((xs.at(-1) - xs[0]) / this.scene.columns < 8 * unit) return;
    context.fillStyle = "rgb(255 255 255 / 18%)";
    const thin = Math.max(1, Math.round(unit / 2));
    for (const x of xs.slice(1, -1)) context.fillRect(x, ys[0], thin, ys.at(-1) - ys[0]);
    for (const y of ys.slice(1, -1)) context.fillRect(xs[0], y, xs.at(-1) - xs[0], thin);
  }

  /* Draw arcs from query to key, bent to the right, with a dot at the key. */
  drawEdges(edges) {
    const { context, unit } = this;
    const strongest = edges.length ? edges[0][2] : 1;
    for (const [query, key, share] of [...edges].reverse()) {
      const [[x, y], [toX, toY]] = [this.centre(query), this.centre(key)];
      const bend = [(x + toX) / 2 - 0.18 * (toY - y), (y + toY) / 2 + 0.18 * (toX - x)];
      const width = unit * (0.8 + 2.4 * (share / strongest));
      for (const [colour, extra] of [["rgb(0 0 0 / 55%)", 2 * unit], ["#fff", 0]]) {
        context.strokeStyle = colour;
        context.fillStyle = colour;
        context.lineWidth = width + extra;
        context.lineCap = "round";
        context.beginPath();
        context.moveTo(x, y);
        context.quadraticCurveTo(...bend, toX, toY);
        context.stroke();
        context.beginPath();
        context.arc(toX, toY, 1.3 * width + extra / 2 + unit, 0, 2 * Math.PI);
        context.fill();
      }
    }
  }

  /* Draw the rank of a patch in its corner. */
  drawNumber(patch, number) {
    const { context, unit } = this;
    const [x, y, width, height] = this.cell(patch);
    if (Math.min(width, height) < 22 * unit) return;
    context.font = `600 ${11 * unit}px system-ui, sans-serif`;
    context.textBaseline = "top";
    context.lineWidth = 3 * unit;
    context.lineJoin = "round";
    context.strokeStyle = "rgb(0 0 0 / 70%)";
    context.fillStyle = "#fff";
    context.strokeText(number, x + 5 * unit, y + 5 * unit);
    context.fillText(number, x + 5 * unit, y + 5 * unit);
  }

  drawFrames(query, probe) {
    if (probe !== null && probe !== query) this.frame(probe, [this.unit * 3, this.unit * 3]);
    if (this.scene.isPatch(query)) this.frame(query, []);
  }

  /* Draw a white frame between black lines, which is visible on dark and on light. */
  frame(patch, dashes) {
    const { context, unit } = this;
    const [x, y, width, height] = this.cell(patch);
    for (const [colour, line] of [["rgb(0 0 0 / 80%)", 4 * unit], ["#fff", 2 * unit]]) {
      context.strokeStyle = colour;
      context.lineWidth = line;
      context.setLineDash(line === 2 * unit ? dashes : []);
      context.strokeRect(x, y, width, height);
    }
    context.setLineDash([]);
  }

  cell(patch) {
    const [row, column] = this.scene.place(patch);
    const { xs, ys } = this;
    return [xs[column], ys[row], xs[column + 1] - xs[column], ys[row + 1] - ys[row]];
  }

  centre(patch) {
    const [x, y, width, height] = this.cell(patch);
    return [x + width / 2, y + height / 2];
  }
}

/* Return the box of an image in grey. */
function toGrey(image, [left, top, wide, tall]) {
  const canvas = document.createElement("canvas");
  const [width, height] = [image.naturalWidth, image.naturalHeight];
  canvas.width = Math.max(1, Math.round(wide * width));
  canvas.height = Math.max(1, Math.round(tall * height));
  const context = canvas.getContext("2d");
  context.drawImage(image, -left * width, -top * height);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
  const { data } = pixels;
  for (let i = 0; i < data.length; i += 4) {
    data.fill(0.299 * data[i] + 0.587 * data[i + 1] + 0.114 * data[i + 2], i, i + 3);
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}
