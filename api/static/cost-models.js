// The drawings of the page of cost models: metrics over time, and predicted against measured speeds.

import { axis, base, numberText, register } from "/static/figures.js";

register("quality", ({ columns, rows }, ink) => {
  const oldest = [...rows].reverse();
  return {
    ...base(ink), grid: { ...base(ink).grid, top: 56 },
    xAxis: axis(ink, "category", "model", { data: oldest.map((row) => row[0]), splitLine: { show: false } }),
    yAxis: axis(ink, "value", "from 0 to 1", { nameLocation: "end", nameGap: 12, nameTextStyle: { color: ink.muted, align: "left" }, max: 1 }),
    series: [1, 2, 3].map((i) => ({
      name: columns[i].title, type: "line", symbolSize: 6, lineStyle: { width: 2 }, connectNulls: true, color: ink.series[i - 1],
      data: oldest.map((row, at) => ({ value: [at, row[i]], hint: `Model ${row[0]}, ${row[5]} records\n${columns[i].title}: ${row[i] === null ? "–" : numberText(row[i], 3)}` })),
    })),
  };
});

register("calibration", ({ rows }, ink) => ({
  ...base(ink), legend: { show: false },
  xAxis: axis(ink, "value", "predicted speed, of the best", { min: (v) => Math.min(0, v.min), max: (v) => Math.max(1, v.max) }),
  yAxis: axis(ink, "value", "measured speed, of the best", { nameLocation: "end", nameGap: 12, nameTextStyle: { color: ink.muted, align: "left" }, min: 0, max: 1 }),
  series: [
    { type: "line", symbol: "none", silent: true, lineStyle: { color: ink.muted, type: "dashed", width: 1 }, data: [[0, 0], [1, 1]] },
    {
      type: "scatter", symbolSize: 6, itemStyle: { color: ink.accent, opacity: 0.6 },
      data: rows.map((row) => ({ value: [row[0], row[1]], hint: `Record ${row[2]} of job ${row[3]}\npredicted ${numberText(row[0], 3)}, measured ${row[1] === 0 ? "0 (failed)" : numberText(row[1], 3)}` })),
    },
  ],
}));
