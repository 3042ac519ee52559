// The best-so-far chart: every trial as a point, the best so far as a line with the noise of its samples as a band,
// baseline and roofline as labelled lines. It keeps at most MOST points, however long it is followed.

import { axis, base, inkOf, logAxis, numberText, timeText, timeUnit } from "/static/figures.js";

const MOST = 6000; // above, every second point that is no best is dropped
const MANY = { large: true, largeThreshold: 1000 }; // then all points are one shape: no object each, drawing by drawing
const AT = { trials: 0, seconds: 1, device: 2 };
export const AXES = { trials: "trials", seconds: "seconds since the task began", device: "seconds of the device" };

/** Trials as [sequence, elapsed seconds, device seconds, seconds, record id, failure], appended as they come. */
export class Series {
  constructor() {
    this.timed = [];
    this.failed = [];
    this.best = []; // [sequence, elapsed, device, seconds, record, low, high]
    this.last = -1;
    this.end = [0, 0, 0];
    this.counts = { timed: 0, failed: 0 };
    this.thinned = 1;
  }

  /** Adds one trial; false when it is known already. */
  add(sequence, elapsed, device, seconds, failure, record, low = null, high = null) {
    if (sequence <= this.last) return false;
    this.last = sequence;
    this.end = [sequence, elapsed, device];
    const point = [sequence, elapsed, device, seconds, record, failure];
    if (seconds === null) {
      this.failed.push(point);
      this.counts.failed += 1;
    } else {
      this.timed.push(point);
      this.counts.timed += 1;
      if (!this.best.length || seconds < this.best.at(-1)[3]) this.best.push([sequence, elapsed, device, seconds, record, low, high]);
    }
    if (this.timed.length + this.failed.length > MOST) this.#thin();
    return true;
  }

  /** Adds an answer of /v1/jobs/{id}/progress. */
  addColumns(columns) {
    this.thinned = Math.max(this.thinned, columns.step);
    columns.sequence.forEach((sequence, i) => this.add(
      sequence, columns.elapsed_seconds[i], columns.device_seconds[i], columns.seconds[i], columns.failure[i], columns.record_id[i],
      columns.best_low[i], columns.best_high[i]));
  }

  #thin() {
    const bests = new Set(this.best.map((point) => point[4]));
    const half = (points) => points.filter((point, i) => i % 2 === 0 || bests.has(point[4]));
    this.timed = half(this.timed);
    this.failed = half(this.failed);
    this.thinned *= 2;
  }

  get bestSeconds() {
    return this.best.length ? this.best.at(-1)[3] : null;
  }
}

