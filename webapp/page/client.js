// The page's HTTP client: requests, bursts, and what to do about errors.

/** The server's error, or that no server answered. */
export class RequestError extends Error {
  constructor(type, message, status = 0, retryAfter = 0) {
    super(message);
    Object.assign(this, { type, status, retryAfter });
  }
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("Unreachable", "The web server does not answer.");
  }
  if (response.ok) return response.json();
  const { error, detail } = await response.json().catch(() => ({}));
  const ofFramework = typeof detail === "string" ? detail : `The server answered with status ${response.status}.`;
  const message = error?.message ?? ofFramework;
  const retryAfter = Number(response.headers.get("Retry-After")) || 0;
  throw new RequestError(error?.type, message, response.status, retryAfter);
}

export function getStats() {
  return request("stats", { signal: AbortSignal.timeout(10_000) });
}

export async function predict(inputs, signal) {
  const headers = { "Content-Type": "application/json" };
  const body = JSON.stringify({ inputs });
  return (await request("predict", { method: "POST", headers, body, signal })).outputs;
}

/** Predict with the task that runs the model once for each input. */
export function predictNaive(inputs, signal) {
  const body = new URLSearchParams(inputs.map((text) => ["s", text]));
  return request("naive", { method: "POST", body, signal });
}

export async function predictImage(file, signal) {
  const body = new FormData();
  body.append("image", file);
  return (await request("images", { method: "POST", body, signal })).outputs[0];
}

/** Send many inputs, some in each request, some requests at once; the first error ends it. */
export async function burst(send, { texts, total, size, concurrency, signal, onProgress }) {
  const began = performance.now();
  let [sent, answered] = [0, 0];

  async function sendNext() {
    while (sent < total) {
      const inputs = [];
      while (inputs.length < size && sent < total) inputs.push(texts[sent++ % texts.length]);
      await send(inputs, signal);
      answered += inputs.length;
      const seconds = (performance.now() - began) / 1000;
      onProgress({ answered, seconds, rate: answered / seconds });
    }
  }

  await Promise.all(Array.from({ length: concurrency }, sendNext));
}

/** Return what a person can do about an error: a sentence, and a command or nothing. */
export function advice(error, { task, workers }) {
  // By convention a task is named by its module, which begins with the name of the Celery app.
  const app = task?.includes(".") ? task.split(".")[0] : "APP";
  const command = `celery -A ${app} worker --concurrency=1`;
  if (error.type === "Unreachable") return ["Check that it is running, then try again."];
  if (error.type === "BrokerUnreachable") return ["Check that Redis or RabbitMQ is running, then try again."];
  if (error.status === 504 && workers === 0) return ["No worker is running. Start one, for example:", command];
  if (error.status === 504) return ["Send less at once, or start another worker, for example:", command];
  if (error.retryAfter) return [`Try again in ${error.retryAfter} s.`];
  return [error.status >= 500 ? "The server's log has the details." : ""];
}
