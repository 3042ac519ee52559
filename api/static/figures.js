// Charts that are drawn from the tables behind them. `<figure data-kind="bars">` has a `.plot` and a table whose cells
// hold raw values; a drawing turns the table into an ECharts option. A kind without a drawing is drawn by the server.
// A page adds a drawing of its own:
//
//   import { register, base } from "/static/figures.js";
//   register("quantiles", (table, ink, narrow) => ({ ...base(ink), series: [...] }));

const UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const TEXTS = new Set(["text", "words", "id", "moment"]);
const drawings = new Map();
const shown = new Map(); // figure -> ECharts instance

/** The unit in which a duration is read: [seconds in one, name]. */
export const timeUnit = (seconds) => UNITS.find(([size]) => seconds >= size) ?? UNITS.at(-1);

/** 1234567.8 -> "1,234,568"; 0.0012345 -> "0.001235". */
export const numberText = (value, digits = 4) =>
  Number(Number(value).toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: 9 });

/** 0.00123 -> "1.23 ms". */
export const timeText = (seconds, digits = 4) => {
  const [size, unit] = timeUnit(seconds);
  return `${numberText(seconds / size, digits)} ${unit}`;
};

/** A value of a column with its unit, as text. */
export const valueText = (value, { form, unit }) => {
  if (value === null || value === "") return "–";
  if (form === "seconds") return timeText(value);
  if (form === "percent") return `${numberText(100 * value, 3)} %`;
  if (form === "duration") return `${numberText(value)} s`;
  return typeof value === "number" ? `${numberText(value)}${unit ? ` ${unit}` : ""}` : String(value);
};

/** The style sheet's colours and font, as the theme has them now. */
export const inkOf = (element) => {
  const probe = document.createElement("span");
  element.append(probe);
  const ink = {};
  for (const name of ["text", "muted", "line", "accent", "bad", "surface", "second", "third", "fourth", "soft"]) {
    probe.className = `ink-${name}`;
    ink[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  ink.font = getComputedStyle(element).fontFamily;
  ink.series = [ink.accent, ink.second, ink.third, ink.fourth, ink.muted];
  return ink;
};

/** What all charts have in common. */
export const base = (ink) => ({
  animation: false,
  color: ink.series,
  textStyle: { fontFamily: ink.font, color: ink.text },
  grid: { left: 8, right: 20, top: 34, bottom: 30, containLabel: true },
  tooltip: {
    trigger: "item", renderMode: "richText", confine: true, backgroundColor: ink.surface, borderColor: ink.line, borderWidth: 1,
    padding: [8, 10], textStyle: { color: ink.text, fontFamily: ink.font, fontSize: 12.5 },
    formatter: ({ data }) => data?.hint ?? "",
  },
  legend: { top: 0, left: 0, icon: "roundRect", itemWidth: 12, itemHeight: 8, textStyle: { color: ink.text, fontFamily: ink.font, fontSize: 12 } },
});

/** An axis: `axis(ink, "value", "trials", more)`. What `more` says of its labels is added to what they have. */
export const axis = (ink, type, name, { axisLabel = {}, ...more } = {}) => ({
  type, name, nameLocation: "middle", nameGap: 28, nameTextStyle: { color: ink.muted, fontSize: 12 },
  axisLine: { show: false, lineStyle: { color: ink.line } }, axisTick: { show: false },
  axisLabel: { color: ink.muted, fontFamily: ink.font, fontSize: 12, hideOverlap: true, formatter: type === "value" ? (v) => numberText(v, Number.isInteger(v) ? 15 : 3) : undefined, ...axisLabel },
  splitLine: { show: type !== "category", lineStyle: { color: ink.line } },
  ...more,
});

/** Round numbers for a logarithmic axis: powers of ten, else 1-2-5, … else even steps, until there are four of them. */
export const logTicks = (low, high) => {
  const even = 10 ** Math.floor(Math.log10((high - low) / 4));
  const steps = [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7]].map((set) => {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    return Array.from({ length: last - first + 1 }, (_, n) => set.map((m) => Number((m * 10 ** (first + n)).toPrecision(3)))).flat();
  });
  for (const size of [5, 2, 1]) {
    const from = Math.ceil(low / (even * size));
    steps.push(Array.from({ length: Math.floor(high / (even * size)) - from + 1 }, (_, n) => Number(((from + n) * even * size).toPrecision(6))));
  }
  return steps.map((ticks) => ticks.filter((tick) => tick >= low && tick <= high)).find((ticks) => ticks.length >= 4) ?? [low, high];
};

/** A logarithmic axis with round ticks from low to high. */
export const logAxis = (ink, name, low, high, more = {}) => {
  const customValues = logTicks(low, high);
  return axis(ink, "log", name, {
    min: low, max: high, nameLocation: "end", nameGap: 12, nameTextStyle: { color: ink.muted, align: "left" },
    axisTick: { show: false, customValues },
    axisLabel: { color: ink.muted, fontFamily: ink.font, fontSize: 12, hideOverlap: true, customValues, formatter: (v) => numberText(v, 4) },
    ...more,
  });
};

/** Adds a drawing: (table, ink, narrow, figure, chart) -> ECharts option. Figures of its kind are drawn at once. */
export const register = (kind, option) => {
  drawings.set(kind, option);
  for (const figure of document.querySelectorAll(`figure[data-kind="${CSS.escape(kind)}"]`)) watch(figure);
};

/** The table of a figure: {columns: [{field, title, form, unit}], rows: [[value, …]]}; numbers are numbers. */
export const readTable = (figure) => {
  const table = figure.querySelector("table.numbers");
  if (!table) return null;
  const columns = [...table.tHead.rows[0].cells].map((cell) => ({ title: cell.textContent.trim(), ...cell.dataset }));
  const isText = columns.map(({ form }) => TEXTS.has(form));
  const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell, i) => {
    const { value } = cell.dataset;
    return isText[i] ? (columns[i].form === "words" ? value.replaceAll("_", " ") : value) : value === "" ? null : Number(value);
  }));
  return { columns, rows };
};

