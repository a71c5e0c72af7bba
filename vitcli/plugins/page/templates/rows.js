/* Rows of the table: a row is one run, or all seeds of one variant. */

const SVG = "http://www.w3.org/2000/svg";
const numberFormat = new Intl.NumberFormat("en-US");

/* Return an element with text and classes. Texts of runs are written only here, never as markup. */
function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function shape(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

const unique = (values) => [...new Set(values)];
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/* Return the standard deviation of a sample; 0 of a single value. */
function deviation(values) {
  const centre = mean(values);
  const squares = values.reduce((sum, value) => sum + (value - centre) ** 2, 0);
  return values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : 0;
}

function durationText(seconds) {
  const whole = Math.round(seconds);
  const padded = (value) => String(value).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${padded(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${padded(Math.floor((whole % 3600) / 60))} min`;
}

class Row {
  constructor(runs, data) {
    const [first] = runs;
    this.runs = runs;
    this.task = data.tasks[first.task];
    this.taskName = first.task;
    this.name = runs.length > 1 ? first.variant : first.name;
    this.defaults = data.defaults;
    this.finished = runs.filter((run) => run.state === "finished" && run.score !== null);
    this.isSelected = false;
    this.words = unique(
      runs.flatMap((run) => [run.name, run.data, run.state, run.task, run.experiment, run.commit, ...run.settings]),
    ).join(" ").toLowerCase();
  }

  /* Return the values of the runs that have one. */
  values(name) {
    return this.runs.map((run) => run[name]).filter((value) => value !== null && value !== "");
  }

  get score() {
    return this.finished.length ? mean(this.finished.map((run) => run.score)) : null;
  }

  get scoreText() {
    const { scale, digits, unit } = this.task;
    const write = (value) => (scale * value).toFixed(digits);
    const scores = this.finished.map((run) => run.score);
    if (!scores.length) return "";
    const spread = scores.length > 1 ? ` \u00b1 ${write(deviation(scores))}` : "";
    const { split } = this.finished.find((run) => run.split !== "test") ?? { split: "" };
    return `${write(mean(scores))}${spread}${unit && ` ${unit}`}${split && ` ${split}`}`;
  }

  get seeds() {
    const seeds = this.values("seed");
    if (this.runs.length < 2) return seeds.length && seeds[0] ? `seed ${seeds[0]}` : "";
    return `${this.runs.length} seeds`;
  }

  /* Return the states with their numbers, such as "2 finished, 1 running 3/6". */
  get stateText() {
    const states = this.runs.map(({ state, epochs, planned }) =>
      state === "finished" || state === "damaged" || planned === null ? state : `${state} ${epochs ?? 0}/${planned}`,
    );
    if (this.runs.length === 1) return states[0];
    return unique(states).map((state) => `${states.filter((each) => each === state).length} ${state}`).join(", ");
  }

  get problems() {
    const told = this.runs.filter((run) => run.reason && run.state !== "finished");
    return told.map((run) => (this.runs.length > 1 ? `seed ${run.seed}: ${run.reason}` : run.reason));
  }

  get code() {
    const commits = unique(this.values("commit").map((commit) => commit.slice(0, 7)));
    return commits.join(", ") + (this.runs.some((run) => run.dirty) ? " + changes" : "");
  }

  get fields() {
    const [run] = this.runs;
    return [...Object.keys(run.config), ...Object.keys(this.defaults[run.kind])];
  }

  /* Return the value of a configuration field; undefined if the model or task has no such field. */
  field(name) {
    const [run] = this.runs;
    return Object.hasOwn(run.config, name) ? run.config[name] : this.defaults[run.kind][name];
  }

  get whyNoCurve() {
    return this.runs.map((run) => run.no_curve).find(Boolean) ?? "this number was not recorded";
  }

  isDefault(name) {
    return !Object.hasOwn(this.runs[0].config, name);
  }

  fact(name) {
    return unique(this.runs.map((run) => run.facts[name]).filter((value) => value !== undefined)).join(", ");
  }

  /* Return {epochs, mean, spread, tails} of a number: the mean over all seeds up to the last epoch
     that all of them have, and beyond it the single seeds. */
  curve(name) {
    const found = this.runs.filter((run) => run.curves[name]).map((run) => {
      const [epochs, values] = run.curves[name];
      return new Map(epochs.map((epoch, i) => [epoch, values[i]]));
    });
    if (!found.length) return null;
    const epochs = [...found[0].keys()].filter((epoch) => found.every((curve) => curve.has(epoch)));
    const at = epochs.map((epoch) => found.map((curve) => curve.get(epoch)));
    const last = epochs.at(-1) ?? -Infinity;
    return {
      count: found.length,
      epochs,
      mean: at.map(mean),
      spread: at.map(deviation),
      tails: found.map((curve) => [...curve].filter(([epoch]) => epoch >= last)).filter((tail) => tail.length > 1),
    };
  }
}

/* Return the key under which seeds of one variant share a row: same folder, configuration, data, first
   weights. */
function variantKey(run) {
  return JSON.stringify([run.variant, run.config ?? run.name, run.kind, run.facts.data_hash,
    run.facts.init_sha256]);
}

function makeRows(data, together) {
  const groups = new Map();
  for (const run of data.runs) {
    const key = together ? variantKey(run) : run.name;
    groups.set(key, [...(groups.get(key) ?? []), run]);
  }
  return [...groups.values()].map((runs) => new Row(runs, data));
}
