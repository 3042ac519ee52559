// The job page, live: events say that something happened; increments are fetched or taken from them, never the page.

import { refreshFigures } from "/static/figures.js";
import "/static/job-figures.js";
import { ProgressChart, Series } from "/static/progress.js";

const REFRESH_MS = 700; // at most this often are the figures, the failures and the trials asked for again
const FIGURES_MS = 10_000; // and so often the charts below
const DRAW_MS = 120, DRAW_MANY_MS = 500;

const article = document.getElementById("job");
const box = document.getElementById("chart");
const note = document.getElementById("chart-note");
const { job, task } = article.dataset;
const series = new Series();
const axes = {};
const address = `/v1/jobs/${job}`;

const chart = new ProgressChart(box, window.echarts, (record) =>
  window.htmx.ajax("GET", `/jobs/${job}/trials/${record}/panel`, { target: "#schedule", swap: "outerHTML show:top" }));

/** Calls `action` at most once in `ms()`, the last wish always. */
const throttled = (action, ms) => {
  let timer = null, last = 0;
  return () => {
    if (timer !== null) return;
    timer = setTimeout(() => {
      timer = null;
      last = performance.now();
      action();
    }, Math.max(0, ms() - (performance.now() - last)));
  };
};

const lines = () => {
  const { dataset } = document.getElementById("summary");
  return [
    { value: Number(dataset.baseline), name: box.dataset.baselineName },
    { value: Number(dataset.roofline), name: `roofline, ${box.dataset.rooflineBy === "bytes" ? "memory" : "arithmetic"}` },
  ];
};

const ended = () => !["queued", "running", "cancelling"].includes(document.getElementById("summary").dataset.state);

const draw = () => {
  chart.draw(series, axes, lines());
  Object.assign(box.dataset, {
    points: series.timed.length, failed: series.failed.length, lastSequence: series.last, best: series.bestSeconds ?? "",
    across: axes.across, scale: axes.scale, thinned: series.thinned,
  });
  const shown = (series.timed.length + series.failed.length).toLocaleString("en-US");
  const crosses = series.failed.length ? " Crosses at the foot failed." : "";
  const all = series.thinned > 1 ? `${shown} of ${(series.last + 1).toLocaleString("en-US")} trials, with every new best.` : `${shown} trials.`;
  note.textContent = series.last < 0
    ? (ended() ? "The job ended without a trial." : "No trial has ended yet.")
    : `${all}${crosses} Around the best so far: the quartiles of its samples. Choose a point to see its schedule.`;
};
const drawSoon = throttled(draw, () => (series.timed.length > 1500 ? DRAW_MANY_MS : DRAW_MS));

/** Asks for what came after the last trial known. */
let known = 0; // the last event that needs no telling
let fetching = null;
const catchUp = () => (fetching ??= (async () => {
  try {
    const answer = await fetch(`${address}/progress?task=${task}&after=${series.last}`, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const columns = await answer.json();
    known = Math.max(known, columns.last_event_id);
    series.addColumns(columns);
    drawSoon();
  } catch (error) {
    note.textContent = `The trials could not be fetched (${error.message}); trying again.`;
    setTimeout(catchUp, 3000);
  } finally {
    fetching = null;
  }
})());

const refresh = throttled(() => {
  const parts = ["summary", "failures"];
  const trials = document.getElementById("trials");
  const chosen = document.getSelection();
  const busy = trials.contains(document.activeElement) || (!chosen.isCollapsed && trials.contains(chosen.anchorNode));
  if (trials.dataset.first === "yes" && trials.dataset.order !== "oldest" && !busy) parts.push("trials");
  for (const part of parts) document.getElementById(part).dispatchEvent(new Event("refresh"));
}, () => REFRESH_MS);
const refreshCharts = throttled(() => refreshFigures(document.getElementById("figures")), () => FIGURES_MS);

const followBest = throttled(() => {
  const panel = document.getElementById("schedule");
  if (panel.dataset.follows === "best") panel.dispatchEvent(new Event("refresh"));
}, () => REFRESH_MS);

const onTrial = ({ data }) => {
  if (data.task === Number(task)) {
    const next = data.sequence === series.last + 1;
    const better = data.seconds !== null && (series.bestSeconds === null || data.seconds < series.bestSeconds);
    if (next && !better) {
      const failure = data.seconds === null ? `${data.stage}:${data.reason}` : null;
      series.add(data.sequence, data.elapsed_seconds, series.end[2] + (data.device_seconds ?? 0), data.seconds, failure, data.record_id);
      drawSoon();
    } else if (data.sequence > series.last) {
      catchUp(); // a new best comes with the quartiles of its samples
    }
  }
  refresh();
  refreshCharts();
};

let source = null;
const listen = () => {
  if (source || box.dataset.live === "ended") return;
  source = new EventSource(`${address}/events?after=${known}`);
  const on = (kind, action) => source.addEventListener(kind, (message) => {
    known = Math.max(known, Number(message.lastEventId));
    box.dataset.live = "on";
    action(message.data ? JSON.parse(message.data) : {});
  });
  source.addEventListener("open", () => { box.dataset.live = "on"; });
  source.addEventListener("error", () => { box.dataset.live = "lost"; });
  on("trial", onTrial);
  on("best", followBest);
  on("task", () => { refresh(); drawSoon(); });
  on("state", refresh);
  on("end", () => {
    stop();
    box.dataset.live = "ended";
    catchUp();
    refresh();
    refreshCharts();
    followBest();
  });
};
const stop = () => {
  source?.close();
  source = null;
};

for (const input of document.querySelectorAll(".switches input")) {
  if (input.checked) axes[input.name] = input.value;
  input.addEventListener("change", () => {
    axes[input.name] = input.value;
    const state = new URL(location.href);
    state.searchParams.set(input.name, input.value);
    history.replaceState(null, "", state);
    draw();
  });
}
document.addEventListener("themechange", draw);
// the lines of the chart come with the figures: draw when they have changed
new MutationObserver(drawSoon).observe(article, { subtree: true, attributes: true, attributeFilter: ["data-baseline", "data-roofline"] });
// a hidden page gives its connection back: a browser has only six for one server
document.addEventListener("visibilitychange", () => {
  if (document.hidden) stop();
  else catchUp().then(listen);
});

await catchUp();
if (ended()) box.dataset.live = "ended";
else listen();
