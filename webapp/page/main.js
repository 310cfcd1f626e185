// The page: what is asked, what is sent, what is watched.

import { startAsking } from "./ask.js";
import { startBurst } from "./measure.js";
import { startWatching } from "./watch.js";

const root = document.documentElement;
const toggle = document.getElementById("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
}

function showTheme() {
  toggle.setAttribute("aria-pressed", String(isDark()));
}

toggle.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* for this visit, then */ }
  showTheme();
});
dark.addEventListener("change", showTheme);
showTheme();

const watching = startWatching();
startAsking();
startBurst(watching);
