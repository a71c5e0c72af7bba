/* The explorer: the user chooses a query, a layer and a head, and reads the attention.

   Every drawing writes the state to attributes of the .explorer element: data-scene (from 0),
   data-layer (the layer's number in the model, from 1), data-head (from 1, or mean, or rollout),
   data-query (a token from 0, or read-out), data-pinned, data-scale (own or shared), data-values
   (the shares of all tokens) and data-edges ([query, key, share], or empty). */

const PLAY_MS = 900;

class Explorer {
  constructor(root) {
    this.root = root;
    const data = JSON.parse(this.part("data").textContent);
    this.colours = bytesOf(data.colours);
    this.scenes = data.scenes.map((scene) => new Scene(scene));
    this.stage = new Stage(this.part("stage"));
    this.plain = new Stage(this.part("plain"));
    this.edges = false;
    this.part("count").max = Scene.MAX_EDGES;
    this.numEdges = Number(this.part("count").value);
    this.shared = false;
    this.hovered = this.probe = this.pinned = null;
    this.head = MEAN;
    this.layer = this.scenes[0].layers.length - 1;
    this.buttons = new Map(); // scene -> its button in the row of pictures
    this.buildPictures();
    this.listen();
    this.choose(0);
  }

  part(className) {
    return this.root.querySelector(`.${className}`);
  }

  get query() {
    return this.pinned ?? this.hovered ?? this.scene.readOut;
  }

  /* Show another picture. A pinned query is unpinned if the new scene has other tokens. */
  async choose(index) {
    const scene = this.scenes[index];
    const image = new Image();
    image.src = scene.picture;
    this.wanted = scene;
    await image.decode();
    if (this.wanted !== scene) return;
    this.hovered = this.probe = null;
    if (this.scene && !this.scene.hasTokensOf(scene)) this.pinned = null;
    this.index = this.scenes.indexOf(scene);
    this.scene = scene;
    this.layer = Math.min(Math.max(this.layer, 0), scene.layers.length - 1);
    if (Number.isInteger(this.head) && this.head >= scene.heads) this.head = MEAN;
    this.stage.show(scene, image);
    this.plain.show(scene, image);
    this.part("halves").style.setProperty("--ratio", scene.size[0] / scene.size[1]);
    this.buildPrediction();
    this.tokens = new Tokens(this.part("tokens"), this);
    this.buildLayersAndHeads();
    this.maps = new Maps(this.part("maps"), this);
    this.update();
  }

  // --- parts that depend on the scene

  buildPictures() {
    const row = this.part("pictures");
    row.hidden = this.scenes.length < 2;
    for (const scene of this.scenes) {
      const button = buttonOf("picture", scene.name, () => this.choose(this.scenes.indexOf(scene)));
      const image = element("img", "");
      image.src = scene.picture;
      image.alt = scene.name;
      button.append(image);
      row.append(button);
      this.buttons.set(scene, button);
    }
  }

  buildPrediction() {
    const [best, ...others] = this.scene.classes; // empty if the model does not classify
    const rest = others.map(([name, value]) => `${name} ${inPercent(value)}`).join(", ");
    this.part("prediction").replaceChildren(
      element("strong", "", best ? best[0] : ""),
      element("span", "number", best ? ` ${inPercent(best[1])}` : ""),
      element("span", "others", rest && `then ${rest}`),
      element("span", "name", this.scene.name),
    );
  }

  buildLayersAndHeads() {
    this.part("layer").max = this.scene.layers.length;
    const option = (head, text) => {
      const made = element("option", "", text);
      made.value = head;
      return made;
    };
    this.part("head").replaceChildren(
      option(MEAN, "mean"),
      ...Array.from({ length: this.scene.heads }, (_, i) => option(i, `${i + 1}`)),
      option(ROLLOUT, "rollout"),
    );
  }

  // --- input of the user

