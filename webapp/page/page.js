// The page: a form for one input, one for a picture, one for a burst, and the live numbers.

import { RequestError, advice, burst, getStats, predict, predictImage, predictNaive } from "./client.js";

const by = (id) => document.getElementById(id);

/** The last answer of /stats. */
let stats = { task: null, naive_task: null, image_task: null, examples: [], workers: null };

function make(tag, className, ...children) {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...children);
  return element;
}

function number(value) {
  if (value === null || value === undefined) return "—";
  return value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 1 : 0 });
}

/** Return an output as text: a string as it is, a list with one element a line, else JSON. */
function textOf(output) {
  if (typeof output === "string") return output;
  if (!Array.isArray(output)) return JSON.stringify(output, null, 2);
  const lines = output.map((each) => `  ${JSON.stringify(each, null, 1).replace(/\n */g, " ")}`);
  return `[\n${lines.join(",\n")}\n]`;
}

function showError(box, error) {
  const [text, command] = advice(error, stats);
  const block = make("div", "error", make("strong", "", error.message), make("span", "", text));
  if (command) block.append(make("code", "", command));
  box.replaceChildren(block);
}

/** Return a function that shows the output of a request in a box, and drops what came before. */
function asker(box, send) {
  let controller = new AbortController();
  return async (input, label) => {
    controller.abort();
    const { signal } = (controller = new AbortController());
    box.setAttribute("aria-busy", "true");
    box.replaceChildren(make("p", "soft", "Waiting for the output."));
    const began = performance.now();
    try {
      const output = await send(input, signal);
      const took = `${number(performance.now() - began)} ms`;
      const shown = make(typeof output === "string" ? "p" : "pre", "output", textOf(output));
      box.replaceChildren(make("p", "soft", label), shown, make("p", "took soft", took));
    } catch (error) {
      if (signal.aborted) return;
      showError(box, error);
    }
    box.removeAttribute("aria-busy");
  };
}

function startAsking() {
  const text = by("text");
  const ask = asker(by("answer"), async (input, signal) => (await predict([input], signal))[0]);
  by("ask-form").addEventListener("submit", (event) => {
    event.preventDefault();
    ask(text.value, text.value);
  });
  by("examples").addEventListener("click", ({ target }) => {
    if (target.tagName !== "BUTTON") return;
    text.value = target.textContent;
    ask(text.value, text.value);
  });
}

function startPicture() {
  const [drop, preview] = [by("drop"), by("preview")];
  const ask = asker(by("picture-answer"), predictImage);
  const choose = (file) => {
    if (!file) return;
    URL.revokeObjectURL(preview.src);
    preview.src = URL.createObjectURL(file);
    preview.hidden = false;
    by("file-name").textContent = `${file.name}, ${number(file.size / 1024)} kB`;
    ask(file, file.name);
  };
  preview.addEventListener("error", () => { preview.hidden = true; });
  by("file").addEventListener("change", ({ target }) => choose(target.files[0]));
  drop.addEventListener("drop", (event) => choose(event.dataTransfer.files[0]));
  // A file that is dropped anywhere must not replace the page.
  for (const type of ["dragover", "drop"]) {
    addEventListener(type, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", type === "dragover" && drop.contains(event.target));
    });
  }
}

function startBurst() {
  const form = by("burst-form");
  let controller = new AbortController();
  by("stop").addEventListener("click", () => controller.abort());

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!stats.examples.length && !by("text").reportValidity()) return;
    const texts = stats.examples.length ? stats.examples : [by("text").value];
    const numbers = Object.fromEntries([...new FormData(form)].map(([name, text]) => [name, Number(text)]));
    const ways = stats.naive_task ? [predict, predictNaive] : [predict];
    controller = new AbortController();
    setRunning(true);
    try {
      const rates = [];
      for (const [index, send] of ways.entries()) {
        const onProgress = (tally) => {
          rates[index] = tally.rate;
          showTally(index, tally, numbers.total);
          by("progress").value = (index + tally.answered / numbers.total) / ways.length;
        };
        await burst(send, { texts, ...numbers, signal: controller.signal, onProgress });
      }
      by("verdict").replaceChildren(make("p", "", verdict(rates)));
    } catch (error) {
      if (controller.signal.aborted) by("verdict").replaceChildren(make("p", "", "Cancelled."));
      else showError(by("verdict"), error);
      controller.abort(); // the other requests
    }
    setRunning(false);
  });
}

function setRunning(isRunning) {
  const [start, stop] = [by("start"), by("stop")];
  const [before, after] = isRunning ? [start, stop] : [stop, start];
  const hadFocus = document.activeElement === before;
  after.disabled = false;
  if (hadFocus) after.focus(); // a disabled button would lose it
  before.disabled = true;
  if (!isRunning) return;
  by("progress").value = 0;
  for (const cell of by("results").querySelectorAll("tbody td")) cell.textContent = "—";
  by("verdict").replaceChildren(make("p", "soft", "Sending."));
}

function showTally(column, { rate, answered, seconds }, total) {
  const texts = { rate: number(rate), answered: `${number(answered)} of ${number(total)}`, seconds: seconds.toFixed(2) };
  for (const [row, text] of Object.entries(texts)) {
    by("results").querySelectorAll(`[data-row="${row}"] td`)[column].textContent = text;
  }
}

function verdict([batched, naive]) {
  if (naive === undefined) return "All inputs were answered.";
  const times = batched / naive;
  return times >= 1.05 ? `Batched was ${times.toFixed(1)} times as fast.` : "Batching made no difference: send more at once.";
}

/** Change the status only when it differs: screen readers announce each change. */
function showStatus(state, text) {
  const status = by("status");
  status.dataset.state = state;
  if (status.textContent !== text) status.textContent = text;
}

function showTask(news) {
  const examples = news.examples.filter((each) => typeof each === "string");
  if (stats.task !== news.task) {
    by("task").textContent = news.task;
    by("image-task").textContent = news.image_task;
    document.title = `celery_batch: try ${news.task}`;
    by("picture").hidden = !news.image_task;
    for (const cell of by("results").querySelectorAll(".naive")) cell.hidden = !news.naive_task;
    const text = by("text");
    if (document.activeElement !== text) text.value ||= examples[0] ?? "";
    by("examples").replaceChildren(...examples.map((each) => {
      const chip = make("button", "chip", each);
      chip.type = "button";
      return chip;
    }));
  }
  stats = { ...news, examples };
}

function showLive(news) {
  for (const cell of by("live").querySelectorAll("[data-stat]")) {
    cell.textContent = number(news[cell.dataset.stat]);
  }
}

const UNREACHABLE = { BrokerUnreachable: "broker unreachable", Unreachable: "web server unreachable" };

let isPolling = false;

async function poll() {
  if (isPolling || document.visibilityState !== "visible") return;
  isPolling = true;
  try {
    const news = await getStats();
    showTask(news);
    showLive(news);
    if (news.workers) showStatus("good", news.workers === 1 ? "1 worker" : `${news.workers} workers`);
    else showStatus("none", "no worker");
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    stats.workers = null;
    showLive({});
    showStatus("bad", UNREACHABLE[error.type] ?? "no statistics");
  } finally {
    isPolling = false;
  }
}

startAsking();
startPicture();
startBurst();
poll();
setInterval(poll, 1000);
document.addEventListener("visibilitychange", poll);
