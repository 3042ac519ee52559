// The drawing of the workload page: a line for each device and profile over time, regressions with a ring.

import { axis, base, numberText, register, timeText, timeUnit } from "/static/figures.js";

register("results", ({ rows }, ink) => {
  const places = [...new Set(rows.map((row) => `${row[2]}, ${row[3]}`))];
  const [size, unit] = timeUnit(Math.max(...rows.map((row) => row[1])));
  const hint = (row) => `${row[0].slice(0, 19).replace("T", " ")} UTC\n${timeText(row[1])} ± ${numberText(100 * row[7], 2)} %\n${row[2]}\n${row[9]}\n${row[8]} trials, job ${row[10]}` +
    (row[5] === null ? "" : `\n${numberText(row[5], 3)} × the fastest before (p = ${numberText(row[6], 2)})`);
  const lines = places.map((place, n) => ({
    name: place, type: "line", step: false, symbolSize: 8, lineStyle: { width: 1.5, opacity: 0.6 }, color: ink.series[n % ink.series.length],
    data: rows.filter((row) => `${row[2]}, ${row[3]}` === place).map((row) => ({ value: [row[0], row[1] / size], hint: hint(row) })),
  }));
  const worse = rows.filter((row) => row[4] !== "");
  return {
    ...base(ink), grid: { ...base(ink).grid, top: 56 },
    xAxis: axis(ink, "time", "submitted (UTC)", { splitLine: { show: false } }),
    yAxis: axis(ink, "value", `best time, ${unit}`, { nameLocation: "end", nameGap: 12, nameTextStyle: { color: ink.muted, align: "left" }, scale: true }),
    series: [...lines, {
      name: "regression", type: "scatter", symbol: "circle", symbolSize: 18, itemStyle: { color: "transparent", borderColor: ink.bad, borderWidth: 2 },
      data: worse.map((row) => ({ value: [row[0], row[1] / size], hint: `Regression\n${hint(row)}` })),
    }],
    useUTC: true,
  };
});