  listen() {
    const { canvas } = this.stage;
    const patch = (event) => this.stage.patchUnder(event.clientX, event.clientY);
    canvas.addEventListener("pointermove", (event) => this.point(event, patch(event)));
    canvas.addEventListener("pointerleave", (event) => this.point(event, null));
    canvas.addEventListener("click", (event) => {
      if (patch(event) !== null) this.click(patch(event));
    });
    const on = (name, type, act) => this.part(name).addEventListener(type, act);
    on("layer", "input", (event) => this.show(event.target.value - 1, this.head));
    on("head", "change", ({ target }) =>
      this.show(this.layer, [MEAN, ROLLOUT].includes(target.value) ? target.value : +target.value),
    );
    on("play", "click", () => this.play());
    on("release", "click", () => this.pin(null));
    on("edges", "click", () => this.set({ edges: !this.edges }));
    on("count", "input", (event) => this.set({ numEdges: Number(event.target.value) }));
    on("shared", "click", () => this.set({ shared: !this.shared }));
    on("opacity", "input", () => this.update());
    on("help", "click", () => this.part("keys").showModal());
    on("close", "click", () => this.part("keys").close());
    on("maps", "keydown", (event) => this.walkMaps(event));
    const target = this.root.dataset.keys === "page" ? document : this.root;
    target.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.update()).observe(canvas);
  }

  set(changes) {
    Object.assign(this, changes);
    this.update();
  }

  show(layer, head) {
    this.set({ layer: Math.min(Math.max(layer, 0), this.scene.layers.length - 1), head });
  }

  /* A mouse shows the patch under it; a finger that moves sideways pins the patch under it. */
  point(event, patch) {
    if (event.pointerType === "touch") {
      if (event.type === "pointermove" && patch !== null) this.set({ pinned: patch });
    } else {
      this.set({ hovered: patch, probe: patch });
    }
  }

  hover(event, query) {
    if (event.pointerType !== "touch") this.set({ hovered: query });
  }

  click(patch) {
    this.pin(patch);
  }

  /* Pin a query, or unpin it if it is already pinned. */
  pin(query) {
    this.set({ pinned: query === this.pinned ? null : query });
  }

  play(on = !this.timer) {
    clearInterval(this.timer);
    this.timer = 0;
    const last = this.scene.layers.length - 1;
    if (on) {
      if (this.layer === last) this.layer = 0;
      this.timer = setInterval(() => {
        if (this.layer < last) this.layer += 1;
        if (this.layer === last) this.play(false);
        this.update();
      }, PLAY_MS);
    }
    this.update();
  }

  /* Move the query by one patch, or to the middle patch if the query is not a patch. */
  walk(down, right) {
    const { scene } = this;
    const middle = [Math.floor(scene.rows / 2), Math.floor(scene.columns / 2)];
    let [row, column] = middle;
    if (scene.isPatch(this.query)) {
      [row, column] = scene.place(this.query);
      row = Math.min(Math.max(row + down, 0), scene.rows - 1);
      column = Math.min(Math.max(column + right, 0), scene.columns - 1);
    }
    this.set({ pinned: scene.patchAt(row, column) });
  }

  /* Move along the row of small maps: the heads, their mean, the rollout. */
  moveAcross(step) {
    const { columns } = this.maps;
    const index = columns.indexOf(this.head) + step;
    this.show(this.layer, columns[Math.min(Math.max(index, 0), columns.length - 1)]);
  }

  nextToken() {
    const query = this.tokens.after(this.query);
    if (query !== null) this.set({ pinned: query });
  }

  /* Handle the arrow keys while a small map has the focus. */
  walkMaps(event) {
    const steps = {
      ArrowUp: () => this.show(this.layer - 1, this.head),
      ArrowDown: () => this.show(this.layer + 1, this.head),
      ArrowLeft: () => this.moveAcross(-1),
      ArrowRight: () => this.moveAcross(1),
    };
    if (!steps[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    steps[event.key]();
    this.maps.focus();
    this.speak();
  }

  press(event) {
    const { target, key } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || this.part("keys").open) return;
    if (target.matches?.("input, select") && !"[]?".includes(key) && key !== "Escape") return;
    if (target.matches?.("button") && (key === " " || key === "Enter")) return;
    const act = this.keys()[key];
    if (!act) return;
    event.preventDefault();
    act();
    this.speak();
  }

  keys() {
    const keys = {
      ArrowUp: () => this.walk(-1, 0),
      ArrowDown: () => this.walk(1, 0),
      ArrowLeft: () => this.walk(0, -1),
      ArrowRight: () => this.walk(0, 1),
      Escape: () => this.set({ pinned: null }),
      "[": () => this.show(this.layer - 1, this.head),
      "]": () => this.show(this.layer + 1, this.head),
      ",": () => this.moveAcross(-1),
      ".": () => this.moveAcross(1),
      h: () => this.show(this.layer, MEAN),
      r: () => this.show(this.layer, ROLLOUT),
      c: () => this.nextToken(),
      e: () => this.set({ edges: !this.edges }),
      s: () => this.set({ shared: !this.shared }),
      " ": () => this.play(),
      "?": () => this.part("keys").showModal(),
    };
    for (let head = 0; head < Math.min(this.scene.heads, 10); head += 1) {
      keys[(head + 1) % 10] = () => this.show(this.layer, head);
    }
    return keys;
  }

  // --- output

  /* Draw at most once a frame. */
  update() {
    if (!this.scene || this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const { scene, layer, head, query } = this;
    const row = scene.attends(layer, head, query);
    const scale = this.scaleOf(head, row);
    const edges = this.edges ? scene.edges(layer, head, this.numEdges) : null;
    const strongest = scene.strongest(row, 3);
    const probe = this.pinned === null ? null : this.probe;
    this.plain.drawPlain(query, probe);
    this.stage.draw({
      row,
      scale,
      query,
      probe,
      edges,
      opacity: this.part("opacity").value / 100,
      marked: edges ? [] : strongest,
    });
    this.tokens.draw(row, scale);
    this.maps.draw();
    this.drawBar(scale);
    this.drawControls();
    this.drawWords(row, strongest, edges);
    this.report(row, edges);
  }

  /* Return the colour scale of a row: its own, or one for all layers and heads. */
  scaleOf(head, row) {
    if (!this.shared) return new Scale(this.colours, this.scene.largest(row), head === ROLLOUT);
    return new Scale(this.colours, this.scene.largestOfAll(head, this.query), true);
  }

  drawBar(scale) {
    paintBar(this.part("colours"), scale);
    const [, middle, most] = this.part("ticks").children;
    middle.textContent = percent(scale.middle);
    most.textContent = percent(scale.largest);
    const kind = scale.squareRoot ? ", square-root scale" : "";
    this.part("unit").textContent = `share of attention${kind}`;
  }

  drawControls() {
    const pressed = (name, on) => this.part(name).setAttribute("aria-pressed", on);
    const number = this.scene.layers[this.layer];
    this.part("layer").value = this.layer + 1;
    this.part("layer").setAttribute("aria-valuetext", `layer ${number}`);
    this.part("layer-number").textContent = `${number}`;
    this.part("head").value = this.head;
    pressed("play", Boolean(this.timer));
    pressed("edges", this.edges);
    pressed("shared", this.shared);
    this.part("counting").hidden = !this.edges;
    this.part("count-number").textContent = `${this.numEdges}`;
    this.part("release").hidden = this.pinned === null;
    this.buttons.forEach((button, scene) => button.setAttribute("aria-pressed", scene === this.scene));
  }

  drawWords(row, strongest, edges) {
    const { scene } = this;
    const name = scene.nameOf(this.query);
    this.part("who").textContent = name[0].toUpperCase() + name.slice(1);
    this.part("where").textContent = this.where();
    const describe = (patch) => `${scene.nameOf(patch)}: ${percent(row[patch])}`;
    this.part("probe").textContent = this.probe === null ? "\u2013" : describe(this.probe);
    const top = strongest.map((patch) => {
      const item = element("li", "", scene.nameOf(patch));
      item.append(element("span", "number", percent(row[patch])));
      return item;
    });
    this.part("strongest").replaceChildren(...top);
    this.part("to-prefix").hidden = !scene.first;
    this.part("prefix-names").textContent = `to ${prefixText(scene.prefix)}`;
    const prefix = row.slice(0, scene.first).reduce((sum, share) => sum + share, 0);
    this.part("prefix-sum").textContent = percent(prefix);
    this.part("edge-note").textContent = edges ? edgesText(edges) : "";
  }

  where() {
    const number = this.scene.layers[this.layer];
    if (this.head === ROLLOUT) {
      return `rollout through ${number > 1 ? `layers 1 to ${number}` : "layer 1"}`;
    }
    if (this.head !== MEAN) return `layer ${number}, head ${this.head + 1}`;
    const count = this.scene.heads;
    return `layer ${number}, mean of ${count} ${count > 1 ? "heads" : "head"}`;
  }

  /* Tell a screen reader the result of a key. */
  speak() {
    const { scene } = this;
    const row = scene.attends(this.layer, this.head, this.query);
    const most = scene.strongest(row, 1).map((patch) => `${scene.nameOf(patch)}, ${percent(row[patch])}`);
    this.part("announcement").textContent =
      `${scene.nameOf(this.query)}, ${this.where()}: most to ${most[0] ?? "no patch"}`;
  }

  report(row, edges) {
    const rounded = (share) => Number(share.toFixed(7));
    Object.assign(this.root.dataset, {
      scene: this.index,
      layer: this.scene.layers[this.layer],
      head: Number.isInteger(this.head) ? this.head + 1 : this.head,
      query: this.query < this.scene.tokens ? this.query : "read-out",
      pinned: this.pinned !== null,
      scale: this.shared ? "shared" : "own",
      values: JSON.stringify(Array.from(row, rounded)),
      edges: edges ? JSON.stringify(edges.map(([q, k, share]) => [q, k, rounded(share)])) : "",
    });
  }
}
