// The best-so-far chart: every trial as a point, the best so far as a line, baseline and roofline as labelled lines.

const UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];

/** 0.00123 -> "1.23 ms". */
export const timeText = (seconds, digits = 4) => {
  const [size, unit] = UNITS.find(([size]) => seconds >= size) ?? UNITS.at(-1);
  return `${Number((seconds / size).toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: 6 })} ${unit}`;
};

/** Columns of trials (as /v1/jobs/{id}/series gives them), appended as they come. */
export class Series {
  constructor() {
    this.timed = []; // [sequence, elapsed seconds, seconds, record id]
    this.failed = []; // [sequence, elapsed seconds, reason, record id]
    this.best = []; // [sequence, elapsed seconds, best seconds]
    this.last = -1;
    this.end = [0, 0];
  }

  /** Adds one trial; false when it is known already. */
  add(sequence, elapsed, seconds, failure, record) {
    if (sequence <= this.last) return false;
    this.last = sequence;
    this.end = [sequence, elapsed];
    if (seconds === null) {
      this.failed.push([sequence, elapsed, failure, record]);
      return true;
    }
    this.timed.push([sequence, elapsed, seconds, record]);
    if (!this.best.length || seconds < this.best.at(-1)[2]) this.best.push([sequence, elapsed, seconds]);
    return true;
  }

  addColumns(columns) {
    columns.sequence.forEach((sequence, i) =>
      this.add(sequence, columns.elapsed_seconds[i], columns.seconds[i], columns.failure[i], columns.record_id[i]));
  }

  get bestSeconds() {
    return this.best.length ? this.best.at(-1)[2] : null;
  }
}

/** Draws a Series into an element; `pick(record)` is called when a point is chosen. */
export class Chart {
  constructor(element, echarts, pick) {
    this.element = element;
    this.chart = echarts.init(element, null, { renderer: "canvas" });
    this.chart.on("click", ({ data }) => data?.record && pick(data.record));
    new ResizeObserver(() => this.chart.resize()).observe(element);
    this.drawn = false;
  }

