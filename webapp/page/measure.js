// The burst: its form, its progress, and what the page itself has measured.

import { burst } from "./burst.js";
import { explain } from "./asking.js";
import { Rulers, say } from "./charts.js";

const WAYS = {
  batched: { name: "Batched", path: "stream", column: 1 },
  naive: { name: "One by one", path: "naive", column: 2 },
};
const by = (id) => document.getElementById(id);

export function startBurst(watching) {
  const form = by("burst-form");
  const measured = { batched: null, naive: null };
  const chart = new Rulers(by("chart-burst"), { title: "Answer times of requests", unit: "ms" });
  let stop = null;

  const draw = () => chart.show(Object.entries(WAYS).map(([kind, way]) => (
    { kind, name: way.name, values: measured[kind]?.percentiles ?? null }
  )));
  draw();

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const wanted = read(form);
    if (stop || !wanted) return;
    stop = new AbortController();
    running(true);
    const ways = wanted.way === "both" ? ["batched", "naive"] : [wanted.way];
    const tallies = [];
    for (const [index, kind] of ways.entries()) {
      if (stop.signal.aborted) break;
      const tally = await one(kind, wanted, { index, count: ways.length });
      tallies.push([kind, tally]);
      if (tally.trouble && tally.done === 0) break;
    }
    by("burst-said").textContent = verdict(tallies, stop.signal.aborted);
    stop = null;
    running(false);
  });
  by("burst-stop").addEventListener("click", () => stop?.abort());

  async function one(kind, wanted, { index, count }) {
    const way = WAYS[kind];
    by("burst-said").textContent = `Sending ${say(wanted.total)} sentences: ${way.name.toLowerCase()}.`;
    const band = watching.begin(way.name);
    let drawn = 0;
    const tally = await burst({
      ...wanted,
      path: way.path,
      signal: stop.signal,
      progress: (so) => {
        measured[kind] = so;
        if (so.ended === null && performance.now() - drawn < 100) return;
        drawn = performance.now();
        by("burst-progress").value = (index + (so.done + so.failed) / so.total) / count;
        fill(way.column, so);
        draw();
      },
    });
    watching.end(band);
    return tally;
  }
}

function running(yes) {
  const go = by("burst-go");
  const stop = by("burst-stop");
  stop.disabled = !yes;
  // Who works with the keyboard must not lose their place to a button that is switched off.
  if (yes && document.activeElement === go) stop.focus();
  go.disabled = yes;
  if (!yes && (document.activeElement === stop || document.activeElement === document.body)) go.focus();
  stop.disabled = !yes;
  if (yes) by("burst-progress").value = 0;
}

/** Read the form; null, with the field in question marked, if a number is out of bounds. */
function read(form) {
  let first = null;
  const number = (name) => {
    const field = form.elements[name];
    const fine = field.checkValidity();
    field.setAttribute("aria-invalid", String(!fine));
    if (!fine) first ??= field;
    return field.valueAsNumber;
  };
  const wanted = { total: number("total"), each: number("each"), atOnce: number("atonce"), way: form.elements.way.value };
  if (!first) return wanted;
  const name = first.labels[0].firstChild.textContent.trim();
  by("burst-said").textContent = `${name}: choose a whole number from ${first.min} to ${say(Number(first.max))}.`;
  first.focus();
  return null;
}

function fill(column, tally) {
  const set = (row, value) => { by("burst-table").querySelector(`[data-row="${row}"]`).children[column].textContent = value; };
  set("rate", say(tally.rate));
  set("done", `${say(tally.done)} of ${say(tally.total)}`);
  set("failed", say(tally.failed));
  set("seconds", tally.seconds.toFixed(2));
}

/** Say in a sentence or two what came of it. */
function verdict(tallies, cancelled) {
  const words = [];
  if (cancelled) words.push("Cancelled.");
  const trouble = tallies.map(([, tally]) => tally.trouble).find(Boolean);
  if (trouble) words.push(explain(trouble).join(" "));
  if (cancelled || trouble) return words.join(" ");
  for (const [kind, tally] of tallies) words.push(`${WAYS[kind].name}: ${say(tally.rate)} sentences a second.`);
  if (tallies.length === 2) {
    const times = tallies[0][1].rate / tallies[1][1].rate;
    words.push(times >= 1.05 ? `Batched was ${times.toFixed(1)} times as fast.` : "Batching has not paid off here; send more at once.");
  }
  return words.join(" ");
}
