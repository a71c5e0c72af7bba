/* The page of runs: filter and sort rows, and compare the selected ones. */

const part = (id) => document.getElementById(id);
const data = JSON.parse(part("data").textContent);
const FIRST_SELECTED = 6;
const MAX_SETTINGS = 4;
const FACT_NAMES = ["data_hash", "init_sha256", "torch", "hardware", "device", "threads"];

/* Title, class, sort key (null sorts last) and cell of each column. */
const COLUMNS = [
  { title: "run", className: "name", key: (row) => row.name, fill: fillName },
  { title: "result", className: "number", key: (row) => row.score, falling: true, fill: fillResult },
  { title: "state", className: "state", key: (row) => row.stateText, fill: fillState },
  { title: "parameters", className: "number parameters", key: (row) => row.values("parameters")[0] ?? null, text: (value) => numberFormat.format(value) },
  { title: "time", className: "number", key: (row) => (row.values("seconds").length ? mean(row.values("seconds")) : null), text: durationText },
  { title: "started", className: "date", key: (row) => row.values("started").sort().at(-1) ?? null, falling: true, text: (value) => value.slice(0, 10) },
  { title: "code", className: "code", key: (row) => row.code },
];
const hasSeveralTasks = Object.keys(data.tasks).length > 1;
let rows = [];
if (data.sort === "result") COLUMNS.unshift({ title: "name", className: "owner", key: (row) => row.runs[0].name.split("/")[0] });
let order = { column: COLUMNS.find(({ title }) => title === data.sort) ?? null, falling: data.sort === "result" };
let chosenSeries = null;

// A line breaks after "=", not inside a number, which would then read as a shorter one.
function breakable(text) {
  const span = element("span", "");
  text.split("=").forEach((part, i) => span.append(...(i ? ["=", element("wbr", "")] : []), part));
  return span;
}

function fillName(cell, row) {
  cell.append(element("strong", row.name));
  const { settings } = row.runs[0];
  const rest = settings.length - MAX_SETTINGS;
  const few = rest > 0 ? [...settings.slice(0, MAX_SETTINGS), `and ${rest} more`] : settings;
  const about = [row.seeds, ...unique(row.values("data")), ...few].filter(Boolean).join(" \u00b7 ");
  if (about) cell.append(breakable(about));
}

function fillResult(cell, row) {
  cell.textContent = row.scoreText && hasSeveralTasks ? `${row.task.label} ${row.scoreText}` : row.scoreText;
}

function fillState(cell, row) {
  cell.append(row.stateText);
  for (const problem of row.problems) cell.append(element("span", problem));
  const isBad = row.runs.some((run) => ["failed", "diverged", "damaged"].includes(run.state));
  cell.classList.toggle("bad", isBad);
}

// --- the table

function buildHeader() {
  const line = document.querySelector("#table thead tr");
  line.append(element("td"));
  for (const column of COLUMNS) {
    const head = element("th", "", column.className);
    head.scope = "col";
    const button = element("button", column.title);
    button.type = "button";
    button.addEventListener("click", () => sortBy(column));
    head.append(button);
    line.append(head);
    column.head = head;
  }
}

function buildRow(row) {
  const line = element("tr");
  const box = element("input");
  box.type = "checkbox";
  box.setAttribute("aria-label", `select ${row.name}`);
  box.addEventListener("change", () => select([row], box.checked));
  const first = element("td");
  first.append(box);
  line.append(first);
  for (const column of COLUMNS) {
    const cell = element("td", "", column.className);
    const value = column.fill ? column.fill(cell, row) : column.key(row);
    if (!column.fill && value !== null) cell.textContent = column.text ? column.text(value) : value;
    line.append(cell);
  }
  line.addEventListener("click", (event) => {
    if (!event.target.closest("a, input") && !getSelection().toString()) select([row], !row.isSelected);
  });
  Object.assign(row, { line, box });
}

function makeTable() {
  const names = new Set(rows.filter((row) => row.isSelected).flatMap((row) => row.runs.map((run) => run.name)));
  rows = makeRows(data, part("rows").value === "variant");
  rows.forEach(buildRow);
  for (const row of rows) row.isSelected = row.runs.some((run) => names.has(run.name));
  sortRows();
  filterRows();
}

function sortBy(column) {
  const isSame = order.column === column;
  order = { column, falling: isSame ? !order.falling : Boolean(column.falling) };
  sortRows();
}

