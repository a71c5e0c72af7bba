/* The learning curves of the selected rows: means, bands, and a cursor that reads them. */

const MAX_CURVES = 35;
const EDGES = { top: 10, right: 12, bottom: 26, left: 48 };

/* Return about five round numbers between two numbers. */
function ticks(low, high) {
  const raw = (high - low || Math.abs(high) || 1) / 5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= raw);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: 12 }, (_, i) => (first + i) * step).filter((tick) => tick <= high + step * 1e-9);
}

const short = (value) => Number(value.toPrecision(4)).toString();

class Chart {
  constructor(svg, onCursor) {
    this.svg = svg;
    this.onCursor = onCursor;
    this.curves = [];
    this.cursor = null;
    svg.addEventListener("pointermove", (event) => this.point(event));
    svg.addEventListener("pointerleave", () => this.move(null));
    svg.addEventListener("keydown", (event) => this.step(event));
    new ResizeObserver(() => this.draw()).observe(svg);
  }

  /* Show curves, each {curve, colour, dash}, of numbers that are multiplied by a scale. */
  show(curves, title, scale) {
    Object.assign(this, { curves, title, scale, cursor: null });
    this.epochs = unique(curves.flatMap(({ curve }) => [...curve.epochs, ...curve.tails.flat().map(([epoch]) => epoch)]));
    this.epochs.sort((a, b) => a - b);
    this.draw();
  }

  draw() {
    this.svg.replaceChildren();
    if (!this.curves.length) return;
    this.measure();
    this.drawAxes();
    for (const each of this.curves) this.drawCurve(each);
    this.line = shape("line", { class: "cursor", y1: EDGES.top, y2: this.height - EDGES.bottom });
    this.svg.append(this.line);
    this.move(null);
  }

  measure() {
    this.width = this.svg.clientWidth;
    this.height = this.svg.clientHeight;
    const values = this.curves.flatMap(({ curve }) => [
      ...curve.mean.map((value, i) => value - curve.spread[i]),
      ...curve.mean.map((value, i) => value + curve.spread[i]),
      ...curve.tails.flat().map(([, value]) => value),
    ]);
    const low = values.reduce((a, b) => Math.min(a, b)) * this.scale;
    const high = values.reduce((a, b) => Math.max(a, b)) * this.scale;
    const margin = 0.04 * (high - low || Math.abs(high) || 1);
    this.low = low - margin;
    this.high = high + margin;
    this.first = this.epochs[0];
    this.last = Math.max(this.epochs.at(-1), this.first + 1);
  }

  x(epoch) {
    return EDGES.left + ((epoch - this.first) / (this.last - this.first)) * (this.width - EDGES.left - EDGES.right);
  }

  y(value) {
    const share = (this.scale * value - this.low) / (this.high - this.low);
    return this.height - EDGES.bottom - share * (this.height - EDGES.top - EDGES.bottom);
  }

  drawAxes() {
    const bottom = this.height - EDGES.bottom;
    for (const tick of ticks(this.low, this.high)) {
      const y = this.y(tick / this.scale);
      this.svg.append(shape("line", { class: "grid", x1: EDGES.left, x2: this.width - EDGES.right, y1: y, y2: y }));
      this.svg.append(shape("text", { x: EDGES.left - 6, y: y + 4, "text-anchor": "end" }, short(tick)));
    }
    for (const tick of ticks(this.first, this.last).filter(Number.isInteger)) {
      this.svg.append(shape("text", { x: this.x(tick), y: bottom + 16, "text-anchor": "middle" }, short(tick)));
    }
    this.svg.append(shape("text", { x: 0, y: bottom + 16 }, "epoch"));
  }

  drawCurve({ curve, colour, dash }) {
    const group = shape("g", { class: colour });
    const path = (points) => `M${points.map(([epoch, value]) => `${this.x(epoch).toFixed(1)} ${this.y(value).toFixed(1)}`).join("L")}`;
    const edge = (sign) => curve.epochs.map((epoch, i) => [epoch, curve.mean[i] + sign * curve.spread[i]]);
    if (curve.count > 1 && curve.epochs.length > 1) {
      group.append(shape("path", { class: "band", d: `${path([...edge(1), ...edge(-1).reverse()])}Z` }));
    }
    const points = edge(0);
    if (points.length > 1) group.append(shape("path", { class: `curve ${dash}`, d: path(points) }));
    if (points.length === 1) group.append(shape("circle", { class: "dot", r: 3, cx: this.x(points[0][0]), cy: this.y(points[0][1]) }));
    for (const tail of curve.count > 1 ? curve.tails : []) group.append(shape("path", { class: "curve tail", d: path(tail) }));
    this.svg.append(group);
  }

  point(event) {
    if (!this.curves.length) return;
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    const near = (a, b) => (Math.abs(this.x(a) - x) < Math.abs(this.x(b) - x) ? a : b);
    this.move(this.epochs.reduce(near));
  }

  step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !this.curves.length) return;
    event.preventDefault();
    const now = this.cursor === null ? (by > 0 ? -1 : this.epochs.length) : this.epochs.indexOf(this.cursor);
    this.move(this.epochs[Math.min(Math.max(now + by, 0), this.epochs.length - 1)]);
  }

  move(epoch) {
    this.cursor = epoch;
    const x = epoch === null ? -9 : this.x(epoch);
    for (const end of ["x1", "x2"]) this.line?.setAttribute(end, x);
    this.line?.toggleAttribute("hidden", epoch === null);
    this.onCursor(epoch);
  }
}
