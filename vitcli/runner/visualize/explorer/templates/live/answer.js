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
      const shares = probabilities(logits);
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

  drawRemoved() {
    const { explorer } = this;
    const { scene } = explorer;
    const heads = [...explorer.removed].sort().map((key) => {
      const [layer, head] = key.split(" ").map(Number);
      return [`layer ${scene.layers[layer]}, head ${head + 1}`, () => explorer.toggleHead(layer, head)];
    });
    const patches = [...scene.patches].sort((a, b) => a - b).map((patch) => {
      const token = scene.first + patch;
      return [scene.nameOf(token), () => explorer.togglePatch(token)];
    });
    const chips = [...heads, ...patches].map(([name, act]) => {
      const button = buttonOf("chip", `Restore ${name}`, act);
      button.textContent = name;
      return button;
    });
    this.part("chips").replaceChildren(...chips);
    this.part("restore").hidden = chips.length === 0;
  }

  /* Compare with Python's logits, which the page holds for the picture it was written with. */
  drawCheck() {
    const { scene } = this.explorer;
    const expected = scene.logits;
    this.part("check").textContent = "";
    if (!expected) return;
    const differences = expected.map((logit, i) => Math.abs(logit - scene.whole.logits[i]));
    const largest = Math.max(...differences);
    const size = Math.max(1, ...expected.map(Math.abs));
    const isWrong = !(largest <= Answer.TOLERANCE * size); // NaN is wrong too
    this.part("check").classList.toggle("wrong", isWrong);
    this.part("check").textContent = isWrong
      ? `This browser computes other logits than Python: the difference is ${largest.toPrecision(2)}. Do not trust this page.`
      : `The logits of the whole picture equal Python's up to ${largest.toExponential(0)}.`;
  }
}
Answer.TOLERANCE = 1e-3;

function inPercent(share) {
  return `${(100 * share).toFixed(1)}\u00a0%`;
}

/* A change of a share in percentage points. */
function points(change) {
  const text = (100 * Math.abs(change)).toFixed(1);
  if (text === "0.0") return "\u00b10.0";
  return `${change < 0 ? "\u2212" : "+"}${text}`;
}