  /** `axes`: {x: trials|seconds, y: log|linear}; `lines`: [{value, name}] in seconds. */
  draw(series, axes, lines) {
    const at = axes.x === "trials" ? 0 : 1;
    const ink = this.#ink();
    const [size, unit] = this.#unit(series, lines);
    const y = (seconds) => seconds / size;
    const stair = series.best.map((point) => [point[at], y(point[2])]);
    if (stair.length) stair.push([series.end[at], stair.at(-1)[1]]);
    const known = lines.filter(({ value }) => value > 0);
    const values = [...series.timed.map((point) => point[2]), ...known.map(({ value }) => value)].map(y);
    const [low, high] = bounds(values, axes.y);
    const base = high / low > 300 ? 10 : 2; // within two decades powers of ten would leave the axis almost bare
    const axis = { axisLine: { lineStyle: { color: ink.line } }, axisTick: { show: false }, nameTextStyle: { color: ink.muted } };
    const label = { color: ink.muted, fontFamily: ink.font, fontSize: 12 };
    const narrow = this.element.clientWidth < 520;
    this.chart.setOption({
      animation: false,
      textStyle: { fontFamily: ink.font },
      grid: { left: 8, right: 16, top: 30, bottom: 34, containLabel: true },
      tooltip: {
        trigger: "item", renderMode: "richText", backgroundColor: ink.surface, borderColor: ink.line, borderWidth: 1,
        padding: [8, 10], textStyle: { color: ink.text, fontFamily: ink.font, fontSize: 12.5 },
        formatter: ({ data }) => data?.hint ?? "",
      },
      xAxis: {
        ...axis, type: "value", name: axes.x === "trials" ? "trials" : "seconds since the job started",
        nameLocation: "middle", nameGap: 30, min: 0, max: niceEnd(series.end[at]),
        minInterval: axes.x === "trials" ? 1 : undefined, axisLabel: { ...label, hideOverlap: true, showMaxLabel: false }, splitLine: { show: false },
      },
      yAxis: [
        {
          ...axis, type: axes.y === "log" ? "log" : "value", logBase: base, name: `${unit} per run`, nameLocation: "end", min: low, max: high,
          nameTextStyle: { color: ink.muted, align: "left", padding: [0, 0, 4, -8] },
          axisLabel: { ...label, showMinLabel: axes.y !== "log", showMaxLabel: false, formatter: (v) => Number(v.toPrecision(3)).toLocaleString("en-US", { maximumFractionDigits: 6 }) },
          axisLine: { show: false }, splitLine: { showMinLine: false, showMaxLine: false, lineStyle: { color: ink.line, width: 1 } }, splitNumber: 5,
        },
        { type: "value", min: 0, max: 1, show: false },
      ],
      series: [
        {
          name: "trials", type: "scatter", symbolSize: series.timed.length > 2000 ? 3 : 5, z: 2, large: false,
          itemStyle: { color: ink.muted, opacity: series.timed.length > 2000 ? 0.3 : 0.5 }, emphasis: { itemStyle: { color: ink.accent, opacity: 1 } },
          data: series.timed.map((point) => ({
            value: [point[at], y(point[2])], record: point[3],
            hint: `Trial ${point[0]}: ${timeText(point[2])}\nafter ${point[1].toFixed(1)} s`,
          })),
        },
        {
          name: "failed", type: "scatter", yAxisIndex: 1, symbol: "path://M0 0L10 10M10 0L0 10", symbolSize: 6, z: 1,
          itemStyle: { color: "transparent", borderColor: ink.bad, borderWidth: 1.2, opacity: series.failed.length > 200 ? 0.2 : 0.75 },
          data: series.failed.map((point) => ({
            value: [point[at], 0.025], record: point[3], hint: `Trial ${point[0]} failed\n${(point[2] ?? "").replace(":", ": ").replaceAll("_", " ")}`,
          })),
        },
        {
          name: "best so far", type: "line", step: "end", symbol: "none", z: 3, silent: true,
          lineStyle: { color: ink.accent, width: 2 }, data: stair,
          markPoint: stair.length ? {
            symbol: "circle", symbolSize: 9, silent: true, itemStyle: { color: ink.accent, borderColor: ink.surface, borderWidth: 2 },
            label: { show: false }, data: [{ coord: stair.at(-2) }],
          } : undefined,
          markLine: {
            silent: true, symbol: "none", precision: 10,
            lineStyle: { type: [5, 4], width: 1, color: ink.muted },
            label: {
              position: "insideEndTop", color: ink.text, fontFamily: ink.font, fontSize: 12, distance: [4, 3],
              textBorderColor: ink.surface, textBorderWidth: 3,
            },
            data: known.map(({ value, name }) => ({
              yAxis: y(value), label: { formatter: narrow ? name.split(",")[0] : `${name} ${timeText(value, 3)}` },
            })),
          },
        },
      ],
    }, { replaceMerge: ["series"] });
    this.drawn = true;
  }

  #unit(series, lines) {
    const reference = series.bestSeconds ?? lines.find(({ value }) => value > 0)?.value ?? 1e-3;
    return UNITS.find(([size]) => reference >= size) ?? UNITS.at(-1);
  }

  /** The style sheet's colours, as the theme has them now. */
  #ink() {
    const probe = document.createElement("span");
    this.element.append(probe);
    const ink = {};
    for (const name of ["text", "muted", "line", "accent", "bad", "surface"]) {
      probe.className = `ink-${name}`;
      ink[name] = getComputedStyle(probe).color;
    }
    probe.remove();
    ink.font = getComputedStyle(this.element).fontFamily;
    return ink;
  }
}

/** Room around the values, so that no point or label touches the frame. */
const bounds = (values, scale) => {
  if (!values.length) return [scale === "log" ? 0.1 : 0, 1];
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  if (scale !== "log") return [0, high * 1.08];
  const room = Math.max(high / low, 1.3) ** 0.1;
  return [low / room ** 1.6, high * room];
};

/** The end of the x axis: a little beyond the last trial, in steps, so that a growing chart does not jitter. */
const niceEnd = (last) => {
  const step = 10 ** Math.max(0, Math.floor(Math.log10(Math.max(last, 1))) - 0) / 2;
  return Math.max(1, Math.ceil((last * 1.01) / step) * step);
};
