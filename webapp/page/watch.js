// What the workers do, from the live stream.

import { explain } from "./asking.js";
import { Bars, Lines, make, say } from "./charts.js";
import { showJobs } from "./jobs.js";
import { follow } from "./stream.js";

/** Seconds that the charts look back. */
const SPAN = 60;

const PERCENTILES = ["p50", "p95", "p99"];
const by = (id) => document.getElementById(id);

export function startWatching() {
  const charts = {
    rate: new Lines(by("chart-rate"), { title: "Throughput", unit: "inputs/s", least: 10, series: [{ name: "all workers", area: true }] }),
    latency: new Lines(by("chart-latency"), {
      title: "Answer times, last 10 s", unit: "ms", least: 10,
      series: [{ name: "p50" }, { name: "p95", mark: "second" }, { name: "p99", mark: "third" }],
    }),
    sizes: new Bars(by("chart-sizes"), { title: "Sizes of batches", unit: "inputs", across: "inputs in their batch, over the last minute", columns: ["Size", "Batches", "Inputs"] }),
    queue: new Lines(by("chart-queue"), { title: "Waiting in the queue", unit: "messages", least: 4, series: [{ name: "queue", area: true }] }),
  };
  const sizes = new Sizes();

  follow("live", {
    told: (news) => {
      const at = performance.now() / 1000;
      charts.rate.add(at, [news.rate]);
      charts.rate.now.textContent = news.rate === null ? "—" : `${say(news.rate)} /s`;
      const times = PERCENTILES.map((name) => (news.latency?.[name] == null ? null : news.latency[name] * 1000));
      charts.latency.add(at, times);
      charts.latency.now.textContent = times[1] === null ? "—" : `p95 ${say(times[1])} ms`;
      charts.queue.add(at, [news.queue]);
      charts.queue.now.textContent = say(news.queue);
      showSizes(charts.sizes, sizes.add(at, news));
      showWorkers(news);
      showFleet(news);
      showJobs(by("jobs"), news);
    },
    line: showLine,
  });

  return {
    /** Mark the beginning of a burst in the charts over time. */
    begin(name) {
      const band = { name, from: performance.now() / 1000, to: null };
      for (const chart of [charts.rate, charts.latency, charts.queue]) chart.bands.push(band);
      return band;
    },
    end(band) { band.to = performance.now() / 1000; },
  };
}

/** Batches by size over the last minute, from totals that only grow while their source is one. */
class Sizes {
  constructor() { this.looks = []; }

  add(at, { source, sizes }) {
    if (this.looks.at(-1)?.source !== source) this.looks = [];
    this.looks.push({ at, source, sizes });
    while (this.looks.length > 1 && at - this.looks[1].at > SPAN) this.looks.shift();
    const before = this.looks[0].sizes;
    return Object.fromEntries(Object.entries(sizes).map(([size, [batches, rows]]) => {
      const [batchesThen, rowsThen] = before[size] ?? [0, 0];
      return [size, [batches - batchesThen, rows - rowsThen]];
    }));
  }
}

function showSizes(chart, grown) {
  const largest = Math.max(64, ...Object.keys(grown).map(Number));
  const bars = [];
  let [batches, rows] = [0, 0];
  for (let size = 1; size <= largest; size *= 2) {
    const [some, inputs] = grown[size] ?? [0, 0];
    const name = size <= 2 ? String(size) : `${size / 2 + 1}–${size}`;
    bars.push({ name, value: inputs, row: [name, say(some), say(inputs)] });
    batches += some;
    rows += inputs;
  }
  chart.now.textContent = batches ? `${say(rows / batches)} per batch` : "—";
  const words = bars.filter((bar) => bar.value).map((bar) => `${say(bar.value)} in batches of ${bar.name}`);
  chart.show(bars, words.length ? `Of ${say(rows)} inputs in the last minute ${words.join(", ")}.` : "No batch in the last minute.");
}

function showWorkers({ workers, reached }) {
  const body = by("workers").tBodies[0];
  if (workers.length) {
    body.replaceChildren(...workers.map((worker) => make("tr", {},
      make("th", { scope: "row" }, worker.name),
      make("td", {}, make("span", { class: `state ${worker.state}` }, worker.state)),
      ...[worker.waiting, worker.batches, worker.rows, worker.batches ? worker.rows / worker.batches : null]
        .map((value) => make("td", {}, say(value))))));
    return;
  }
  const [title, text, command] = explain({ kind: reached ? "NoWorker" : "BrokerUnreachable" });
  const block = make("div", { class: "trouble" }, make("strong", {}, title), make("span", {}, text), make("code", {}, command));
  body.replaceChildren(make("tr", {}, make("td", { colspan: "6" }, block)));
}

/** Change words only where they differ: a live region is to speak of news alone. */
function rewrite(element, state, words) {
  if (element.dataset.state !== state) element.dataset.state = state;
  if (element.textContent !== words) element.textContent = words;
}

function showFleet({ workers, reached }) {
  const pill = by("fleet").firstElementChild;
  const here = workers.filter((worker) => worker.state !== "silent").length;
  const silent = workers.length - here;
  let [state, words] = ["good", `${here} worker${here === 1 ? "" : "s"} ready`];
  if (!reached) [state, words] = ["bad", "broker away"];
  else if (!workers.length) [state, words] = ["none", "no worker"];
  else if (!here) [state, words] = ["none", `${silent} silent`];
  by("fleet").dataset.state = state;
  if (pill.textContent !== words) pill.textContent = words;
}

function showLine(state, seconds, error) {
  const line = by("line");
  if (state === "live") rewrite(line, "good", "Live, a look each second.");
  else if (state === "paused") rewrite(line, "wait", "Paused while nobody looks.");
  else {
    const why = error?.name === "AbortError" || !error?.kind ? "The live stream fell silent." : explain(error)[0];
    rewrite(line, "bad", `${why} Trying again in ${Math.round(seconds)} s.`);
    by("fleet").dataset.state = "wait";
    by("fleet").firstElementChild.textContent = "reconnecting";
  }
}
