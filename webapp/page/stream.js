// The live stream, read with fetch: unlike EventSource it can send an API key and say why it fails.

import { send } from "./asking.js";

/** Seconds of silence after which the line counts as lost; the server speaks at least every 5. */
const SILENCE = 12;

/** Seconds to wait after the first failure, and at most. */
const FIRST = 1;
const LONGEST = 15;

/**
 * Read server-sent events for as long as the page is looked at, whatever happens to the line.
 *
 * `told(message)` gets each message; `line(state, seconds, error)` hears "live", "lost" and "paused".
 */
export function follow(path, { told, line }) {
  let stop = new AbortController();
  let failures = 0;
  let wake = () => {};

  const pause = (seconds) => new Promise((resolve) => {
    const timer = setTimeout(resolve, seconds * 1000);
    wake = () => { clearTimeout(timer); resolve(); };
  });

  async function run() {
    for (;;) {
      if (document.hidden) {
        line("paused");
        await new Promise((resolve) => { wake = resolve; });
        continue;
      }
      const began = performance.now();
      stop = new AbortController();
      try {
        await read(path, stop, (message) => {
          failures = 0;
          line("live");
          told(message);
        });
        // A stream ends by itself now and then; a short one asks us to come back later.
        if (performance.now() - began < 5000) await pause(2);
      } catch (error) {
        if (document.hidden) continue;
        failures += 1;
        const seconds = Math.max(error.after ?? 0, Math.min(LONGEST, FIRST * 2 ** (failures - 1)));
        line("lost", seconds, error);
        await pause(seconds);
      }
    }
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) stop.abort();
    wake();
  });
  window.addEventListener("online", () => wake());
  window.addEventListener("api-key", () => wake());
  run();
}

async function read(path, stop, told) {
  let timer = setTimeout(() => stop.abort(), SILENCE * 1000);
  try {
    const response = await send(path, { headers: { Accept: "text/event-stream" }, signal: stop.signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => stop.abort(), SILENCE * 1000);
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        if (event.startsWith("data: ")) told(JSON.parse(event.slice(6)));
      }
    }
  } finally {
    clearTimeout(timer);
  }
}
