// Follows one line through every layer: what it comes from and what it became is marked while the pointer is over it,
// and stays marked, with its text, once it is chosen. The address keeps what is shown and chosen.

import { drawAll } from "/static/figures.js";

const root = document.getElementById("layers");
const layers = root ? JSON.parse(root.dataset.layers) : [];
const boxes = new Map(root ? [...root.querySelectorAll(".lines")].map((box) => [Number(box.dataset.layer), box]) : []);
const QUOTED = 4;
const STATE = { chosen: null, cursor: new Map() };

/** For each layer and line: the sets of lines it comes from, one layer up, two layers up, … Where several origins were
 * inlined into one another, only what they have in common further up counts (as in descent.py). */
const ancestors = [];
for (const [depth, { origins, lines }] of layers.entries()) {
  const count = lines ? lines.length : boxes.get(depth).children.length;
  ancestors.push(Array.from({ length: count }, (_, n) => {
    if (depth === 0) return [];
    const own = origins[n] ?? [];
    const levels = [new Set(own)];
    for (let level = 0; level < depth - 1; level += 1) {
      const sets = own.map((o) => ancestors[depth - 1][o - 1][level]);
      const [first = new Set(), ...rest] = sets;
      const common = new Set([...first].filter((x) => rest.every((s) => s.has(x))));
      levels.push(common.size ? common : new Set(sets.flatMap((s) => [...s])));
    }
    return levels;
  }));
}

/** The lines of every layer that belong to one line, in ascending order. */
const related = (layer, line) => layers.map((_, at) => {
  if (at === layer) return [line];
  if (at < layer) return [...ancestors[layer][line - 1][layer - at - 1]].sort((a, b) => a - b);
  return ancestors[at].flatMap((levels, n) => (levels[at - layer - 1].has(line) ? [n + 1] : []));
});

const textOf = (layer, line) =>
  layers[layer].lines?.[line - 1] ?? boxes.get(layer).children[line - 1].lastElementChild.textContent;

const ranges = (numbers) => {
  const runs = [];
  for (const n of numbers) {
    const last = runs.at(-1);
    if (last && last[1] === n - 1) last[1] = n;
    else runs.push([n, n]);
  }
  return runs.slice(0, 6).map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(", ") + (runs.length > 6 ? " …" : "");
};

let marked = [];
const mark = (layer, line) => {
  for (const [element, name] of marked) element.classList.remove(name);
  marked = [];
  const found = related(layer, line);
  for (const [at, box] of boxes) {
    const name = at === layer ? "own" : "kin";
    for (const n of found[at]) {
      const element = box.children[n - 1];
      element.classList.add(name);
      marked.push([element, name]);
    }
    const button = box.parentElement.querySelector(".found");
    button.hidden = at === layer;
    button.textContent = found[at].length === 1 ? "1 line ↓" : `${found[at].length} lines ↓`;
    button.disabled = !found[at].length;
    button.onclick = () => reveal(at, found[at]);
  }
  return found;
};

/** Scrolls a layer so that the most telling of the lines is in view: the first, or the last where loops stand ahead of
 * what they run, and functions ahead of what calls them. Unless `always`, nothing moves where it is in view already. */
const reveal = (at, numbers, always = true) => {
  if (!numbers.length) return;
  const box = boxes.get(at), line = box.children[(layers[at].tellsMostLast ? numbers.at(-1) : numbers[0]) - 1];
  const seen = line.offsetTop >= box.scrollTop
    && line.offsetTop + line.offsetHeight <= box.scrollTop + box.clientHeight;
  if (always || !seen) box.scrollTop = line.offsetTop - box.clientHeight / 3;
};

const quoted = (at, numbers) => (layers[at].tellsMostLast ? numbers.slice(-QUOTED) : numbers.slice(0, QUOTED));

const cell = (tag, text, parent, name) => {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  parent.append(made);
  return made;
};

const choose = (layer, line, inAddress = true) => {
  STATE.chosen = [layer, line];
  STATE.cursor.set(layer, line);
  const found = mark(layer, line);
  for (const at of boxes.keys()) reveal(at, found[at], false);
  const body = document.querySelector("#trace tbody");
  body.replaceChildren();
  for (const [at, numbers] of found.entries()) {
    const row = document.createElement("tr");
    if (at === layer) row.className = "best";
    cell("th", layers[at].title, row).scope = "row";
    cell("td", ranges(numbers) || "–", row, "mono");
    const text = document.createElement("td");
    cell("code", quoted(at, numbers).map((n) => textOf(at, n).trim()).join("\n"), text);
    if (numbers.length > QUOTED) cell("span", ` and ${numbers.length - QUOTED} more`, text, "sub");
    row.append(text);
    body.append(row);
  }
  const others = [...boxes.keys()].filter((at) => at !== layer).map((at) => `${found[at].length} of ${layers[at].title}`);
  document.getElementById("said").textContent =
    `Line ${line} of ${layers[layer].title}: ${textOf(layer, line).trim()}. Marked: ${others.join(", ") || "none"}.`;
  root.dataset.chosen = `${layer}:${line}`;
  root.querySelector("input[name=line]").value = root.dataset.chosen;
  if (!inAddress) return;
  const address = new URL(location.href);
  address.searchParams.set("line", root.dataset.chosen);
  address.hash = "";
  history.replaceState(null, "", address);
};

const lineOf = (element) => {
  const line = element.closest(".l");
  if (!line) return null;
  const [layer, number] = line.id.slice(1).split("-").map(Number);
  return [layer, number];
};

const back = () => (STATE.chosen ? mark(...STATE.chosen) : null);

for (const [layer, box] of boxes) {
  box.addEventListener("pointerover", (event) => {
    const at = event.pointerType === "mouse" && lineOf(event.target);
    if (at) mark(...at);
  });
  box.addEventListener("pointerleave", back);
  box.addEventListener("click", (event) => {
    const at = lineOf(event.target);
    if (!at || String(getSelection())) return;
    event.preventDefault();
    choose(...at);
  });
  box.addEventListener("keydown", (event) => {
    const page = Math.floor(box.clientHeight / 20);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const from = STATE.cursor.get(layer) ?? (step > 0 ? 0 : 2);
    choose(layer, Math.min(box.children.length, Math.max(1, from + step)));
  });
}

if (root) {
  if (root.dataset.chosen) {
    const [layer, line] = root.dataset.chosen.split(":").map(Number);
    choose(layer, line, false);
  }
  root.dataset.ready = "true";
}
drawAll(); // the charts are drawn already; this offers their tables as CSV
