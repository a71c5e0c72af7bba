/* Parts that are built for each scene: the buttons of the prefix tokens and the small maps. */

function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

function buttonOf(className, title, act) {
  const made = element("button", className);
  made.type = "button";
  made.title = title;
  made.addEventListener("click", act);
  return made;
}

/* Buttons of the read-out (unless it is CLS), CLS and registers. A click makes the token the
   query; the swatch shows the attention that the token gets. */
class Tokens {
  constructor(row, explorer) {
    this.explorer = explorer;
    const { scene } = explorer;
    this.cells = scene.prefix.map((name, index) => this.cell(index, name));
    if (scene.readOut === scene.tokens) this.cells.unshift(this.cell(scene.readOut, "read-out"));
    row.replaceChildren(...this.cells.map(({ button }) => button));
  }

  cell(query, name) {
    const { explorer } = this;
    const { scene } = explorer;
    const title = `What ${scene.nameOf(query)} attends to`;
    const button = buttonOf("token", title, () => explorer.pin(query));
    const [swatch, share] = [element("canvas", "swatch"), element("span", "number")];
    const isEven = new Set(scene.reading.slice(scene.prefix.length)).size === 1;
    swatch.hidden = query === scene.tokens && isEven; // its weights are all equal
    button.append(swatch, element("span", "label", name), share);
    button.addEventListener("pointerenter", (event) => explorer.hover(event, query));
    button.addEventListener("pointerleave", (event) => explorer.hover(event, null));
    return { query, button, swatch, share };
  }

  draw(row, scale) {
    const { scene, query: shown } = this.explorer;
    for (const { query, button, swatch, share } of this.cells) {
      if (query < scene.tokens) {
        paintPixels(swatch, 1, 1, () => scale.index(row[query]), scale.colours);
        share.textContent = percent(row[query]);
      } else if (!swatch.hidden) {
        const read = new Scale(scale.colours, scene.largest(scene.reading), false);
        paintThumb(swatch, scene, scene.reading, read);
      }
      button.setAttribute("aria-pressed", query === shown);
    }
  }

  /* Return the query after this one in the row; the first for a patch; null for an empty row. */
  after(query) {
    const index = this.cells.findIndex((cell) => cell.query === query);
    return this.cells.length ? this.cells[(index + 1) % this.cells.length].query : null;
  }
}

/* Table of small maps: a row for each layer; a column for each head, the mean and the rollout. */
class Maps {
  constructor(table, explorer) {
    this.explorer = explorer;
    const { scene } = explorer;
    this.columns = [...Array(scene.heads).keys(), MEAN, ROLLOUT];
    this.cells = scene.layers.flatMap((_, layer) =>
      this.columns.map((head) => this.cell(layer, head)),
    );
    const [, , wide, tall] = scene.box;
    table.style.setProperty("--maps", this.columns.length);
    table.style.setProperty("--layers", scene.layers.length);
    table.style.setProperty("--cell-ratio", (wide * scene.size[0]) / (tall * scene.size[1]));
    table.replaceChildren(...this.titles(), ...this.rows());
  }

  titles() {
    const title = (head) => {
      if (Number.isInteger(head)) return element("span", "title", head + 1);
      const made = element("span", "title word");
      made.append(element("span", "", head));
      return made;
    };
    return [element("span", "title"), ...this.columns.map(title)];
  }

  rows() {
    const across = this.columns.length;
    return this.explorer.scene.layers.flatMap((number, layer) => [
      element("span", "title", number),
      ...this.cells.slice(layer * across, (layer + 1) * across).map(({ button }) => button),
    ]);
  }

  cell(layer, head) {
    const { explorer } = this;
    const what = Number.isInteger(head) ? `head ${head + 1}` : head;
    const name = `layer ${explorer.scene.layers[layer]}, ${what}`;
    const button = buttonOf("map", name, () => explorer.show(layer, head));
    button.setAttribute("role", "radio");
    button.setAttribute("aria-label", name);
    button.append(element("canvas", ""));
    return { layer, head, button };
  }

  draw() {
    const { explorer } = this;
    for (const { layer, head, button } of this.cells) {
      const row = explorer.scene.attends(layer, head, explorer.query);
      paintThumb(button.firstChild, explorer.scene, row, explorer.scaleOf(head, row));
      const chosen = layer === explorer.layer && head === explorer.head;
      button.setAttribute("aria-checked", chosen);
      button.tabIndex = chosen ? 0 : -1;
    }
  }

  focus() {
    const { layer, head } = this.explorer;
    this.cells[layer * this.columns.length + this.columns.indexOf(head)].button.focus();
  }
}

/* Return "CLS", "CLS and registers" or "registers". */
function prefixText(names) {
  const kinds = new Set(names.map((name) => (name === "CLS" ? name : "registers")));
  return [...kinds].join(" and ");
}

function edgesText(edges) {
  if (!edges.length) return "No patch attends to another one.";
  const [least, most] = [edges.at(-1)[2], edges[0][2]].map(percent);
  const found = `The ${edges.length} strongest edges between patches, from ${least} to ${most}`;
  return `${found}. The dot is at the patch that gets the attention.`;
}
