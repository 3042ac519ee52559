// The drawings of the job page: parallel axes whose brushes filter the table, calibration of a cost model, strips.

import { axis, base, logTicks, numberText, register, timeUnit, valueText, wholes } from "/static/figures.js";

/** Shows the rows of the chosen lines alone; null shows all. */
const filterRows = (figure, chosen) => {
  const rows = figure.querySelectorAll("table.numbers tbody tr");
  rows.forEach((row, i) => { row.hidden = chosen !== null && !chosen.has(i); });
  figure.dataset.chosen = chosen === null ? rows.length : chosen.size;
};

/** Offers each value of the axes that have few of them, so that the keyboard can choose what a brush can. */
const offerValues = (figure, chart, axes) => {
  const bar = figure.querySelector(".bar");
  if (!chart || !bar || bar.querySelector("select")) return;
  const select = document.createElement("select");
  select.setAttribute("aria-label", "Only trials with");
  select.append(new Option("all trials", ""));
  for (const { dim, name, data } of axes.filter((one) => one.type === "category")) {
    data.forEach((value, at) => select.append(new Option(`${name} = ${value}`, `${dim} ${at}`)));
  }
  select.addEventListener("change", () => {
    const [dim, at] = select.value === "" ? [-1, 0] : select.value.split(" ").map(Number);
    chart.getModel().queryComponents({ mainType: "parallelAxis" }).forEach((one, n) => {
      chart.dispatchAction({ type: "axisAreaSelect", parallelAxisId: one.id, intervals: n === dim ? [[at - 0.4, at + 0.4]] : [] });
    });
  });
  bar.append(select);
};

/** Parallel axes: the first column is the trial, the second its time, the others are knobs. */
register("parallel", (table, ink, narrow, figure, chart) => {
  const most = narrow ? 5 : 12; // the knobs stand in order of importance
  const shown = table.columns.map((_, i) => i).slice(2, 2 + most);
  const times = table.rows.map((row) => row[1]);
  const [low, high] = [Math.min(...times), Math.max(...times)];
  const [size, unit] = timeUnit(low);
  const label = { color: ink.text, fontFamily: ink.font, fontSize: 11, textBorderColor: ink.surface, textBorderWidth: 3 };
  const isText = (i) => table.columns[i].form === "text" || new Set(table.rows.map((row) => row[i])).size <= 8;
  const kinds = (i) => [...new Set(table.rows.map((row) => `${row[i] ?? "–"}`))].sort((a, b) => (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b));
  const axes = shown.map((i, dim) => ({
    dim, name: table.columns[i].title, ...(isText(i) ? { type: "category", data: kinds(i) } : { type: "value", scale: true, axisLabel: { ...label, formatter: (v) => numberText(v, 3) } }),
  }));
  axes.push({ dim: shown.length, name: `time, ${unit}`, type: "log", min: low / size, max: high / size, axisLabel: { ...label, formatter: (v) => numberText(v, 4), hideOverlap: true, customValues: logTicks(low / size, high / size) } });
  offerValues(figure, chart, axes);
  chart?.off("axisareaselected");
  chart?.on("axisareaselected", () => {
    const model = chart.getModel().getSeriesByIndex(0);
    const active = model.getRawIndicesByActiveState("active");
    const brushed = model.getRawIndicesByActiveState("normal").length === 0; // without a brush no line is active
    filterRows(figure, brushed && active.length < table.rows.length ? new Set(active) : null);
  });
  return {
    ...base(ink), legend: { show: false }, height: 300,
    parallel: {
      left: narrow ? 40 : 64, right: 60, top: narrow ? 64 : 44, bottom: 20, axisExpandable: false,
      parallelAxisDefault: {
        nameRotate: narrow ? 30 : 0, nameTextStyle: { color: ink.text, fontFamily: ink.font, fontSize: 11.5 }, nameGap: 14, nameTruncate: { maxWidth: narrow ? 60 : 110 },
        axisLine: { lineStyle: { color: ink.muted } }, axisTick: { show: false }, axisLabel: label,
        areaSelectStyle: { width: 16, color: ink.accent, opacity: 0.25, borderColor: ink.accent },
      },
    },
    parallelAxis: axes,
    series: [{
      type: "parallel", smooth: 0.15, lineStyle: { width: 1.2, opacity: 0.45 }, inactiveOpacity: 0.04, activeOpacity: 0.8,
      data: table.rows.map((row, n) => ({
        value: [...shown.map((i) => (isText(i) ? `${row[i] ?? "–"}` : row[i])), row[1] / size],
        // the fastest stand out, in colour and in front
        lineStyle: { color: n < Math.max(5, table.rows.length / 10) ? ink.accent : ink.muted, opacity: n < Math.max(5, table.rows.length / 10) ? 0.85 : 0.25 },
        z: -n,
      })),
    }],
  };
});

