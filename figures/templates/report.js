"use strict";
const $ = (selector, from = document) => [...from.querySelectorAll(selector)];

// Sorting: a button in each column's head; empty cells last, whichever way.
for (const table of $("table.sortable")) {
  $("th", table).forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    $("th", table).forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const number = head.dataset.kind === "number";
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      return direction * (number ? x - y : x.localeCompare(y, "en", { numeric: true }));
    });
    body.append(...rows);
  }));
}

// Filtering the headline table.
const problem = document.getElementById("problem"), filter = document.getElementById("filter");
const choose = () => {
  const words = filter.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
  for (const row of $("#headline-table tbody tr")) {
    const [where, name] = [row.cells[0].textContent, row.cells[1].textContent.toLowerCase()];
    row.hidden = (problem.value && where !== problem.value) || (words.length > 0 && !words.some((word) => name.includes(word)));
  }
};
problem?.addEventListener("change", choose);
filter?.addEventListener("input", choose);

// Saving CSV. The page holds files as gzip in base64.
const unpack = (text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
};
const save = (name, text) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = `${name}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
const asCsv = (table) => $("tr", table).filter((row) => !row.hidden).map((row) => [...row.cells]
  .map((cell) => `"${cell.textContent.trim().replaceAll('"', '""')}"`).join(",")).join("\n") + "\n";
for (const button of $("[data-csv]")) button.addEventListener("click", async () => {
  save(button.dataset.csv, await unpack(document.getElementById(`csv-${button.dataset.csv}`).textContent));
});
for (const button of $("[data-table]")) button.addEventListener("click", () => {
  save(button.dataset.table, asCsv(document.getElementById(button.dataset.table)));
});

// Folds: all at once, and those that a link leads into.
for (const button of $("[data-all]")) button.addEventListener("click", () => {
  for (const fold of $("details.fold")) fold.open = button.dataset.all === "open";
});

// Light or dark: the system's choice until the button is pressed.
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

// A figure in full: zoom about a point, move, fit.
const viewer = document.getElementById("viewer"), stage = viewer.querySelector(".stage");
let view = { x: 0, y: 0, scale: 1 };
const apply = () => {
  const svg = stage.firstElementChild;
  if (svg) svg.style.transform = `translate(${view.x}px, ${view.y}px) scale(${view.scale})`;
};
const zoom = (factor, x = stage.clientWidth / 2, y = stage.clientHeight / 2) => {
  const scale = Math.min(40, Math.max(0.5, view.scale * factor));
  const change = scale / view.scale;
  view = { x: x - (x - view.x) * change, y: y - (y - view.y) * change, scale };
  apply();
};
const fit = () => { view = { x: 0, y: 0, scale: 1 }; apply(); };
for (const button of $(".zoom")) button.addEventListener("click", () => {
  stage.replaceChildren(button.querySelector("svg").cloneNode(true));
  viewer.setAttribute("aria-label", button.getAttribute("aria-label"));
  viewer.showModal();
  fit();
});
viewer.addEventListener("close", () => stage.replaceChildren());
const actions = { in: () => zoom(1.5), out: () => zoom(1 / 1.5), fit, close: () => viewer.close() };
for (const button of $("[data-zoom]")) button.addEventListener("click", () => actions[button.dataset.zoom]());
viewer.addEventListener("keydown", (event) => {
  const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
  if (moves[event.key]) { view.x += moves[event.key][0]; view.y += moves[event.key][1]; apply(); }
  else if (event.key === "+" || event.key === "=") zoom(1.5);
  else if (event.key === "-") zoom(1 / 1.5);
  else if (event.key === "0") fit();
  else return;
  event.preventDefault();
});
stage.addEventListener("wheel", (event) => { event.preventDefault(); zoom(Math.exp(-event.deltaY / 400), event.clientX, event.clientY); }, { passive: false });
const pointers = new Map();
stage.addEventListener("pointerdown", (event) => { stage.setPointerCapture(event.pointerId); pointers.set(event.pointerId, event); });
for (const name of ["pointerup", "pointercancel"]) stage.addEventListener(name, (event) => pointers.delete(event.pointerId));
stage.addEventListener("pointermove", (event) => {
  const before = pointers.get(event.pointerId);
  if (!before) return;
  if (pointers.size === 2) {
    const other = [...pointers.values()].find((pointer) => pointer.pointerId !== event.pointerId);
    const distance = (pointer) => Math.hypot(pointer.clientX - other.clientX, pointer.clientY - other.clientY);
    zoom(distance(event) / Math.max(distance(before), 1), (event.clientX + other.clientX) / 2, (event.clientY + other.clientY) / 2);
  } else {
    view.x += event.clientX - before.clientX;
    view.y += event.clientY - before.clientY;
    apply();
  }
  pointers.set(event.pointerId, event);
});