/* Sort by a column; a result sorts within its task, and its better end first. */
function sortRows() {
  const { column, falling } = order;
  for (const each of COLUMNS) each.head.removeAttribute("aria-sort");
  let sorted = rows;
  if (column) {
    column.head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const compare = new Intl.Collator("en", { numeric: true }).compare;
    const isResult = column.title === "result";
    const keys = new Map(rows.map((row) => [row, column.key(row)]));
    sorted = [...rows].sort((one, other) => {
      const [a, b] = [keys.get(one), keys.get(other)];
      if (a === null || b === null || a === "" || b === "") return (a === null || a === "") - (b === null || b === "");
      if (isResult && one.taskName !== other.taskName) return compare(one.taskName, other.taskName);
      const by = typeof a === "number" ? a - b : compare(a, b);
      return falling === (isResult && !one.task.higher) ? by : -by;
    });
  }
  document.querySelector("#table tbody").replaceChildren(...sorted.map((row) => row.line));
}

function filterRows() {
  const words = part("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const state = part("state").value;
  for (const row of rows) {
    const fits = words.every((word) => row.words.includes(word)) && (!state || row.runs.some((run) => run.state === state));
    row.line.hidden = !fits;
  }
  update();
}

/* Return the names of rows without the folder that all of them share. */
function shortNames(chosen) {
  const [first, ...others] = chosen.map((row) => row.name.split("/").slice(0, -1));
  let count = chosen.length > 1 ? first.findIndex((part, i) => others.some((each) => each[i] !== part)) : 0;
  if (count < 0) count = first.length;
  return new Map(chosen.map((row) => [row, row.name.split("/").slice(count).join("/")]));
}

const shownRows = () => [...document.querySelectorAll("#table tbody tr:not([hidden])")].map((line) => rows.find((row) => row.line === line));

function select(chosen, isSelected) {
  for (const row of chosen) row.isSelected = isSelected;
  update();
}

// --- the selected rows

function update() {
  const selected = rows.filter((row) => row.isSelected);
  for (const row of rows) {
    row.box.checked = row.isSelected;
    row.line.setAttribute("aria-selected", row.isSelected);
  }
  const shown = rows.filter((row) => !row.line.hidden).length;
  part("count").textContent = `${shown} of ${rows.length} rows, ${data.runs.length} runs; ${selected.length} selected`;
  const jump = document.querySelector(".jump");
  jump.hidden = !selected.length;
  jump.textContent = `Compare ${selected.length} selected`;
  showCurves(selected);
  showDifferences(selected);
}

function showCurves(selected) {
  const all = selected.flatMap((row) => row.task.series);
  const known = new Map(all.map((series) => [series.name, series]));
  const drawn = [...known.values()].filter(({ name }) => selected.some((row) => row.runs.some((run) => run.curves[name])));
  part("series").replaceChildren(...drawn.map(({ name, title }) => Object.assign(element("option", title), { value: name })));
  const series = drawn.find(({ name }) => name === chosenSeries) ?? drawn[0];
  if (series) part("series").value = series.name;
  const found = series ? selected.map((row) => ({ row, curve: row.curve(series.name) })).filter(({ curve }) => curve) : [];
  const curves = found.slice(0, MAX_CURVES).map((each, i) => ({ ...each, colour: `c${i % 7}`, dash: `d${Math.floor(i / 7)}` }));
  part("note").textContent = [noteText(selected, found, curves), missingText(selected, found)].filter(Boolean).join(" ");
  buildLegend(curves);
  chart.show(curves, series?.title, series?.scale ?? 1);
  part("chart").setAttribute("aria-label", series ? `${series.title} over epochs; arrow keys read values` : "No curves");
}

function noteText(selected, found, curves) {
  if (!selected.length) return "Select rows of the table to see their curves and differences.";
  if (!found.length) return "The selected rows have no learning curve.";
  const few = found.length > curves.length ? `The first ${curves.length} of ${found.length} curves. ` : "";
  const band = curves.some(({ curve }) => curve.count > 1);
  return `${few}${band ? "Line: mean over seeds. Band: one standard deviation to each side. Thin lines: seeds beyond the last epoch that all seeds have." : ""}`;
}

function missingText(selected, found) {
  const names = shortNames(selected);
  const missing = selected.filter((row) => !found.some((each) => each.row === row)).slice(0, MAX_CURVES);
  const reasons = missing.map((row) => `${names.get(row)}: ${row.whyNoCurve}`);
  return reasons.length ? `No curve of ${reasons.join("; ")}.` : "";
}

function buildLegend(curves) {
  const names = shortNames(curves.map(({ row }) => row));
  legend = curves.map((each) => {
    const line = element("tr");
    const swatch = shape("svg", { class: `swatch ${each.colour}`, "aria-hidden": true });
    swatch.append(shape("line", { class: `curve ${each.dash}`, x1: 0, x2: 30, y1: 6, y2: 6 }));
    const first = element("td");
    first.append(swatch);
    const value = element("td", "", "number");
    line.append(first, element("td", names.get(each.row) + (each.curve.count > 1 ? ` (n = ${each.curve.count})` : "")), value);
    return { ...each, line, value };
  });
  document.querySelector("#legend tbody").replaceChildren(...legend.map(({ line }) => line));
}

/* Write the values at an epoch, or the last ones, into the legend. */
function readCurves(epoch) {
  for (const { curve, value } of legend) {
    const i = epoch === null ? curve.epochs.length - 1 : curve.epochs.indexOf(epoch);
    const spread = curve.count > 1 && i >= 0 ? ` \u00b1 ${(chart.scale * curve.spread[i]).toPrecision(2)}` : "";
    value.textContent = i >= 0 ? `${short(chart.scale * curve.mean[i])}${spread}  epoch ${curve.epochs[i]}` : "\u2013";
  }
}

function showDifferences(selected) {
  const shown = selected.filter((row) => row.runs[0].config).slice(0, MAX_CURVES);
  const fields = unique(shown.flatMap((row) => row.fields));
  const lines = fields.filter((name) => differs(shown, name)).sort().map((name) => [name, shown.map((row) => valueText(row.field(name)))]);
  const facts = FACT_NAMES.map((name) => [name.replace("_", " "), shown.map((row) => row.fact(name))]);
  for (const fact of [["code", shown.map((row) => row.code)], ...facts]) {
    if (unique(fact[1]).length > 1) lines.push(fact);
  }
  const names = shortNames(shown);
  const head = element("tr");
  head.append(element("th", lines.length ? "field" : ""), ...(lines.length ? shown : []).map((row) => element("th", names.get(row))));
  const body = lines.map(([name, values]) => {
    const line = element("tr");
    line.append(element("th", name), ...values.map((value) => element("td", value)));
    return line;
  });
  if (!lines.length) {
    const line = element("tr");
    line.append(element("td", shown.length > 1 ? "The configurations are the same." : selected.length > shown.length ? "Select two rows or more whose config.yaml can be read." : "Select two rows or more."));
    body.push(line);
  }
  document.querySelector("#differences thead").replaceChildren(head);
  document.querySelector("#differences tbody").replaceChildren(...body);
}

/* Return whether rows differ in a field. A field that a model lacks differs only from a value that
   is not the default. */
function differs(shown, name) {
  const having = shown.filter((row) => row.field(name) !== undefined);
  if (having.length < shown.length) return having.some((row) => !row.isDefault(name));
  return unique(having.map((row) => JSON.stringify(row.field(name)))).length > 1;
}

function valueText(value) {
  if (value === undefined) return "\u2013";
  const rounded = (_, part) => (typeof part === "number" ? Number(part.toPrecision(6)) : part);
  return typeof value === "string" ? value : JSON.stringify(value, rounded);
}

// --- keys and start

function handleKey(event) {
  const isTyping = event.target.closest("input[type=search], select");
  if (event.key === "/" && !isTyping) {
    event.preventDefault();
    part("filter").focus();
  }
  const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (by && event.target.matches("#table input")) {
    event.preventDefault();
    const shown = shownRows();
    const now = shown.findIndex((row) => row.box === event.target);
    shown[now + by]?.box.focus();
  }
}

function start() {
  const states = unique(data.runs.map((run) => run.state)).sort();
  const count = (state) => data.runs.filter((run) => run.state === state).length;
  const options = states.map((state) => Object.assign(element("option", `${state} (${count(state)})`), { value: state }));
  part("state").append(Object.assign(element("option", "any"), { value: "" }), ...options);
  buildHeader();
  makeTable();
  const first = shownRows();
  const isAlike = (row) => (order.column ? row.taskName === first[0].taskName : row.runs[0].experiment === first[0].runs[0].experiment);
  select(first.filter(isAlike).slice(0, FIRST_SELECTED), true);
  part("filter").addEventListener("input", filterRows);
  part("state").addEventListener("change", filterRows);
  part("rows").addEventListener("change", makeTable);
  part("all").addEventListener("click", () => select(shownRows(), true));
  part("none").addEventListener("click", () => select(rows, false));
  part("series").addEventListener("change", (event) => {
    chosenSeries = event.target.value;
    update();
  });
  document.addEventListener("keydown", handleKey);
}

let legend = [];
const chart = new Chart(part("chart"), readCurves);
start();