/** The table as CSV (RFC 4180); the header has the units. */
export const csvOf = ({ columns, rows }) => {
  const quoted = (value) => (/[",\n]/.test(`${value ?? ""}`) ? `"${`${value}`.replaceAll('"', '""')}"` : `${value ?? ""}`);
  const units = { seconds: "s", duration: "s", bytes: "B", percent: "fraction" };
  const head = columns.map(({ field, form, unit }) => (unit || units[form] ? `${field} [${unit || units[form]}]` : field));
  return [head, ...rows].map((row) => row.map(quoted).join(",")).join("\r\n");
};

export const draw = (figure) => {
  const table = readTable(figure);
  const plot = figure.querySelector(".plot");
  const option = drawings.get(figure.dataset.kind);
  if (!table || !plot || !option || !window.echarts) return;
  plot.dataset.drawn = "yes";
  let chart = shown.get(figure);
  if (!chart) {
    chart = window.echarts.init(plot, null, { renderer: "canvas" });
    shown.set(figure, chart);
    new ResizeObserver(() => chart.resize()).observe(plot);
    chart.on("click", (event) => figure.dispatchEvent(new CustomEvent("pick", { detail: event })));
  }
  const { height, ...made } = option(table, inkOf(plot), plot.clientWidth < 520, figure, chart);
  if (height) plot.style.height = `${height}px`;
  chart.resize();
  chart.setOption(made, { notMerge: true });
  plot.dataset.points = table.rows.length;
};

/** Draws when the page has nothing better to do: what stands at the top is usable before. */
const drawLater = (figure) => (window.requestIdleCallback ?? setTimeout)(() => draw(figure));

const watch = (figure) => {
  drawLater(figure);
  if (figure.dataset.watched) return;
  figure.dataset.watched = "yes";
  const details = figure.querySelector(".behind");
  if (!details) return;
  let due = false;
  new MutationObserver(() => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; draw(figure); });
  }).observe(details, { subtree: true, childList: true, attributeFilter: ["data-value"] });
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet csv";
  button.textContent = "CSV";
  button.setAttribute("aria-label", `Download the table of ${figure.querySelector("h2")?.textContent ?? "the chart"} as CSV`);
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csvOf(readTable(figure))], { type: "text/csv" }));
    link.download = `${figure.id}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  details.after(button);
};

/** Draws all figures below an element, such as a fragment that has just come. */
export const drawAll = (root = document) => {
  for (const figure of root.querySelectorAll("figure.figure")) watch(figure);
};

/** Fetches a page again and takes over the tables of the figures below an element; the charts follow by themselves. */
export const refreshFigures = async (root) => {
  const answer = await fetch(root.dataset.refresh, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const fresh of page.querySelectorAll("figure.figure")) {
    const old = document.getElementById(fresh.id);
    if (!old || !root.contains(old)) continue;
    const [table, next] = [old.querySelector("table.numbers"), fresh.querySelector("table.numbers")];
    if (table && next) {
      if (table.isEqualNode(next)) continue;
      table.replaceWith(next);
      for (const part of ["figcaption", ".behind > summary"]) old.querySelector(part)?.replaceChildren(...fresh.querySelector(part)?.childNodes ?? []);
    } else if (next) {
      old.replaceWith(fresh);
      watch(fresh);
    }
  }
};

const scaled = (table, i) => {
  const { form } = table.columns[i];
  const values = table.rows.map((row) => row[i]).filter((value) => value !== null);
  if (form === "percent") return [0.01, "%"];
  if (form === "seconds") return timeUnit(Math.max(...values, 0));
  return [1, form === "duration" ? "s" : table.columns[i].unit];
};
const named = (title, unit) => (unit ? `${title}, ${unit}` : title);
const hint = (table, row) => table.columns.map((column, i) => `${column.title}: ${valueText(row[i], column)}`).join("\n");

/** Of what there is a whole number, no half is marked. */
export const wholes = ({ form }) => (form === "count" ? { minInterval: 1 } : {});

/** Horizontal bars: the first column names them, the others are stacked. */
register("bars", (table, ink, narrow) => {
  const [size, unit] = scaled(table, 1);
  const stacks = table.columns.slice(1).map((_, i) => i + 1).filter((i) => table.columns[i].form === table.columns[1].form);
  return {
    ...base(ink), height: 70 + 26 * table.rows.length,
    grid: { left: 8, right: 24, top: stacks.length > 1 ? 34 : 6, bottom: 34, containLabel: true },
    legend: { ...base(ink).legend, show: stacks.length > 1 },
    xAxis: axis(ink, "value", named(stacks.length > 1 ? "" : table.columns[1].title, unit).replace(/^, /, ""), { min: 0, ...wholes(table.columns[1]) }),
    yAxis: axis(ink, "category", "", { inverse: true, data: table.rows.map((row) => row[0]), axisLabel: { color: ink.text, width: narrow ? 150 : 220, overflow: "truncate" } }),
    series: stacks.map((i) => ({
      name: table.columns[i].title, type: "bar", stack: "all", barMaxWidth: 16,
      data: table.rows.map((row) => ({ value: (row[i] ?? 0) / size, hint: hint(table, row) })),
    })),
  };
});

/** Lines: the first column is x, and the others are lines where their form is that of the second. */
register("lines", (table, ink) => {
  const [size, unit] = scaled(table, 1);
  const lines = table.columns.slice(1).map((_, i) => i + 1).filter((i) => table.columns[i].form === table.columns[1].form && table.columns[i].unit === table.columns[1].unit);
  const category = TEXTS.has(table.columns[0].form);
  return {
    ...base(ink), legend: { ...base(ink).legend, show: lines.length > 1 },
    xAxis: axis(ink, category ? "category" : "value", named(table.columns[0].title, table.columns[0].unit), { splitLine: { show: false }, ...(category ? { data: table.rows.map((row) => row[0]) } : { min: "dataMin", max: "dataMax", ...wholes(table.columns[0]) }) }),
    yAxis: axis(ink, "value", "", { name: named(lines.length > 1 ? "" : table.columns[1].title, unit).replace(/^, /, ""), nameLocation: "end", nameGap: 10, nameTextStyle: { color: ink.muted, align: "left" }, scale: true }),
    series: lines.map((i) => ({
      name: table.columns[i].title, type: "line", symbolSize: 5, showSymbol: table.rows.length < 60, lineStyle: { width: 2 },
      data: table.rows.map((row, at) => ({ value: [category ? at : row[0], row[i] === null ? null : row[i] / size], hint: hint(table, row) })),
    })),
  };
});

/** Points: x, y, then what the tooltip says. */
register("points", (table, ink) => {
  const [wide, xUnit] = scaled(table, 0), [high, yUnit] = scaled(table, 1);
  return {
    ...base(ink), legend: { show: false },
    xAxis: axis(ink, "value", named(table.columns[0].title, xUnit), { scale: true }),
    yAxis: axis(ink, "value", named(table.columns[1].title, yUnit), { nameLocation: "end", nameGap: 10, nameTextStyle: { color: ink.muted, align: "left" }, scale: true }),
    series: [{
      type: "scatter", symbolSize: 6, itemStyle: { color: ink.accent, opacity: 0.65 },
      data: table.rows.filter((row) => row[0] !== null && row[1] !== null).map((row) => ({ value: [row[0] / wide, row[1] / high], hint: hint(table, row) })),
    }],
  };
});

/** A heat map: two categories, a value (less is better), how many there are. */
register("heat", (table, ink) => {
  const kinds = (i) => [...new Set(table.rows.map((row) => row[i]))].sort((a, b) => (isNaN(a) || isNaN(b) ? `${a}`.localeCompare(`${b}`) : a - b));
  const [columns, lines] = [kinds(0), kinds(1)];
  const [size, unit] = scaled(table, 2);
  const values = table.rows.map((row) => row[2]).filter((value) => value !== null);
  const fastest = Math.min(...values), slowest = Math.min(Math.max(...values), 4 * fastest);
  return {
    ...base(ink), legend: { show: false }, height: 130 + 34 * lines.length,
    grid: { left: 8, right: 20, top: 30, bottom: 64, containLabel: true },
    xAxis: axis(ink, "category", table.columns[0].title, { data: columns, splitLine: { show: false } }),
    yAxis: axis(ink, "category", table.columns[1].title, { data: lines, nameLocation: "end", nameGap: 10, nameTextStyle: { color: ink.muted, align: "left" }, splitLine: { show: false } }),
    visualMap: {
      // one very slow pair would leave all others in one colour
      min: fastest / size, max: slowest / size, orient: "horizontal", left: "center", bottom: 0, calculable: false, itemWidth: 10, itemHeight: 120,
      text: [`slower, ${unit}`, "faster"], textStyle: { color: ink.muted }, inRange: { color: [ink.accent, ink.soft] }, formatter: (v) => numberText(v, 3),
    },
    series: [{
      type: "heatmap", itemStyle: { borderColor: ink.surface, borderWidth: 2 },
      label: { show: columns.length < 9, fontSize: 11.5, formatter: ({ data }) => numberText(data.value[2], 3) },
      data: table.rows.filter((row) => row[2] !== null).map((row) => ({
        value: [columns.indexOf(row[0]), lines.indexOf(row[1]), row[2] / size], hint: hint(table, row),
        label: { color: row[2] < (fastest + slowest) / 2 ? ink.surface : ink.text },
      })),
    }],
  };
});

/** Groups of bars: the first column names them; the others of the form of the second stand side by side. */
register("grouped", (table, ink, narrow) => {
  const made = drawings.get("bars")(table, ink, narrow);
  return { ...made, height: 80 + 44 * table.rows.length, series: made.series.map((one) => ({ ...one, stack: undefined })) };
});

for (const root of document.querySelectorAll("[data-refresh][data-every]")) {
  setInterval(() => { if (!document.hidden) refreshFigures(root); }, 1000 * Number(root.dataset.every));
}
document.addEventListener("themechange", () => { for (const figure of shown.keys()) draw(figure); });
drawAll();
