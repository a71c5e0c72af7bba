"use strict";
// Adds a choice to each picture, and saves the corrections as a CSV file.
const data = JSON.parse(document.getElementById("data").textContent);
const chosen = new Map(); // file -> label; an empty label leaves the picture out

function addChoice(card) {
  const { file, given, predicted } = card.dataset;
  const others = data.classes.filter((name) => name !== given);
  others.sort((a, b) => (b === predicted) - (a === predicted));
  const labels = [null, "", ...others];
  const select = document.createElement("select");
  select.setAttribute("aria-label", `correction of ${file}`);
  for (const label of labels) select.add(new Option(label || (label === null ? "keep" : "leave out")));
  select.addEventListener("change", () => choose(file, labels[select.selectedIndex]));
  card.append(select);
}

function choose(file, label) {
  if (label === null) chosen.delete(file);
  else chosen.set(file, label);
  count();
}

function count() {
  const before = data.corrections.length;
  document.getElementById("count").textContent =
    `${chosen.size} chosen here` + (before ? `, and ${before} that the run was trained with` : "");
}

function quoted(cell) {
  const text = /^'*[=+\-@\t\r]./s.test(cell) ? `'${cell}` : cell; // or a spreadsheet computes it
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function save() {
  const rows = [["file", "label"], ...new Map([...data.corrections, ...chosen])];
  const text = rows.map((row) => `${row.map(quoted).join(",")}\n`).join("");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = "corrections.csv";
  link.click();
}

document.querySelectorAll("[data-file]").forEach(addChoice);
document.getElementById("save").addEventListener("click", save);
document.querySelector(".save").hidden = false;
count();
