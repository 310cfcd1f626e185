// One question at a time: a sentence with a gap, or a picture.

import { ask, showTrouble, Trouble } from "./asking.js";
import { make, say } from "./charts.js";

const MOST_BYTES = 10 * 1024 * 1024;
const by = (id) => document.getElementById(id);

export function startAsking() {
  const form = by("sentence");
  const text = by("text");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    fillGap(form, text);
  });
  for (const chip of form.querySelectorAll(".chip")) {
    chip.addEventListener("click", () => {
      text.value = chip.textContent;
      fillGap(form, text);
    });
  }
  startPicture();
}

/** How many times each box has been asked for: only the last question's answer is shown. */
const turns = new WeakMap();

/** Ask, and show the answer or what came instead. */
async function asking(form, box, facts, question, show) {
  const turn = (turns.get(box) ?? 0) + 1;
  turns.set(box, turn);
  const button = form.querySelector(".primary");
  box.dataset.busy = "";
  box.setAttribute("aria-busy", "true");
  if (button) button.disabled = true;
  try {
    const { body, trip } = await question();
    if (turns.get(box) !== turn) return;
    show(body);
    tell(facts, trip, body.batches?.[0]);
  } catch (error) {
    if (turns.get(box) !== turn) return;
    tell(facts);
    showTrouble(box, error instanceof Trouble ? error : new Trouble("Unknown", String(error)), () => asking(form, box, facts, question, show));
  } finally {
    if (turns.get(box) === turn) {
      delete box.dataset.busy;
      box.removeAttribute("aria-busy");
      if (button) button.disabled = false;
    }
  }
}

function tell(facts, trip, batch) {
  const set = (name, value) => { facts.querySelector(`[data-fact="${name}"]`).textContent = value; };
  set("trip", trip === undefined ? "—" : `${say(trip)} ms`);
  set("wait", batch?.wait === undefined || batch.wait === null ? "—" : `${say(batch.wait * 1000)} ms`);
  set("size", batch?.size ? String(batch.size) : "—");
  set("worker", batch?.worker ?? "—");
  facts.querySelector('[data-fact="worker"]').title = batch?.worker ?? "";
}

function fillGap(form, text) {
  const value = text.value.trim();
  const box = by("sentence-answer");
  const fine = value.includes("[MASK]");
  text.setAttribute("aria-invalid", String(!fine));
  if (!fine) {
    const words = value ? "The sentence has no gap" : "There is no sentence yet";
    tell(by("sentence-facts"));
    showTrouble(box, new Trouble("NoGap", `${words}: write [MASK] where the word is missing`));
    text.focus();
    return;
  }
  const question = () => ask("predict", {
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ inputs: [value], explain: true }),
  });
  asking(form, box, by("sentence-facts"), question, (body) => {
    const [before, ...after] = value.split("[MASK]");
    const word = make("mark", {}, String(body.outputs[0]));
    box.replaceChildren(make("p", { class: "said" }, before, word, after.join("[MASK]")));
  });
}

function startPicture() {
  const drop = by("drop");
  const file = by("file");
  file.addEventListener("change", () => { if (file.files[0]) showColours(file.files[0]); });
  for (const kind of ["dragenter", "dragover"]) {
    drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
  }
  for (const kind of ["dragleave", "drop"]) {
    drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.remove("over"); });
  }
  // What misses the zone must not take the page's place.
  for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());
  drop.addEventListener("drop", (event) => {
    if (event.dataTransfer.files[0]) showColours(event.dataTransfer.files[0]);
  });
}

function showColours(file) {
  const box = by("picture-answer");
  const preview = by("preview");
  by("picture-name").textContent = `${file.name}, ${say(file.size / 1024)} kB`;
  if (preview.src) URL.revokeObjectURL(preview.src);
  preview.hidden = !file.type.startsWith("image/");
  if (!preview.hidden) preview.src = URL.createObjectURL(file);
  if (file.size > MOST_BYTES) {
    showTrouble(box, new Trouble("TooLarge", "a picture may have 10 MB at most: send a smaller one", { status: 413 }));
    return;
  }
  const question = () => {
    const body = new FormData();
    body.append("picture", file);
    return ask("pictures?explain=true", { body });
  };
  asking(by("picture"), box, by("picture-facts"), question, (body) => {
    const colours = body.outputs[0];
    const bar = make("div", { class: "shares", "aria-hidden": "true" }, ...colours.map(part));
    box.replaceChildren(bar, make("ul", { class: "swatches" }, ...colours.map(named)));
  });
}

function part({ name, share }) {
  const colour = patch("colour", name);
  colour.style.flexGrow = share;
  return colour;
}

function named({ name, share }) {
  return make("li", {}, patch("dot", name), make("b", {}, `${say(Math.round(share * 100))} %`), name);
}

function patch(kind, name) {
  const colour = make("span", { class: kind, "aria-hidden": "true" });
  colour.style.backgroundColor = name.replaceAll(" ", ""); // each is one of CSS's own names
  return colour;
}