/** Predicted against measured, with the diagonal on which both are equal. */
register("calibration", (table, ink) => {
  const percent = (name) => axis(ink, "value", name, { min: 0 });
  const last = Math.max(...table.rows.map((row) => row[3]), 1);
  return {
    ...base(ink), legend: { show: false }, grid: { left: 16, right: 20, top: 34, bottom: 34, containLabel: true },
    xAxis: percent("predicted score, %"),
    yAxis: { ...percent("measured score, %"), nameLocation: "end", nameGap: 12, nameTextStyle: { color: ink.muted, align: "left" } },
    series: [{
      type: "scatter", symbolSize: 6,
      data: table.rows.map((row) => ({
        value: [100 * row[0], 100 * row[1]], itemStyle: { color: ink.accent, opacity: 0.25 + 0.6 * (row[3] / last) },
        hint: table.columns.map((column, i) => `${column.title}: ${valueText(row[i], column)}`).join("\n"),
      })),
      markLine: { silent: true, symbol: "none", lineStyle: { color: ink.muted, type: [5, 4] }, data: [[{ coord: [0, 0] }, { coord: [100, 100] }]] },
    }],
  };
});

/** One strip below the other over the first column: each column with an axis of its own. */
register("strips", (table, ink) => {
  const strips = table.columns.map((_, i) => i).slice(1).filter((i) => table.rows.some((row) => row[i] !== null));
  const tall = 104;
  const scaleOf = (i) => {
    const { form, unit } = table.columns[i];
    return form === "seconds" ? timeUnit(Math.max(...table.rows.map((row) => row[i] ?? 0))) : [1, unit];
  };
  return {
    ...base(ink), legend: { show: false }, height: 40 + tall * strips.length, axisPointer: { link: [{ xAxisIndex: "all" }] },
    tooltip: { ...base(ink).tooltip, trigger: "axis", formatter: (shown) => [`Trial ${shown[0].value[0]}`, ...shown.map((one) => one.data.hint)].join("\n") },
    grid: strips.map((_, n) => ({ left: 52, right: 20, top: 34 + n * tall, height: tall - 58 })),
    xAxis: strips.map((_, n) => axis(ink, "value", n === strips.length - 1 ? table.columns[0].title.toLowerCase() : "", {
      gridIndex: n, nameGap: 22, min: 0, max: "dataMax", ...wholes(table.columns[0]), splitLine: { show: false }, axisLabel: { show: n === strips.length - 1 },
    })),
    yAxis: strips.map((i, n) => {
      const [, unit] = scaleOf(i);
      return axis(ink, "value", unit ? `${table.columns[i].title}, ${unit}` : table.columns[i].title, {
        gridIndex: n, nameLocation: "end", nameGap: 14, nameTextStyle: { color: ink.text, align: "left", fontSize: 11.5, padding: [0, 0, 0, -44] }, scale: true, splitNumber: 2,
      });
    }),
    series: strips.map((i, n) => {
      const [size] = scaleOf(i);
      return {
        type: "line", xAxisIndex: n, yAxisIndex: n, symbol: "none", lineStyle: { width: 1.5, color: ink.accent },
        data: table.rows.map((row) => ({ value: [row[0], row[i] === null ? null : row[i] / size], hint: `${table.columns[i].title}: ${valueText(row[i], table.columns[i])}` })),
      };
    }),
  };
});
