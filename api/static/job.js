// The job page, live: events say that something happened; increments are fetched or taken from them, never the page.

import { refreshFigures } from "/static/figures.js";
import "/static/job-figures.js";
import { ProgressChart, Series } from "/static/progress.js";

const LOOK_MS = 700; // so often is it looked whether a part of the page is due
const AWAY_MS = 60_000; // a part that nobody sees is renewed at most so often
const DRAW_MS = 120, DRAW_MANY_MS = 1000;

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
const fetchNew = async () => {
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
  }
};
let fetching = null;
let again = false;
const catchUp = () => {
  again = fetching !== null; // what happened just now may not be in the answer that is on its way
  fetching ??= fetchNew().finally(() => {
    fetching = null;
    if (again) catchUp();
  });
  return fetching;
};

/** A part of the page that follows the job: renewed at most once in `ms` while it can be seen, else once in AWAY_MS. */
class Part {
  #timer = null;
  #last = performance.now(); // the page came with its parts
  #stale = false;

  constructor(id, ms, renew) {
    Object.assign(this, { id, ms, renew });
  }

  /** Something happened that the part should show. */
  touch() {
    this.#stale = true;
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.look();
    }, Math.max(LOOK_MS, this.#last + this.ms + 5 - performance.now())); // timers may be a little early
  }

  /** Renews the part if it is due. */
  look() {
    const { top, bottom } = document.getElementById(this.id).getBoundingClientRect();
    const seen = bottom > -innerHeight / 2 && top < innerHeight * 1.5;
    if (this.#stale && !document.hidden && performance.now() - this.#last >= (seen ? this.ms : AWAY_MS)) this.now();
  }

  now() {
    this.#stale = false;
    this.#last = performance.now();
    this.renew(document.getElementById(this.id));
  }
}

const fetchAgain = (element) => element.dispatchEvent(new Event("refresh"));
const fetchTrials = (element) => {
  const chosen = document.getSelection();
  const busy = element.contains(document.activeElement) || (!chosen.isCollapsed && element.contains(chosen.anchorNode));
  if (element.dataset.first === "yes" && element.dataset.order !== "oldest" && !busy) fetchAgain(element);
};
const fetchBest = (element) => { if (element.dataset.follows === "best") fetchAgain(element); };
const [summary, schedule, ...below] = [
  new Part("summary", 1500, fetchAgain),
  new Part("schedule", 1500, fetchBest),
  new Part("failures", 5000, fetchAgain),
  new Part("trials", 5000, fetchTrials),
  new Part("figures", 20_000, refreshFigures),
];
const parts = [summary, schedule, ...below];
addEventListener("scroll", () => { for (const part of parts) part.look(); }, { passive: true });

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
  for (const part of [summary, ...below]) part.touch();
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
  on("best", () => schedule.touch());
  on("task", () => {
    summary.touch();
    catchUp(); // it may have taken trials over, of which no event tells
  });
  on("state", () => summary.touch());
  on("end", () => {
    stop();
    box.dataset.live = "ended";
    catchUp();
    for (const part of parts) part.now();
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
  else {
    for (const part of parts) part.touch();
    catchUp().then(listen);
  }
});

await catchUp();
if (ended()) box.dataset.live = "ended";
else listen();
