// How the page asks its server, and how it says in plain words what went wrong.

import { make } from "./charts.js";

const WORKER = "celery -A workers worker --concurrency=1";

/** What came instead of an answer. */
export class Trouble extends Error {
  constructor(kind, message, { status = 0, after = 0 } = {}) {
    super(message);
    Object.assign(this, { kind, status, after });
  }
}

function key() {
  try { return sessionStorage.getItem("api-key"); } catch { return null; }
}

/** Send a request; return the response, or raise what came instead. */
export async function send(path, { method = "GET", headers = {}, body, signal } = {}) {
  const known = key();
  const all = known ? { ...headers, "X-API-Key": known } : headers;
  let response;
  try {
    response = await fetch(path, { method, headers: all, body, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("Unreachable", "the web server does not answer");
  }
  if (response.ok) return response;
  const said = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return {};
  });
  const after = Number(response.headers.get("Retry-After")) || 0;
  throw new Trouble(said.error?.type ?? "Unknown", said.error?.message ?? `status ${response.status}`, { status: response.status, after });
}

/** Ask for JSON; return it with the milliseconds that it took. */
export async function ask(path, options) {
  const began = performance.now();
  const body = await (await send(path, { method: "POST", ...options })).json();
  return { body, trip: performance.now() - began };
}

const WORDS = {
  NoWorker: ["No worker answers.", "Start one with", WORKER],
  BrokerUnreachable: ["The broker is away.", "Start Redis again; this page goes on by itself. If you have none, start one with", "celery batch redis"],
  DeadlineExceeded: ["The answer did not come in time.", "Workers are there, but busy: ask again, send less at once, or start one more worker with", WORKER],
  Unreachable: ["The web server does not answer.", "See whether it still runs. To start everything at once:", "make up"],
};

/** Return a title, what to do, and a command or none, for what went wrong. */
export function explain(trouble) {
  if (WORDS[trouble.kind]) return WORDS[trouble.kind];
  if (trouble.status === 401 || trouble.status === 403) return ["This server wants an API key.", "Whoever runs it has one for you."];
  if (trouble.status === 429) return ["That was too much at once.", "The server has a limit for each client."];
  if (trouble.status === 503) return ["The server has enough to do.", `${sentence(trouble.message)} Ask again in a moment.`];
  if (trouble.status === 404) return ["This server does not offer that.", "It serves no such task."];
  if (trouble.status === 415) return ["This is no picture that the server reads.", "Choose one in PNG, JPEG, GIF or WebP."];
  if (trouble.status === 413) return ["That is too large.", sentence(trouble.message)];
  if (trouble.status >= 500) return ["Something went wrong on the server.", `${sentence(trouble.message)} Its log knows more.`];
  return ["The model cannot answer this.", sentence(trouble.message)];
}

function sentence(text) {
  const words = String(text).trim();
  return words.charAt(0).toUpperCase() + words.slice(1) + (/[.!?…]$/.test(words) ? "" : ".");
}

/** Show in a box what went wrong and the way out; `again` is called when it may be tried. */
export function showTrouble(box, trouble, again) {
  const [title, text, command] = explain(trouble);
  const lines = [make("strong", {}, title), make("span", {}, text)];
  if (command) lines.push(make("code", {}, command));
  if (trouble.status === 401 || trouble.status === 403) lines.push(keyField(again));
  const block = make("div", { class: "trouble", "data-kind": trouble.kind }, ...lines);
  box.replaceChildren(block);
  if (trouble.after && trouble.status !== 504 && !command) countdown(block, trouble.after);
}

function keyField(again) {
  const field = make("input", { type: "password", "aria-label": "API key", autocomplete: "off" });
  const button = make("button", { type: "button" }, "Use it");
  button.addEventListener("click", () => {
    try { sessionStorage.setItem("api-key", field.value.trim()); } catch { /* forgotten, then */ }
    window.dispatchEvent(new Event("api-key"));
    again?.();
  });
  return make("span", { class: "key-line" }, field, button);
}

/** Count the seconds down until asking again makes sense. */
function countdown(block, seconds) {
  // Not announced second by second: once at the beginning and once at the end.
  const left = make("span", { class: "countdown", "aria-hidden": "true" });
  const told = make("span", { class: "unseen" }, `Ask again in ${seconds} seconds.`);
  block.append(left, told);
  const until = performance.now() + seconds * 1000;
  const tick = () => {
    const rest = Math.ceil((until - performance.now()) / 1000);
    left.textContent = rest > 0 ? `You can ask again in ${rest} s.` : "You can ask again now.";
    if (rest > 0 && block.isConnected) setTimeout(tick, 250);
    else told.textContent = "You can ask again now.";
  };
  tick();
}
