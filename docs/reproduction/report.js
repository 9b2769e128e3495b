// Filters and the engine's curve. Without scripts the page shows every claim, and the curves of the papers' contestants.
"use strict";
(() => {
  const form = document.getElementById("filters");
  const claims = [...document.querySelectorAll("li[data-verdict]")];
  const changes = [...document.querySelectorAll("tr[data-paper]")];
  const shells = [...document.querySelectorAll(".card, .group, .experiment, .changes")].reverse(); // the inner ones first
  const filled = new Set(shells.filter((shell) => shell.querySelector("li[data-verdict], tr[data-paper]")));

  function apply() {
    const verdicts = new Set([...form.querySelectorAll("[name=verdict]:checked")].map((box) => box.value));
    const kind = form.elements.kind.value;
    const paper = form.elements.paper ? form.elements.paper.value : "";
    const trivial = form.elements.trivial.checked;
    for (const claim of claims) {
      const own = claim.dataset;
      claim.hidden = !(verdicts.has(own.verdict) && (!kind || own.kind === kind) && (!paper || own.paper === paper)
        && (trivial || !("trivial" in own)));
    }
    for (const change of changes) change.hidden = paper !== "" && change.dataset.paper !== paper;
    const all = claims.every((claim) => !claim.hidden);
    for (const shell of shells) {
      if (!filled.has(shell)) continue;
      shell.hidden = !shell.querySelector("li[data-verdict]:not([hidden]), tr[data-paper]:not([hidden])");
      if (shell.matches(".group")) shell.open = !all && !shell.hidden;
    }
    const shown = claims.filter((claim) => !claim.hidden).length;
    document.getElementById("shown").textContent = `${shown} of ${claims.length} claims shown`;
  }

  function showEngine() {
    document.body.classList.toggle("engine-shown", form.elements.engine.checked);
  }

  // a link may ask for one verdict, kind or paper: rein.html?verdict=fails
  const asked = new URLSearchParams(location.search);
  if (asked.has("verdict")) {
    for (const box of form.querySelectorAll("[name=verdict]")) box.checked = asked.getAll("verdict").includes(box.value);
  }
  for (const name of ["kind", "paper"]) {
    if (asked.has(name) && form.elements[name]) form.elements[name].value = asked.get(name);
  }
  if (asked.has("engine")) form.elements.engine.checked = true;
  form.addEventListener("input", (event) => (event.target.name === "engine" ? showEngine() : apply()));
  form.addEventListener("reset", () => setTimeout(() => { apply(); showEngine(); }));
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
  form.hidden = false;
  apply();
  showEngine();
  if (location.hash.length > 1) document.getElementById(location.hash.slice(1))?.scrollIntoView();
})();
