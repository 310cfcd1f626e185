// Runs before the first paint, so that nobody sees the other theme flash by.
(function () {
  "use strict";
  var kept = null;
  try { kept = localStorage.getItem("theme"); } catch { /* no storage: the system decides */ }
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
})();
