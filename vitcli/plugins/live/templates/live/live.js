/* The explorer with the model inside: it also classifies photos that the user drops, and classifies
   again when the user removes heads of the model or patches of the picture.

   Further attributes of the .explorer element: data-logits, data-lens (logits after each layer),
   data-removed-heads (["layer head", ...], from 0), data-removed-patches (from 0) and
   data-milliseconds (time of one forward pass). */

const MAX_PHOTOS = 12;

class LiveExplorer extends Explorer {
  makeScenes(data) {
    this.network = new Network(data);
    this.removed = new Set(); // the removed heads, "layer head" from 0
    this.removes = false; // a click removes a patch
    this.about = data.about;
    this.answer = new Answer(this);
    return data.scenes.map((photo) => this.makeScene({ ...photo, pixels: bytesOf(photo.pixels) }));
  }

  makeScene(photo) {
    return new LiveScene(photo, this.network, this.about);
  }

  makeStage(name) {
    return new LiveStage(this.part(name));
  }

  /* Also tell a screen reader the answer. */
  async choose(index) {
    const scene = this.scenes[index];
    await super.choose(index);
    if (this.scene === scene) this.say(this.sentence());
  }

  /* Compute with what is removed by now: heads can be removed while the picture loads. */
  prepare(scene) {
    scene.compute(this.removed);
  }

  // --- photos

  /* The row also holds the button that adds photos. */
  buildPictures() {
    super.buildPictures();
    this.part("pictures").hidden = false;
  }

  /* Add photo files, newest last, and show the last one that can be read. Above MAX_PHOTOS, the oldest
     photos go; the first picture stays, because it is compared with Python. */
  async add(files) {
    const complaints = [];
    for (const file of files) {
      try {
        const photo = await readPhoto(file, this.network.size, this.network.channels);
        this.scenes.push(this.makeScene(photo));
      } catch (error) {
        complaints.push(error.message);
      }
    }
    this.part("complaint").textContent = complaints.join(" ");
    if (complaints.length === files.length) return;
    const spare = Math.max(0, this.scenes.length - MAX_PHOTOS);
    this.scenes.splice(1, spare);
    this.buildPictures();
    await this.choose(this.scenes.length - 1);
  }

  /* The headline; the list of classes below the picture names the others. */
  buildPrediction() {
    super.buildPrediction();
    const { before, changes, classNames } = this.scene;
    const [first] = likeliest(before, 1);
    this.part("others").textContent = changes
      ? `with nothing removed: ${classNames[first]} ${inPercent(before[first])}`
      : "";
  }

  // --- input of the user

  listen() {
    super.listen();
    const on = (name, type, act) => this.part(name).addEventListener(type, act);
    on("open", "click", () => this.part("file").click());
    on("file", "change", ({ target }) => {
      this.add([...target.files]);
      target.value = "";
    });
    on("remove-head", "click", () => this.toggleHead());
    on("remove-patches", "click", () => this.set({ removes: !this.removes }));
    on("restore", "click", () => this.restore());
    document.addEventListener("paste", ({ clipboardData }) => {
      if (clipboardData?.files.length) this.add([...clipboardData.files]);
    });
    document.addEventListener("dragover", (event) => this.drag(event, true));
    document.addEventListener("dragleave", (event) => this.drag(event, false));
    document.addEventListener("drop", (event) => {
      this.drag(event, false);
      if (event.dataTransfer?.files.length) this.add([...event.dataTransfer.files]);
    });
  }

  drag(event, isOver) {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    this.root.classList.toggle("dragging", isOver);
  }

  click(patch) {
    if (this.removes) this.togglePatch(patch);
    else super.click(patch);
  }

  keys() {
    return {
      ...super.keys(),
      x: () => this.scene.isPatch(this.query) && this.togglePatch(this.query),
      X: () => this.toggleHead(),
      u: () => this.restore(),
      o: () => this.part("file").click(),
    };
  }

  // --- what is removed

  /* Remove a head, or restore it. Default: the chosen head. */
  toggleHead(layer = this.layer, head = this.head) {
    if (!Number.isInteger(head)) return;
    toggle(this.removed, `${layer} ${head}`);
    this.compute();
  }

  togglePatch(token) {
    toggle(this.scene.patches, token - this.scene.first);
    this.compute();
  }

  restore() {
    this.removed.clear();
    this.scene.patches.clear();
    this.compute();
  }

  compute() {
    this.scene.compute(this.removed);
    this.buildPrediction();
    this.update();
    this.say(this.sentence());
  }

  // --- output

  draw() {
    super.draw();
    this.answer.draw();
    for (const { layer, head, button } of this.maps.cells) {
      const isRemoved = this.removed.has(`${layer} ${head}`);
      button.classList.toggle("removed", isRemoved);
      button.setAttribute("aria-label", isRemoved ? `${button.title}, removed` : button.title);
    }
  }

  drawControls() {
    super.drawControls();
    const isHead = Number.isInteger(this.head);
    const isRemoved = this.removed.has(`${this.layer} ${this.head}`);
    this.part("remove-head").disabled = !isHead;
    this.part("remove-head").setAttribute("aria-pressed", isRemoved);
    this.part("remove-patches").setAttribute("aria-pressed", this.removes);
    this.part("stage").classList.toggle("removes", this.removes);
    const time = this.scene.result.milliseconds;
    this.part("time").textContent = `${time < 9.95 ? time.toFixed(1) : Math.round(time)}\u00a0ms for this answer.`;
  }

  /* Say what a key did: the answer if the key changed it, otherwise the attention. */
  speak() {
    if (!this.hasSaid) super.speak();
    this.hasSaid = false;
  }

  say(sentence) {
    this.hasSaid = true;
    queueMicrotask(() => {
      this.hasSaid = false;
    });
    this.part("announcement").textContent = sentence;
  }

  /* The answer as a sentence, for screen readers. */
  sentence() {
    const { scene } = this;
    const [[name, share]] = scene.classes;
    const [first] = likeliest(scene.before, 1);
    const now = `${scene.name}: ${name}, ${inPercent(share)}`;
    if (!scene.changes) return now;
    return `${now}; with nothing removed: ${scene.classNames[first]}, ${inPercent(scene.before[first])}`;
  }

  report(row, edges) {
    super.report(row, edges);
    const { result, patches } = this.scene;
    Object.assign(this.root.dataset, {
      logits: JSON.stringify(Array.from(result.logits)),
      lens: JSON.stringify(result.lens.map((logits) => Array.from(logits))),
      removedHeads: JSON.stringify([...this.removed]),
      removedPatches: JSON.stringify([...patches]),
      milliseconds: result.milliseconds,
    });
  }
}

function toggle(set, value) {
  if (!set.delete(value)) set.add(value);
}

const explorers = [...document.querySelectorAll(".explorer")].map((root) => new LiveExplorer(root));
