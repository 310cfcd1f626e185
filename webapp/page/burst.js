// A burst of requests: as many sentences as wanted, some in each request, some requests at once.

import { send } from "./asking.js";

/** Failed requests in a row after which a burst gives up. */
const PATIENCE = 5;

/** Seconds that a burst lets itself be put off at most, after a failure. */
const LONGEST = 5;

const SENTENCES = [
  "twinkle twinkle [MASK] star.",
  "Happy birthday to [MASK].",
  "the answer to life, the [MASK], and everything.",
  "Jack and Jill went up the [MASK].",
  "Mary had a little [MASK].",
];

/** Return so many sentences, none of which was sent before: equal ones might be computed once. */
function sentences(from, count) {
  return Array.from({ length: count }, (_, index) => {
    const number = from + index;
    return `${number}: ${SENTENCES[number % SENTENCES.length]}`;
  });
}

/** Do nothing for some seconds, or until it is too late for anything. */
function pause(seconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

/** Return the smallest value that at least this share of all is not above. */
export function percentile(ordered, share) {
  return ordered.length ? ordered[Math.max(0, Math.ceil(share * ordered.length) - 1)] : null;
}

/** What a burst has come to so far. */
class Tally {
  constructor(total) {
    Object.assign(this, { total, sent: 0, done: 0, failed: 0, took: [], trouble: null });
    this.began = performance.now();
    this.ended = null;
  }

  get seconds() { return ((this.ended ?? performance.now()) - this.began) / 1000; }

  get rate() { return this.seconds > 0 ? this.done / this.seconds : 0; }

  /** Milliseconds of p50, p95 and p99 over the requests that were answered. */
  get percentiles() {
    const ordered = Float64Array.from(this.took).sort();
    return ordered.length ? [0.5, 0.95, 0.99].map((share) => percentile(ordered, share)) : null;
  }
}

/** Send a burst to a path; tell of its progress as it goes; return what it came to. */
export async function burst({ path, total, each, atOnce, signal, progress }) {
  const tally = new Tally(total);
  const own = new AbortController();
  const either = AbortSignal.any([signal, own.signal]);
  const first = Math.floor(Math.random() * 1e9);
  let inRow = 0;

  async function client() {
    while (tally.sent < total && !either.aborted) {
      const count = Math.min(each, total - tally.sent);
      const inputs = sentences(first + tally.sent, count);
      tally.sent += count;
      const began = performance.now();
      try {
        const body = new URLSearchParams(inputs.map((text) => ["s", text]));
        const outputs = await (await send(path, { method: "POST", body, signal: either })).json();
        tally.took.push(performance.now() - began);
        const failed = outputs.filter((output) => output?.error).length;
        tally.done += count - failed;
        tally.failed += failed;
        inRow = 0;
      } catch (error) {
        if (either.aborted) return;
        tally.failed += count;
        tally.trouble ??= error;
        inRow += 1;
        if (inRow >= PATIENCE) own.abort();
        else if (error.after) await pause(Math.min(error.after, LONGEST), either);
      }
      progress(tally);
    }
  }

  await Promise.all(Array.from({ length: atOnce }, client));
  tally.ended = performance.now();
  progress(tally);
  return tally;
}