/** The option that draws a Series. `axes`: {across, scale}; `lines`: [{value, name}] in seconds. */
const optionOf = (series, axes, lines, ink, narrow) => {
  const at = AT[axes.across];
  const known = lines.filter(({ value }) => value > 0);
  const [size, unit] = timeUnit(series.bestSeconds ?? known[0]?.value ?? 1e-3);
  const y = (seconds) => seconds / size;
  const stair = series.best.map((point) => [point[at], y(point[3])]);
  const band = (i) => series.best.map((point) => [point[at], y(point[i] ?? point[3])]);
  const low = band(5), high = band(6);
  for (const line of [stair, low, high]) if (line.length) line.push([series.end[at], line.at(-1)[1]]);
  const values = [...series.timed.map((point) => y(point[3])), ...known.map(({ value }) => y(value))];
  const [bottom, top] = bounds(values, axes.scale);
  const log = axes.scale === "log";
  const named = { color: ink.muted, align: "left", padding: [0, 0, 0, -8] };
  const many = series.timed.length > 2000;
  const strip = { type: "line", step: "end", symbol: "none", silent: true, lineStyle: { opacity: 0 }, tooltip: { show: false } };
  return {
    ...base(ink), legend: { show: false },
    grid: { left: 8, right: 16, top: 30, bottom: 34, containLabel: true },
    xAxis: axis(ink, "value", AXES[axes.across], {
      nameGap: 30, min: 0, max: niceEnd(series.end[at]), minInterval: axes.across === "trials" ? 1 : undefined, splitLine: { show: false },
      axisLine: { show: true, lineStyle: { color: ink.line } }, axisLabel: { color: ink.muted, fontFamily: ink.font, fontSize: 12, hideOverlap: true, showMaxLabel: false },
    }),
    yAxis: [
      log ? logAxis(ink, `${unit} per run`, bottom, top, { nameTextStyle: named }) : axis(ink, "value", `${unit} per run`, {
        nameLocation: "end", min: bottom, max: top, nameGap: 12, nameTextStyle: named,
        axisLabel: { color: ink.muted, fontFamily: ink.font, fontSize: 12, showMaxLabel: false, formatter: (v) => numberText(v, 3) },
        splitLine: { showMinLine: false, showMaxLine: false, lineStyle: { color: ink.line, width: 1 } },
      }),
      { type: "value", min: 0, max: 1, show: false },
    ],
    series: [
      {
        id: "trials", name: "trials", type: "scatter", ...MANY, symbolSize: many ? 3 : 5, z: 2,
        itemStyle: { color: ink.muted, opacity: many ? 0.3 : 0.5 }, emphasis: { itemStyle: { color: ink.accent, opacity: 1 } },
        data: series.timed.map((point) => [point[at], y(point[3]), point[4], point[0], point[1]]),
        tooltip: { formatter: ({ data }) => `Trial ${data[3]}: ${timeText(data[1] * size)}\nafter ${numberText(data[4])} s` },
      },
      {
        id: "failed", name: "failed", type: "scatter", ...MANY, yAxisIndex: 1, symbol: "path://M0 0L10 10M10 0L0 10", symbolSize: 6, z: 1,
        itemStyle: { color: "transparent", borderColor: ink.bad, borderWidth: 1.2, opacity: series.failed.length > 200 ? 0.2 : 0.75 },
        data: series.failed.map((point) => [point[at], 0.025, point[4], point[0], point[5]]),
        tooltip: { formatter: ({ data }) => `Trial ${data[3]} failed\n${(data[4] ?? "").replace(":", ": ").replaceAll("_", " ")}` },
      },
      // the band between the quartiles: a line that is not seen, and the area from it up to the upper quartile
      ...(log ? [] : [
        { ...strip, id: "low", name: "lower quartile", stack: "noise", data: low },
        { ...strip, id: "high", name: "upper quartile", stack: "noise", areaStyle: { color: ink.accent, opacity: 0.2 }, data: high.map(([x, v], i) => [x, v - low[i][1]]) },
      ]),
      ...(log ? [low, high].map((line, i) => ({ ...strip, id: i ? "log high" : "log low", name: i ? "upper quartile" : "lower quartile", lineStyle: { color: ink.accent, width: 1, opacity: 0.6, type: [2, 3] }, data: line })) : []),
      {
        id: "best", name: "best so far", type: "line", step: "end", symbol: "none", z: 3, silent: true, lineStyle: { color: ink.accent, width: 2 }, data: stair,
        markPoint: stair.length ? {
          symbol: "circle", symbolSize: 9, silent: true, itemStyle: { color: ink.accent, borderColor: ink.surface, borderWidth: 2 },
          label: { show: false }, data: [{ coord: stair.at(-2) }],
        } : undefined,
        markLine: {
          silent: true, symbol: "none", precision: 10, lineStyle: { type: [5, 4], width: 1, color: ink.muted },
          label: { position: "insideEndTop", color: ink.text, fontFamily: ink.font, fontSize: 12, distance: [4, 3], textBorderColor: ink.surface, textBorderWidth: 3 },
          data: known.map(({ value, name }) => ({ yAxis: y(value), label: { formatter: narrow ? name.split(",")[0] : `${name} ${timeText(value, 3)}` } })),
        },
      },
    ],
  };
};

/** Draws a Series into an element; `pick(record)` is called when a point is chosen. */
export class ProgressChart {
  constructor(element, echarts, pick) {
    this.element = element;
    this.chart = echarts.init(element, null, { renderer: "canvas" });
    this.chart.on("click", ({ data }) => data?.[2] && pick(data[2]));
    new ResizeObserver(() => this.chart.resize()).observe(element);
  }

  /** Series keep their ids, so that a drawing changes those of the last one instead of making new ones. */
  draw(series, axes, lines) {
    this.chart.setOption(optionOf(series, axes, lines, inkOf(this.element), this.element.clientWidth < 520), { replaceMerge: ["series"] });
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
  const step = 10 ** Math.floor(Math.log10(Math.max(last, 1e-3))) / 2;
  return Math.max(step, Math.ceil((last * 1.01) / step) * step);
};
