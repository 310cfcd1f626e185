// The backfills that run beside the page: how far they are, and buttons where they may be steered.

import { send, showTrouble } from "./asking.js";
import { make, say } from "./charts.js";

/** Seconds without an answer after which that is told. */
const LONG = 10;

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

/** Say seconds in their two largest units. */
function duration(seconds) {
  let left = Math.round(seconds);
  const words = [];
  for (const [name, size] of UNITS) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count && words.length < 2) words.push(`${count} ${name}`);
    else if (words.length) break;
  }
  return words.join(" ") || "0 s";
}

/** Show the jobs of one look; what is there already changes in its place, so that no focus is lost. */
export function showJobs(card, { jobs = [], steers = false }) {
  const list = card.querySelector("ul");
  const shown = new Map([...list.children].map((item) => [item.dataset.id, item]));
  for (const job of jobs) {
    const item = shown.get(job.id) ?? list.appendChild(begin(card, job, steers));
    shown.delete(job.id);
    fill(item, job);
  }
  for (const item of shown.values()) item.remove();
  card.hidden = jobs.length === 0;
}

function begin(card, job, steers) {
  const name = make("strong", { class: "name" }, job.name);
  const head = make("div", { class: "job-head" }, name, make("span", { class: "faint" }, job.task), make("span", { class: "state" }));
  const bar = make("progress", { "aria-label": `Progress of ${job.name}` });
  const item = make("li", { "data-id": job.id }, head, bar, make("p", { class: "job-said" }));
  if (!steers) return item;
  const button = make("button", { type: "button" });
  button.addEventListener("click", () => steer(card, item, button));
  head.append(button);
  return item;
}

function fill(item, job) {
  const paused = job.state === "paused";
  item.dataset.state = job.state;
  const state = item.querySelector(".state");
  state.textContent = job.state;
  state.className = `state ${paused || job.state === "silent" ? "silent" : "busy"}`;
  const bar = item.querySelector("progress");
  bar.hidden = job.total === null;
  bar.max = Math.max(1, job.total ?? 1);
  bar.value = job.total === null ? 0 : job.done;
  item.querySelector(".job-said").textContent = words(job).join(" · ");
  const button = item.querySelector("button");
  if (button) {
    button.textContent = paused ? "Resume" : "Pause";
    button.setAttribute("aria-label", `${paused ? "Resume" : "Pause"} ${job.name}`);
  }
}

function words(job) {
  const total = job.total === null ? "" : ` of ${say(job.total)}`;
  const said = [`${say(job.done)}${total} rows`, `${say(job.failed)} failed`, `${say(job.rate)} /s`, `${say(job.flying)} of ${say(job.window)} on their way`];
  if (job.workers) said.push(`${say(job.workers)} worker${job.workers === 1 ? "" : "s"}`);
  if (job.flying && job.silent > LONG) said.push(`no answer for ${duration(job.silent)}`);
  else if (job.left !== null && job.state === "running") said.push(`${duration(job.left)} left`);
  return said;
}

async function steer(card, item, button) {
  const box = card.querySelector(".jobs-answer");
  const wanted = item.dataset.state === "paused" ? "resume" : "pause";
  button.disabled = true;
  try {
    const response = await send(`jobs/${item.dataset.id}`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ do: wanted }),
    });
    fill(item, await response.json());
    box.replaceChildren();
  } catch (error) {
    if (error.status === 404) box.replaceChildren(make("p", { class: "faint" }, "This backfill has ended."));
    else showTrouble(box, error, () => steer(card, item, button));
  } finally {
    button.disabled = false;
    if (document.activeElement === document.body) button.focus();
  }
}
