/* The answer of the model: class probabilities, the logit lens, and the list of what is removed. */

/* A row with a bar: the share now, and a mark at the share of the whole picture. */
function barOf(share, before = null) {
  const bar = element("span", "share");
  const fill = element("span", "fill");
  fill.style.setProperty("--share", share);
  bar.append(fill);
  if (before !== null) {
    const mark = element("span", "mark");
    mark.style.setProperty("--share", before);
    bar.append(mark);
  }
  return bar;
}

class Answer {
  constructor(explorer) {
    this.explorer = explorer;
    this.part = (name) => explorer.part(name);
  }

  draw() {
    this.drawClasses();
    this.drawLens();
    this.drawRemoved();
    this.drawCheck();
  }

  /* The classes that are likeliest now or were likeliest before. */
  drawClasses() {
    const { scene } = this.explorer;
    const { shares, before, classNames, changes } = scene;
    const shown = likeliest(shares, 5);
    const [first] = likeliest(before, 1);
    if (!shown.includes(first)) shown.push(first);
    const rows = shown.map((i) => {
      const row = element("li", "");
      row.append(
        element("span", "label", classNames[i]),
        barOf(shares[i], changes ? before[i] : null),
        element("span", "number", inPercent(shares[i])),
        element("span", "change number", changes ? points(shares[i] - before[i]) : ""),
      );
      return row;
    });
    this.part("classes").replaceChildren(...rows);
    this.part("classes").classList.toggle("changed", changes);
  }

  /* The class that each layer would name, and its probability. */
  drawLens() {
    const { scene, layer } = this.explorer;
    const answer = likeliest(scene.shares, 1)[0];
    const rows = scene.result.lens.map((logits, i) => {
      const shares = scene.probabilities(logits);
      const [best] = likeliest(shares, 1);
      const row = element("li", "");
      row.classList.toggle("agrees", best === answer);
      if (i === layer) row.setAttribute("aria-current", "true");
      row.append(
        element("span", "title", scene.layers[i]),
        element("span", "label", scene.classNames[best]),
        barOf(shares[best]),
        element("span", "number", inPercent(shares[best])),
      );
      return row;
    });
    this.part("lens").replaceChildren(...rows);
  }

  /* List what is removed. The buttons are built again only if the list changes, so that they keep the
     focus; the focus of a button that goes moves to its neighbour. */
  drawRemoved() {
    const { explorer } = this;
    const { scene } = explorer;
    const removed = [...explorer.removed].map((key) => key.split(" ").map(Number));
    const heads = removed.sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([layer, head]) => [
      `layer ${scene.layers[layer]}, head ${head + 1}`,
      () => explorer.toggleHead(layer, head),
    ]);
    const patches = [...scene.patches].sort((a, b) => a - b).map((patch) => {
      const token = scene.first + patch;
      return [scene.nameOf(token), () => explorer.togglePatch(token)];
    });
    const parts = [...heads, ...patches];
    const list = parts.map(([name]) => name).join("; ");
    if (list === this.list) return;
    this.list = list;
    const [row, restore] = [this.part("chips"), this.part("restore")];
    const focused = [...row.children].indexOf(document.activeElement);
    const chips = parts.map(([name, act]) => {
      const button = buttonOf("chip", `Restore ${name}`, act);
      button.textContent = name;
      return button;
    });
    const hasFocus = focused >= 0 || (document.activeElement === restore && chips.length === 0);
    row.replaceChildren(...chips);
    restore.hidden = chips.length === 0;
    if (hasFocus) (chips[focused] ?? chips.at(-1) ?? this.part("remove-patches")).focus();
  }

  /* Compare with Python's logits, which the page holds for its first picture. */
  drawCheck() {
    const { scene, scenes } = this.explorer;
    this.difference ??= differenceOf(scenes[0]);
    const { largest, isWrong } = this.difference;
    this.part("check").textContent =
      isWrong || scene !== scenes[0]
        ? ""
        : `The logits of the whole picture equal Python's up to ${largest.toExponential(0)}.`;
    if (!isWrong || this.part("warning").textContent) return;
    this.part("warning").textContent =
      `This browser computes different logits from Python's: the difference is ${largest.toPrecision(2)}. ` +
      "Do not trust this page.";
  }
}

const TOLERANCE = 1e-3;

/* The largest difference between the logits of this browser and Python's, of the whole picture. */
function differenceOf(scene) {
  scene.whole ??= scene.timed();
  const largest = Math.max(...scene.logits.map((logit, i) => Math.abs(logit - scene.whole.logits[i])));
  const size = Math.max(1, ...scene.logits.map(Math.abs));
  return { largest, isWrong: !(largest <= TOLERANCE * size) }; // NaN is wrong too
}

/* A change of a share in percentage points. */
function points(change) {
  const text = (100 * Math.abs(change)).toFixed(1);
  const sign = text === "0.0" ? "\u00b1" : change < 0 ? "\u2212" : "+";
  return `${sign}${text}\u00a0points`;
}
