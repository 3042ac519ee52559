// The drawings of the comparison: samples of each schedule, and the best so far of each job.

import { axis, base, logAxis, register, timeText, timeUnit } from "/static/figures.js";

const labelsOf = (rows) => [...new Set(rows.map((row) => row[0]))];
const quantile = (sorted, q) => {
  const at = (sorted.length - 1) * q, low = Math.floor(at);
  return sorted[low] + (sorted[Math.ceil(at)] - sorted[low]) * (at - low);
};

register("samples", ({ rows }, ink) => {
  const labels = labelsOf(rows);
  const [size, unit] = timeUnit(Math.min(...rows.map((row) => row[1])));
  const of = labels.map((label) => rows.filter((row) => row[0] === label).map((row) => row[1] / size).sort((a, b) => a - b));
  const color = (n) => ink.series[Math.min(n, ink.series.length - 1)];
  return {
    ...base(ink), legend: { show: false },
    grid: { ...base(ink).grid, top: 10 },
    xAxis: axis(ink, "value", `time of one run, ${unit}`, { scale: true }),
    yAxis: axis(ink, "category", "", { inverse: true, data: labels, axisLabel: { color: ink.text, fontSize: 13, fontWeight: 640 } }),
    series: [
      {
        type: "boxplot", boxWidth: [18, 26], silent: true,
        data: of.map((values, n) => ({ value: [0, 0.25, 0.5, 0.75, 1].map((q) => quantile(values, q)), itemStyle: { color: "transparent", borderColor: color(n), borderWidth: 1.5 } })),
      },
      {
        type: "scatter", symbolSize: 6,
        data: rows.map((row, i) => ({
          value: [row[1] / size, labels.indexOf(row[0])], symbolOffset: [0, `${((i * 7) % 5 - 2) * 60}%`],
          itemStyle: { color: color(labels.indexOf(row[0])), opacity: 0.55 }, hint: `${row[0]}: ${timeText(row[1])}`,
        })),
      },
    ],
  };
});

register("curves", ({ columns, rows }, ink) => {
  const labels = labelsOf(rows);
  const [size, unit] = timeUnit(Math.min(...rows.map((row) => row[2])));
  const times = rows.map((row) => row[2] / size);
  const over = columns[1].form === "duration" ? "search time, s" : "trials";
  return {
    ...base(ink), grid: { ...base(ink).grid, top: 56 },
    xAxis: axis(ink, "value", over, { min: 0, splitLine: { show: false } }),
    yAxis: logAxis(ink, `best so far, ${unit}`, Math.min(...times) * 0.97, Math.max(...times) * 1.03),
    series: labels.map((label, n) => ({
      name: label, type: "line", step: "end", symbolSize: 5, lineStyle: { width: 2 }, color: ink.series[Math.min(n, ink.series.length - 1)],
      data: rows.filter((row) => row[0] === label).map((row) => ({ value: [row[1], row[2] / size], hint: `${label}: ${timeText(row[2])}\nafter ${row[1]} ${columns[1].form === "duration" ? "s" : "trials"}` })),
    })),
  };
});
