// The broker's page: one view at a time, chosen by the address. Figures and plots come from /v1/live, the rest by requests. Data from clients is inserted as text, never
// as HTML. The token stays in this tab (sessionStorage) and is sent in a header, never in a URL.
"use strict";

const $ = (id) => document.getElementById(id);
const SECONDS = 300, LATEST = 20, TRIED = 50, SETTLED = 100, PAYLOAD_SHOWN = 200;

function make(tag, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

// ---- JSON without loss: JavaScript's numbers are doubles, so 9007199254740993 would become ...992. A number that a double
// cannot represent is kept as text behind a random mark, and `print` writes it unchanged.

const MARK = `\u0001${Math.random().toString(36)}${Math.random().toString(36)}:`;
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g;
const MARKED = new RegExp(`"${JSON.stringify(MARK).slice(1, -1).replace(/[\\.]/g, "\\$&")}([^"]*)"`, "g");

function exact(text) {
  const value = Number(text);
  return Number.isFinite(value) && (/[.eE]/.test(text) || Number.isSafeInteger(value));
}

function parse(text) {
  JSON.parse(text); // for its errors, which refer to the original text
  return JSON.parse(text.replace(TOKEN, (token) => (token[0] === '"' || exact(token) ? token : JSON.stringify(MARK + token))));
}

const print = (value, indent) => JSON.stringify(value, null, indent).replace(MARKED, "$1");

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 1 }).format; // for amounts: an identifier, such as the number of an event, stays as it is
const counted = (count, one, many) => `${grouped(count)} ${count === 1 ? one : many}`;

// ---- requests

function headers(more) {
  const token = sessionStorage.getItem("hitbox-token");
  return token ? { ...more, authorization: `Bearer ${token}` } : { ...more };
}

async function ask(method, path, body) {
  const options = { method, headers: headers(body === undefined ? {} : { "content-type": "application/json" }) };
  if (body !== undefined) options.body = typeof body === "string" ? body : print(body);
  const response = await fetch(path, options).catch(() => { throw new Error("there is no connection to the broker"); });
  if (response.status === 401) { setCaller(NOBODY); message("state", "a token is required"); }
  const found = response.status === 204 ? null : parse(await response.text());
  if (!response.ok) throw Object.assign(new Error(found.error.message), found.error, { status: response.status });
  return found;
}

function signIn(token) {
  sessionStorage.setItem("hitbox-token", token);
  location.reload();
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  signIn($("token").value);
});

// ---- who asks, and what is shown to it: the needs are those of the routes (access/rights.py). The broker decides, the page only hides what it would refuse.

const NEEDS = { publish: ["publish"], receive: ["subscribe"], use: ["subscribe", "manage"], read: ["subscribe", "observe", "manage"], observe: ["observe", "manage"], manage: ["manage"] };
const NOBODY = { name: "", token: null, roles: [], names: "*", see: "" };
let caller = NOBODY;

// `need` is a key of NEEDS; with " all" it also needs a caller that is not limited to some names or events.
function may(need) {
  const [role, all] = need.split(" ");
  return NEEDS[role].some((one) => caller.roles.includes(one)) && !(all && (caller.names !== "*" || caller.see));
}

function setCaller(found) {
  caller = found;
  const open = !caller.token && caller.roles.length > 0;
  for (const one of document.querySelectorAll("[data-needs]")) one.hidden = !may(one.dataset.needs);
  $("token-form").hidden = caller !== NOBODY;
  $("caller").hidden = !caller.token;
  message("caller-name", caller.name);
  message("whoami", open ? "There is no principal yet: everyone on this machine may do everything." : !caller.token ? "Sign in first."
    : `You are ${caller.name}, with the token ${caller.token}.${may("manage all") ? "" : " To see the others takes the role manage, for all names and events."}`);
  $("first-token").hidden = !open;
  if (open) $("add-principal").hidden = true; // the first one comes with its token
}

$("sign-out").addEventListener("click", () => {
  sessionStorage.removeItem("hitbox-token");
  location.reload();
});

// An error in a predicate: the message, and the text with the position marked.
function showError(place, error) {
  place.replaceChildren();
  if (!error) return;
  if (error.position === undefined || error.position === null || !error.text) { place.textContent = error.message; return; }
  const at = error.position, text = error.text;
  place.append(`${error.problem}\n`, text.slice(0, at), make("mark", text.slice(at, at + 1) || " ", "at"), text.slice(at + 1));
  place.querySelector("mark").setAttribute("aria-label", `here: ${text.slice(at, at + 12)}`);
}

// ---- views and the dialog

const VIEWS = [...document.querySelectorAll(".view")];
const LISTS = { subscriptions: () => listSubscriptions(), subscribers: () => listSubscribers(), "dead-letters": () => listDead(), schema: () => listSchema(), access: () => listAccess() };
let view = "overview";

function showView() {
  const wanted = location.hash.slice(1);
  if (VIEWS.some((one) => one.dataset.view === wanted)) view = wanted;
  else if (!wanted) view = "overview"; // any other target, such as #main, stays in its view
  for (const one of VIEWS) one.hidden = one.dataset.view !== view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  if (view === "overview") drawPlots();
  LISTS[view]?.().catch(() => {});
}

const message = (place, text) => { if ($(place).textContent !== String(text)) $(place).textContent = text; }; // unchanged: nothing to read out

// Ask before something is done; `run` gets the values of the fields, and returns what gets the focus if the button is gone,
// or what follows when the dialog is closed. Its error is shown in the dialog, which stays open.
function confirmThen(title, text, yes, run, fields = [], need = "") {
  $("dialog-yes").hidden = $("dialog-fields").disabled = Boolean(need) && !may(need);
  message("dialog-title", title);
  message("dialog-text", text);
  message("dialog-yes", yes);
  message("dialog-error", "");
  $("dialog-fields").replaceChildren(...fields.flatMap(({ name, label, type, value, choices }) => {
    const box = make(choices ? "select" : "input");
    box.id = `field-${name}`;
    if (choices) box.append(...choices.map((one) => make("option", one))); else box.type = type;
    if (type === "number") { box.step = "any"; box.required = true; }
    if (type === "checkbox") box.checked = value; else box.value = value;
    const words = make("label", label);
    words.htmlFor = box.id;
    return [words, box];
  }));
  $("dialog-form").onsubmit = async (event) => {
    event.preventDefault();
    const value = (box) => (box.type === "checkbox" ? box.checked : box.type === "number" ? Number(box.value) : box.value);
    try {
      const next = await run(Object.fromEntries(fields.map(({ name }) => [name, value($(`field-${name}`))])));
      $("dialog").close();
      if (typeof next === "function") next(); else if (next) $(next).focus();
    } catch (error) { message("dialog-error", error.message); }
  };
  $("dialog").showModal();
}
$("dialog-no").addEventListener("click", () => $("dialog").close());

// A secret that the broker shows once. `then` runs when it was closed, which takes a press of the button.
function showSecret(title, text, secret, close = "Close", then = () => {}) {
  message("secret-title", title);
  message("secret-text", text);
  message("secret-value", secret);
  message("secret-close", close);
  message("secret-done", "");
  $("secret-close").onclick = () => { $("secret").close(); message("secret-value", ""); then(); };
  $("secret").showModal();
}
$("secret").addEventListener("cancel", (event) => event.preventDefault());
$("secret-copy").addEventListener("click", async () => {
  getSelection().selectAllChildren($("secret-value"));
  const copied = await navigator.clipboard?.writeText($("secret-value").textContent).then(() => true, () => false); // browsers have it with TLS or on loopback only
  message("secret-done", copied || document.execCommand("copy") ? "copied" : "it is selected: copy it with the keyboard");
});

// A button of a row; `run` gets the row's item as it is when the button is pressed.
function action(label, name, run, need = "use") {
  const button = make("button", label, "small");
  button.hidden = !may(need);
  button.type = "button";
  button.setAttribute("aria-label", `${label} ${name}`);
  button.addEventListener("click", () => run(button.closest("tr").item));
  return button;
}

// Lists that are asked for again and again: an error is shown where the list is, and goes with the next success.
async function listed(place, run) {
  try { await run(); message(place, ""); } catch (error) { message(place, error.message); throw error; }
}

// ---- the state of the broker: /readyz needs no token, and answers while the store is full

const TROUBLES = { full: "The store is full: what needs room is refused", failed: "The broker has failed: it accepts nothing until it is started again",
  closing: "The broker is shutting down: it accepts nothing", degraded: "Something needs attention" };
const HEALTH_SECONDS = 2;
let reached = Date.now();

// Only a change is written: a screen reader reads each one.
function showBanner(...lines) {
  const banner = $("banner");
  if (lines.join() !== [...banner.children].map((line) => line.textContent).join()) banner.replaceChildren(...lines.map((line) => make("p", line)));
}

async function checkHealth() {
  const lost = document.body.classList;
  try {
    const response = await fetch("/readyz", { signal: AbortSignal.timeout(HEALTH_SECONDS * 2000) });
    const { status, reason, checks } = await response.json();
    if (lost.contains("unreachable")) {
      LISTS[view]?.().catch(() => {});
      tail.stop?.abort(); // what it reads may never end
    }
    lost.remove("unreachable");
    reached = Date.now();
    const reasons = new Set([reason, ...Object.values(checks).map((check) => check.reason)].filter(Boolean));
    showBanner(...(status === "ok" ? [] : [TROUBLES[status] ?? status, ...reasons]));
  } catch {
    lost.add("unreachable");
    message("state", "no connection");
    showBanner(`No connection to the broker since ${clock(reached)}`, "What is shown here is from then. The page tries again by itself.");
  }
  setTimeout(checkHealth, HEALTH_SECONDS * 1000);
}

// ---- live figures

const span = (seconds) => (seconds < 120 ? `${Math.floor(seconds)} s` : seconds < 7200 ? `${Math.floor(seconds / 60)} min` : seconds < 172800 ? `${Math.floor(seconds / 3600)} h` : `${grouped(Math.floor(seconds / 86400))} days`);
const gigabytes = (bytes) => `${grouped(bytes / 1e9)} GB`;
const FIGURES = [ // name, label, and how it is written: without, as an amount
  ["subscriptions", "subscriptions"], ["suspended", "suspended"], ["subscribers", "subscribers"], ["connections", "connections"], ["published_per_second", "events/s"], ["delivered_per_second", "deliveries/s"],
  ["p50", "median ms"], ["p99", "p99 ms"], ["pending", "pending"], ["unmatched", "unmatched events"], ["refused", "refused events"],
  ["waiting_delayed", "delayed events"], ["dead_letters", "dead letters"], ["last", "last event", String], ["way", "way", String],
  ["disk_free", "free disk", gigabytes], ["uptime_seconds", "running for", span], ["version", "version", String],
];
const LINES = ["time", "published_per_second", "delivered_per_second", "p50", "p99", "pending", "store_bytes"];
const SCALE = { store_bytes: 1e-6 }; // megabytes
const lines = LINES.map(() => []);
let plots = [], deadLetters = 0; // of all subscribers

function color(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

const clock = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" }).format;

function plot(place, names) {
  const axis = { stroke: color("--soft"), grid: { stroke: color("--line") } };
  const series = names.map(([label, stroke], n) => ({ label, stroke, width: 2, dash: n ? [6, 4] : [] }));
  const times = { ...axis, size: 30, space: 64, values: (u, splits) => splits.map((time) => clock(new Date(time * 1000))) };
  const options = { width: place.clientWidth || 400, height: 180, axes: [times, { ...axis, size: 60 }], series: [{}, ...series],
    scales: { y: { range: (u, low, high) => [0, Math.max(high || 0, 1) * 1.1] } } };
  return new uPlot(options, [[], ...names.map(() => [])], place);
}

function drawPlots() {
  plots.forEach((p) => p.destroy());
  plots = [];
  if (view !== "overview") return; // what is hidden has no width
  plots = [
    plot($("rates"), [["events/s", color("--accent")], ["deliveries/s", color("--good")]]),
    plot($("latency"), [["median", color("--accent")], ["p99", color("--bad")]]),
    plot($("backlog"), [["pending", color("--accent")]]),
    plot($("store"), [["MB", color("--accent")]]),
  ];
  feedPlots();
}

function feedPlots() {
  [[1, 2], [3, 4], [5], [6]].forEach((chosen, n) => plots[n]?.setData([lines[0], ...chosen.map((one) => lines[one])]));
}

function addLine(line) {
  if (!line.time || line.time === lines[0].at(-1)) return;
  LINES.forEach((name, n) => {
    lines[n].push((line[name] ?? 0) * (SCALE[name] ?? 1));
    if (lines[n].length > SECONDS) lines[n].shift();
  });
}

function showFigures(stats) {
  const list = $("figures");
  if (!list.children.length) {
    for (const [name, label] of FIGURES) { const box = make("div"); box.append(make("dt", label), make("dd")); box.dataset.name = name; list.append(box); }
  }
  for (const box of list.children) {
    const value = stats[box.dataset.name], [, , write = grouped] = FIGURES.find(([name]) => name === box.dataset.name);
    box.lastChild.textContent = value === undefined ? "" : write(value);
  }
  $("problems").replaceChildren(...(stats.set_aside ?? []).map((text) => make("li", text)));
  deadLetters = stats.dead_letters;
  message("dead-badge", deadLetters ? grouped(deadLetters) : "");
  $("guide").hidden = stats.acked !== 0 || stats.last >= SETTLED; // who may not know of all subscribers is not told
  for (const [step, done] of [["subscribe", stats.subscriptions], ["publish", stats.last], ["receive", stats.acked]]) $(`guide-${step}`).classList.toggle("done", done > 0);
}

let tail = { where: "", held: false, kept: [], stop: null };

function showArrivals(events, total) {
  if (tail.held) { tail.kept = [...tail.kept, ...events].slice(-LATEST); return; }
  for (const one of [...tail.kept.splice(0), ...events]) {
    const row = make("li", `#${one.seq} ${print(one.event)} `);
    if (one.where) row.append(make("code", `where ${one.where}`), " ");
    if (one.payload) row.append(make("code", `payload ${one.payload}`), " ");
    row.append(make("span", counted(one.matches, "match", "matches"), one.matches ? "true" : "unknown"));
    $("arrivals").prepend(row);
  }
  while ($("arrivals").children.length > LATEST) $("arrivals").lastChild.remove();
  const shown = $("arrivals").children.length;
  const of = tail.where ? `${shown} that fit, of ` : shown < total ? `the latest ${shown} of ` : "";
  message("arrivals-count", `${of}${counted(total, "event", "events")} since the broker started`);
}

$("hold").addEventListener("click", () => {
  tail.held = !tail.held;
  $("hold").setAttribute("aria-pressed", String(tail.held));
  message("hold", tail.held ? "Go on" : "Hold");
});

$("tail-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const where = $("tail-where").value.trim();
  try {
    if (where) await ask("POST", "/v1/check", { where });
    showError($("tail-error"));
    tail.where = where;
    tail.stop?.abort(); // `watch` begins again, with the filter
  } catch (error) { showError($("tail-error"), error); }
});

async function watch() {
  let wait = 2000, refused;
  tail.stop = new AbortController();
  const { signal } = tail.stop;
  try {
    const response = await fetch(`/v1/live?where=${encodeURIComponent(tail.where)}`, { headers: headers(), signal });
    if (!response.ok) {
      if (response.status === 401) setCaller(NOBODY);
      refused = { 401: "a token is required", 403: "figures take the role observe" }[response.status];
      if (tail.where && response.status === 400) { message("tail-error", "the schema has changed: check the filter"); tail.where = ""; }
      throw new Error(response.statusText);
    }
    message("state", "live");
    $("arrivals").replaceChildren(); // the server sends the latest again
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const { stats, events, arrived } = parse(part.slice(6));
        addLine(stats);
        showFigures(stats);
        showArrivals(events, arrived);
      }
      feedPlots();
    }
  } catch { if (signal.aborted) wait = 0; /* else reported below */ }
  if (wait) message("state", refused ?? (document.body.classList.contains("unreachable") ? "no connection" : "connecting…"));
  setTimeout(watch, wait);
}

// ---- try an event

function checkJson(what, text) {
  try { JSON.parse(text); } catch (problem) { throw new Error(`${what} is not JSON: ${problem.message}`); }
}

// The event is sent as typed: numbers stay exact, and the broker reports its errors.
function request(more) {
  const text = $("event").value, where = $("event-where").value.trim();
  checkJson("The event", text);
  const rest = print({ ...(where ? { where } : {}), ...more }).slice(1, -1);
  return `{"event":${text}${rest && `,${rest}`}}`;
}

function matchRow(id, level, text) {
  const row = make("li");
  if (level !== null) row.append(make("span", level, "level"), " ");
  row.append(make("strong", id), " ", make("code", text), " ");
  const button = make("button", "Why?", "small");
  button.type = "button";
  button.setAttribute("aria-label", `Why ${id}?`);
  button.addEventListener("click", () => explain(id));
  row.append(button);
  return row;
}

async function tryEvent() {
  showError($("event-error"));
  $("why").replaceChildren();
  try {
    const found = await ask("POST", "/v1/try", request({ limit: TRIED, misses: 5 }));
    const shown = found.matches.length < found.count ? `; the first ${found.matches.length} are shown` : "";
    const expensive = found.too_expensive.length ? `; too expensive for this event: ${found.too_expensive.join(", ")}` : "";
    $("try-count").textContent = (found.count === 1 ? "1 subscription matches" : `${grouped(found.count)} subscriptions match, most urgent first${shown}`) + expensive;
    $("matches").replaceChildren(...found.matches.map((m) => matchRow(`${m.subscriber}/${m.name}`, m.priority, m.where)));
    $("misses").replaceChildren(...found.misses.map((m) => matchRow(m.id, null, (m.subscription || m).predicate)));
    $("misses-title").hidden = !found.misses.length;
  } catch (error) { showError($("event-error"), error); }
}

function tree(node) {
  const row = make("li");
  const mark = { true: "✓", false: "✗", unknown: "?" }[node.truth];
  row.append(make("span", `${mark} `, node.truth), make("code", node.text), make("span", ` ${node.truth}`, "hidden"));
  if (node.note) row.append(make("span", ` (${node.note})`, "unknown"));
  if (node.children) { const list = make("ul"); list.append(...node.children.map(tree)); row.append(list); }
  return row;
}

const CHANGES = 8;

async function explain(id) {
  try {
    const found = await ask("POST", "/v1/explain", request({ id }));
    const parts = [make("h3", `${id}: ${found.matched ? "match" : "no match"}`)];
    for (const side of found.subscription ? [found.subscription, found.event] : [found]) {
      const list = make("ul", undefined, "tree");
      list.append(tree(side.tree));
      parts.push(list);
      for (const c of side.changes.slice(0, CHANGES)) parts.push(make("p", `Nearest change: ${c.text.replace(" -> ", " → ")}`));
    }
    $("why").replaceChildren(...parts);
    $("why").focus();
  } catch (error) { showError($("event-error"), error); }
}

$("try-form").addEventListener("submit", (event) => { event.preventDefault(); tryEvent(); });
$("publish").addEventListener("click", async () => {
  showError($("event-error"));
  try {
    const found = await ask("POST", "/v1/events", request());
    $("try-count").textContent = `Published as event ${found.first}`;
  } catch (error) { showError($("event-error"), error); }
});

// ---- subscriptions

let checking = 0;
$("where").addEventListener("input", () => {
  const turn = ++checking;
  $("add-done").textContent = "";
  setTimeout(async () => {
    if (turn !== checking) return;
    let error;
    try { if ($("where").value.trim()) await ask("POST", "/v1/check", { where: $("where").value }); } catch (problem) { error = problem; }
    if (turn === checking) markWhere(error);
  }, 150);
});

function markWhere(error) {
  showError($("where-error"), error);
  $("where").setAttribute("aria-invalid", error ? "true" : "false");
}

const subscriptionPath = (owner, name) => `/v1/subscribers/${encodeURIComponent(owner)}/subscriptions/${encodeURIComponent(name)}`;

$("add-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [owner, name, about] = [$("owner").value, $("name").value, $("about").value.trim()];
  try {
    checkJson("About", about || "{}");
    const rest = print({ where: $("where").value, priority: Number($("priority").value) }).slice(1, -1);
    const found = await ask("PUT", subscriptionPath(owner, name), `{${rest},"about":${about || "{}"}}`); // as typed: its numbers stay exact
    markWhere();
    $("add-done").textContent = [`${owner}/${name} is saved`, ...found.warnings].join("; ");
    listSubscriptions().catch(() => {});
  } catch (error) { markWhere(error); }
});

const LISTED = 100;

// A name may be long: a table shows how it begins, and all of it in its title. A card shows all of it.
function clipped(text) {
  const part = make("span", text, "clip");
  part.title = text;
  return part;
}

// Show items as rows, each with the key and the cells that `describe` returns. What is the same stays in its place, so a refresh keeps the focus, the
// selection and the ticks.
function showRows(place, items, describe) {
  const body = $(place), focused = document.activeElement;
  const heads = [...body.parentElement.tHead.rows[0].cells].map((head) => head.textContent);
  const rows = items.map((item) => {
    const [key, ...values] = describe(item);
    const row = Object.assign(make("tr"), { item });
    row.dataset.key = key;
    row.append(...values.map((value, n) => { const cell = make("td"); cell.append(value); cell.dataset.label = heads[n]; return cell; }));
    return row;
  });
  const before = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const kept = new Set(rows.map((row) => row.dataset.key));
  for (const [key, row] of before) if (!kept.has(key)) row.remove();
  rows.forEach((fresh, n) => {
    const row = before.get(fresh.dataset.key) ?? fresh;
    if (row !== fresh) { row.item = fresh.item; update(row, fresh); }
    if (body.rows[n] !== row) body.insertBefore(row, body.rows[n] ?? null);
  });
  if (body.contains(focused)) focused.focus({ preventScroll: true }); // a row that was moved has lost it
}

// Make a node look like another one, and change no more than that takes.
function update(node, like) {
  if (node.isEqualNode(like)) return;
  if (node.nodeName !== like.nodeName || node.childNodes.length !== like.childNodes.length) { node.replaceWith(like); return; }
  if (node.nodeType === Node.TEXT_NODE) { node.data = like.data; return; }
  for (const { name } of [...node.attributes]) if (!like.hasAttribute(name)) node.removeAttribute(name);
  for (const { name, value } of like.attributes) node.setAttribute(name, value);
  const wanted = [...like.childNodes];
  [...node.childNodes].forEach((child, n) => update(child, wanted[n]));
}

// A list that is shown LISTED rows at a time. `search` is a field: what is asked for when it changes begins with the first row. `several`: the
// broker's count is of all, not of what is found.
class Pages {
  constructor(place, search, list, several = true) {
    Object.assign(this, { place, search: $(search), list, several, offset: 0, turn: 0 });
    const step = (label, rows) => {
      const button = make("button", label, "small");
      button.type = "button";
      button.addEventListener("click", () => { this.offset = Math.max(this.offset + rows, 0); this.ask(); });
      return button;
    };
    $(place).append(...(this.steps = [step("Previous", -LISTED), step("Next", LISTED)]));
    this.search.addEventListener("input", () => {
      const turn = ++this.turn;
      setTimeout(() => { if (turn === this.turn) { this.offset = 0; this.ask(); } }, 200);
    });
    this.search.form.addEventListener("submit", (event) => { event.preventDefault(); this.ask(); });
  }

  ask() { this.list().catch(() => {}); }

  query() { return `limit=${LISTED}&offset=${this.offset}&q=${encodeURIComponent(this.search.value)}`; }

  // What the page says of the rows that it got.
  shown(rows, count) {
    if (!rows && this.offset) { this.offset = Math.max(this.offset - LISTED, 0); this.ask(); } // the last page has gone
    const open = this.several && this.search.value, last = this.offset + rows;
    this.steps[0].disabled = !this.offset;
    this.steps[1].disabled = open ? rows < LISTED : last >= count;
    $(this.place).hidden = this.steps.every((one) => one.disabled);
    const part = $(this.place).hidden ? grouped(rows) : `${grouped(this.offset + 1)} to ${grouped(last)}`;
    return open ? `${part} found among ${grouped(count)}` : `${part} of ${grouped(count)} shown`;
  }
}

const shownAbout = ({ about }) => (about && Object.keys(about).length ? print(about) : "");

const listSubscriptions = () => listed("subs-error", async () => {
  const found = await ask("GET", `/v1/subscriptions?${subscriptionPages.query()}`);
  message("subs-count", subscriptionPages.shown(found.subscriptions.length, found.count));
  showRows("subs", found.subscriptions, (shown) => {
    const id = `${shown.subscriber}/${shown.name}`;
    const remove = action("Remove", id, (s) => confirmThen(`Remove ${id}?`, s.where, "Remove", async () => {
      await ask("DELETE", subscriptionPath(s.subscriber, s.name));
      message("subs-done", `${id} is removed`);
      await listSubscriptions();
      return "search";
    }));
    const edit = action("Edit", id, (s) => {
      for (const [place, value] of [["owner", s.subscriber], ["name", s.name], ["priority", s.priority], ["where", s.where], ["about", shownAbout(s)]]) $(place).value = value;
      markWhere();
      $("where").focus();
    });
    const actions = make("span", undefined, "actions");
    actions.append(edit, remove);
    const named = make("span");
    named.append(clipped(shown.name));
    if (shown.suspended) {
      named.append(" ", make("strong", `suspended: ${shown.suspended}`));
      actions.prepend(action("Resume", id, async (s) => {
        await ask("POST", `${subscriptionPath(s.subscriber, s.name)}/resume`);
        message("subs-done", `${id} is matched again`);
        await listSubscriptions();
      }));
    }
    return [id, clipped(shown.subscriber), named, String(shown.priority), make("code", shown.where), make("code", shownAbout(shown)), actions];
  });
});

$("look").addEventListener("click", async () => {
  try {
    const found = await ask("GET", "/v1/unseen");
    const events = `the latest ${counted(found.events, "event", "events")}`;
    $("unseen-count").textContent = found.attributes.length ? `They may be misspelt; not in ${events}:` : `None: all were in ${events}`;
    $("unseen").replaceChildren(...found.attributes.map((one) => {
      const row = make("li");
      const more = one.subscriptions > one.ids.length ? ", …" : "";
      row.append(make("code", one.attribute), ` in ${counted(one.subscriptions, "subscription", "subscriptions")}: ${one.ids.join(", ")}${more}`);
      return row;
    }));
  } catch (error) { $("unseen-count").textContent = error.message; }
});

const subscriptionPages = new Pages("subs-pages", "search", listSubscriptions);

// ---- subscribers and dead letters

const POLICIES = ["spool", "drop_oldest", "disconnect"];
const OPTIONS = [
  { name: "policy", label: "Policy above the limit", choices: POLICIES },
  { name: "limit", label: "Limit of pending deliveries", type: "number" },
  { name: "visibility_seconds", label: "Seconds until a delivery without acknowledgement is sent again", type: "number" },
  { name: "max_tries", label: "Most tries, then it is a dead letter", type: "number" },
  { name: "backoff_seconds", label: "Seconds before the second try", type: "number" },
  { name: "max_backoff_seconds", label: "Most seconds between tries", type: "number" },
  { name: "shared", label: "Several connections share its deliveries", type: "checkbox" },
  { name: "unmatched", label: "Also receives events that match nothing", type: "checkbox" },
  { name: "changes", label: "Is told whether a changed document enters, leaves or stays", type: "checkbox" },
  { name: "expires_seconds", label: "Seconds without use after which it is removed (0: never)", type: "number" },
];

const WEBHOOK = [
  { name: "url", label: "Address that deliveries are sent to; empty: no webhook", type: "url", value: "" },
  { name: "batch", label: "Most deliveries in one request", type: "number", value: 100 },
  { name: "max_requests", label: "Most requests at a time", type: "number", value: 1 },
  { name: "new_secret", label: "Make a new secret; the old one is valid for a day", type: "checkbox", value: false },
];

const webhookState = (webhook) => !webhook ? "It has none." : webhook.disabled ? `Disabled: ${webhook.disabled}. Saving enables it.` : webhook.problem ? `The latest request failed: ${webhook.problem}` : webhook.requests ? "The latest request succeeded." : "No request yet.";

const subscriberPath = (name) => `/v1/subscribers/${encodeURIComponent(name)}`;

function subscriberActions({ name, ephemeral, paused }) {
  const done = async (text) => { message("who-done", text); await listSubscribers(); };
  const both = make("span", undefined, "actions");
  if (ephemeral) return both; // it goes with its connection
  both.append(
    action("Settings", name, (s) => confirmThen(`Settings of ${s.name}`, "", "Save", async (values) => {
      await ask("PUT", subscriberPath(s.name), values);
      await done(`the settings of ${s.name} are saved`);
    }, OPTIONS.map((one) => ({ ...one, value: s.options[one.name] })), "use"), "read"),
    action("Webhook", name, (s) => confirmThen(`Webhook of ${s.name}`, webhookState(s.webhook), "Save", async ({ new_secret, ...values }) => {
      if (!values.url) {
        await ask("DELETE", `${subscriberPath(s.name)}/webhook`);
        return done(`${s.name} has no webhook`);
      }
      const found = await ask("PUT", `${subscriberPath(s.name)}/webhook`, { ...values, secret: new_secret ? "new" : "" });
      await done(`the webhook of ${s.name} is saved`);
      return found.secret && (() => showSecret(`The secret of the webhook of ${s.name}`, "Its requests are signed with it. It is shown only now.", found.secret));
    }, WEBHOOK.map((one) => ({ ...one, value: s.webhook?.[one.name] ?? one.value }))), "receive"),
    action(paused ? "Resume" : "Pause", name, (s) => confirmThen(`${s.paused ? "Resume" : "Pause"} ${s.name}?`, s.paused ? "Its deliveries are sent again." : "Nothing is sent to it. Its deliveries are kept, up to its limit.", s.paused ? "Resume" : "Pause", async () => {
      await ask("POST", `${subscriberPath(s.name)}/${s.paused ? "resume" : "pause"}`);
      await done(`${s.name} ${s.paused ? "gets its deliveries again" : "is paused"}`);
    })),
    action("Replay", name, (s) => confirmThen(`Replay for ${s.name}`, "Stored events, from this number on, are delivered again if its subscriptions want them.", "Replay", async ({ first }) => {
      const found = await ask("POST", `${subscriberPath(s.name)}/replay`, { first });
      await done(`${counted(found.count, "event", "events")} will be delivered again to ${s.name}`);
    }, [{ name: "first", label: "First event", type: "number", value: 1 }])),
    action("Delete", name, (s) => confirmThen(`Delete ${s.name}?`, `With it go ${counted(s.subscriptions, "subscription", "subscriptions")} and ${counted(s.pending, "pending delivery", "pending deliveries")}. This cannot be undone.`, "Delete", async () => {
      await ask("DELETE", subscriberPath(s.name));
      await done(`${s.name} is deleted`);
      return "who-search";
    })),
  );
  return both;
}

const SPOOLED = "Deliveries wait on disk: there is no connection, or more of them than memory is given for";

function subscriberState(s) {
  const words = [s.connections > 1 ? `${s.connections} connections` : s.connected ? "connected" : "not connected", s.ephemeral && "ephemeral",
    s.spooled && "spooled", s.options.unmatched && "receives unmatched", s.options.changes && "receives changes",
    s.unused_seconds && `unused for ${Math.floor(s.unused_seconds)} of ${s.options.expires_seconds} s`, s.paused && "paused", s.webhook && (s.webhook.problem ? "webhook fails" : "webhook")];
  const state = make("span", words.filter(Boolean).join(", "));
  if (s.spooled) state.title = SPOOLED;
  return state;
}

const listSubscribers = () => listed("who-error", async () => {
  const found = await ask("GET", `/v1/subscribers?${subscriberPages.query()}`);
  message("who-count", `${subscriberPages.shown(found.subscribers.length, found.count)}, most pending first`);
  showRows("who", found.subscribers, (s) => [s.name, clipped(s.name), subscriberState(s), ...[s.pending, s.held, s.dropped, s.expired, s.dead].map(grouped), subscriberActions(s)]);
});

const subscriberPages = new Pages("who-pages", "who-search", listSubscribers);

const chosenLetters = () => [...document.querySelectorAll("#dead input:checked")].map((box) => box.value);

// Whole payloads may be large: the page shows how they begin.
function shownPayload({ payload, content_type: kind }) {
  if (payload === undefined) return "";
  const text = print(payload);
  return ` payload ${kind ? `${kind} ` : ""}${text.length > PAYLOAD_SHOWN ? `${text.slice(0, PAYLOAD_SHOWN)}…` : text}`;
}

const listDead = () => listed("dead-error", async () => {
  const found = await ask("GET", `/v1/dead?${deadPages.query()}`);
  const others = may("observe all") || $("dead-search").value ? 0 : Math.max(deadLetters - found.count, 0);
  message("dead-count", `${deadPages.shown(found.letters.length, found.count)}, newest first` + (others ? `; ${counted(others, "more is", "more are")} hidden from you` : ""));
  $("revive").disabled = $("drop").disabled = $("dead-all").disabled = !found.letters.length;
  showRows("dead", found.letters, (letter) => {
    const box = make("input");
    box.type = "checkbox";
    box.value = letter.number;
    box.hidden = !may("use");
    box.setAttribute("aria-label", `event ${letter.seq} for ${letter.subscriber}`);
    const since = new Date(letter.time / 1000).toLocaleString();
    return [String(letter.number), box, clipped(letter.subscriber), make("code", `#${letter.seq} ${print(letter.event)}${shownPayload(letter)}`), letter.reason, String(letter.tries), since, action("Show", `event ${letter.seq} for ${letter.subscriber}`, showLetter, "read")];
  });
});

const deadPages = new Pages("dead-pages", "dead-search", listDead, false);

function showLetter(letter) {
  message("letter-title", `Event ${letter.seq} for ${letter.subscriber}`);
  message("letter-text", print(letter, 1));
  $("letter").showModal();
}
$("letter-close").addEventListener("click", () => { $("letter").close(); message("letter-text", ""); });

$("dead-all").addEventListener("change", () => {
  for (const box of document.querySelectorAll("#dead input")) box.checked = $("dead-all").checked;
});

$("revive").addEventListener("click", async () => {
  const numbers = chosenLetters().map(Number);
  if (!numbers.length) { message("dead-done", "Select at least one first"); return; }
  try {
    const found = await ask("POST", "/v1/dead/replay", { numbers });
    message("dead-done", `${grouped(found.count)} sent again`);
    $("dead-all").checked = false;
    await listDead();
  } catch (error) { message("dead-error", error.message); }
});

$("drop").addEventListener("click", () => {
  const numbers = chosenLetters().map(Number);
  if (!numbers.length) { message("dead-done", "Select at least one first"); return; }
  confirmThen(`Delete ${counted(numbers.length, "dead letter", "dead letters")}?`, "This cannot be undone.", "Delete", async () => {
    const found = await ask("POST", "/v1/dead/drop", { numbers });
    message("dead-done", `${grouped(found.count)} deleted`);
    $("dead-all").checked = false;
    await listDead();
  });
});

// ---- schema

const STATED = { criteria: "events", information: "subscriptions" };

const listSchema = () => listed("schema-error", async () => {
  const { attributes } = await ask("GET", "/v1/schema");
  message("schema-count", counted(attributes.length, "attribute", "attributes"));
  showRows("attributes", attributes, ({ name, type, role, ...more }) =>
    [name, make("code", name), type, STATED[role] ?? role, Object.keys(more).length ? make("code", print(more)) : ""]);
  if (document.activeElement !== $("schema-text")) $("schema-text").value = print(attributes, 1);
});

$("schema-form").addEventListener("submit", (event) => {
  event.preventDefault();
  message("schema-error", "");
  message("schema-done", "");
  const text = $("schema-text").value;
  try { JSON.parse(text); } catch (problem) { message("schema-error", `This is not JSON: ${problem.message}`); return; }
  confirmThen("Change the schema?", "The index is built again. Events that are published meanwhile wait.", "Change", async () => {
    await ask("PUT", "/v1/schema", `{"attributes":${text}}`);
    message("schema-done", "The schema is changed");
    await Promise.all([listSchema(), example()]);
  });
});

// ---- principals and tokens

const ROLES = ["publish", "subscribe", "observe", "manage"];
const principalPath = (name) => `/v1/principals/${encodeURIComponent(name)}`;

const QUOTAS = [
  { name: "max_subscriptions", label: "Most subscriptions (0: no limit)", type: "number" },
  { name: "publish_rate", label: "Most published events per second (0: the broker's setting)", type: "number" },
  { name: "max_day_bytes", label: "Most published bytes per day (0: no limit)", type: "number" },
];

const shownQuotas = (one) => [
  one.max_subscriptions && `${grouped(one.subscriptions)} of ${counted(one.max_subscriptions, "subscription", "subscriptions")}`,
  one.publish_rate && `${counted(one.publish_rate, "event", "events")} per second`,
  one.max_day_bytes && `${grouped(one.day_bytes)} of ${counted(one.max_day_bytes, "byte", "bytes")} today`,
].filter(Boolean).join(", ") || "none";

function principalFields({ name = "", roles = [], names = "*", publish = "", see = "", ...quotas } = {}) {
  return [
    ...(name ? [] : [{ name: "name", label: "Name", type: "text", value: "" }]),
    ...ROLES.map((role) => ({ name: role, label: role, type: "checkbox", value: roles.includes(role) })),
    { name: "names", label: "Subscribers that it may use, such as team-a.*", type: "text", value: names },
    { name: "may_publish", label: "Predicate: what it may publish (empty: everything)", type: "text", value: publish },
    { name: "may_see", label: "Predicate: what it may see (empty: everything)", type: "text", value: see },
    ...QUOTAS.map((one) => ({ ...one, value: quotas[one.name] || 0 })),
  ];
}

async function putPrincipal(name, values) {
  const roles = ROLES.filter((role) => values[role]);
  await ask("PUT", principalPath(name), { roles, names: values.names, publish: values.may_publish, see: values.may_see, ...Object.fromEntries(QUOTAS.map((one) => [one.name, values[one.name]])) });
  message("principals-done", `${name} is saved`);
  await listAccess();
}

$("add-principal").addEventListener("click", () => confirmThen("Add a principal", "", "Add", (values) => putPrincipal(values.name, values), principalFields()));

const createToken = async (body) => (await ask("POST", "/v1/tokens", body)).token;
const tokenShown = (name, token, ...close) => () => showSecret(`The token of ${name}`, "It is shown only now.", token, ...close);

$("first-token").addEventListener("click", () => confirmThen("Create the first token",
  "It makes a principal with all rights. From then on every request needs a token, and connections without one are closed; this page signs in with this one.", "Create", async ({ name }) => {
    const token = await createToken({ principal: name });
    return tokenShown(name, token, "Sign in with it", () => signIn(token));
  }, [{ name: "name", label: "Name of the principal", type: "text", value: "ops" }]));

function principalActions({ name }) {
  const both = make("span", undefined, "actions");
  both.append(
    action("Change", name, (one) => confirmThen(`Rights of ${one.name}`, "They hold at once, also for what already waits.", "Save", (values) => putPrincipal(one.name, values), principalFields(one))),
    action("New token", name, (one) => confirmThen(`A token of ${one.name}`, "It is shown once.", "Create", async ({ days, note }) => {
      const expires = days > 0 ? Date.now() / 1000 + days * 86400 : null;
      const token = await createToken({ principal: one.name, expires, note });
      await listAccess();
      return tokenShown(one.name, token);
    }, [{ name: "days", label: "Days until it expires (0: never)", type: "number", value: 30 }, { name: "note", label: "Note", type: "text", value: "" }])),
    action("Delete", name, (one) => confirmThen(`Delete ${one.name}?`, `With it go ${counted(one.tokens, "token", "tokens")}.`, "Delete", async () => {
      await ask("DELETE", principalPath(one.name));
      message("principals-done", `${one.name} is deleted`);
      await listAccess();
      return "add-principal";
    })),
  );
  return both;
}

const listAccess = () => listed("principals-error", async () => {
  setCaller(await ask("GET", "/v1/whoami"));
  if (!may("manage all")) return;
  const [{ principals }, { tokens }] = await Promise.all([ask("GET", "/v1/principals"), ask("GET", "/v1/tokens")]);
  showRows("principals", principals, (one) =>
    [one.name, clipped(one.name), one.roles.join(", "), make("code", one.names), make("code", one.publish || "everything"), make("code", one.see || "everything"), shownQuotas(one), principalActions(one)]);
  showRows("tokens", tokens, (one) => [one.id, make("code", one.id), clipped(one.principal), one.allowed.join(", ") || "none",
    one.expires ? new Date(one.expires * 1000).toLocaleString() : "never", one.note, action("Revoke", one.id, () => confirmThen(`Revoke ${one.id}?`, "Its connections are closed at once.", "Revoke", async () => {
      await ask("DELETE", `/v1/tokens/${encodeURIComponent(one.id)}`);
      await listAccess();
      return "add-principal";
    }))]);
});

// ---- start

const SAMPLES = { int: 3, float: 12.5, string: "Paris", bool: true, timestamp: "2026-01-31T12:00:00Z" };
const CONDITIONS = { int: "> 2", float: "< 20", string: "= 'Paris'", bool: "= TRUE", timestamp: "> '2026-01-01T00:00:00Z'" };

// A text as one word of a command line: the names of attributes may have any character.
const quoted = (text) => `'${text.replace(/'/g, "'\\''")}'`;

// An event, and the first steps, in words of the schema.
async function example() {
  const { attributes } = await ask("GET", "/v1/schema");
  const asked = attributes.filter((a) => a.role === "criteria" && a.type.replace("[]", "") in SAMPLES).slice(0, 6);
  const sample = (type) => (type.endsWith("[]") ? [SAMPLES[type.slice(0, -2)]] : SAMPLES[type]);
  const event = Object.fromEntries(asked.map((a) => [a.name, sample(a.type)]));
  $("event").value = print(event, 1);
  document.body.classList.toggle("one-sided", attributes.every((a) => a.role === "criteria")); // subscriptions state nothing about themselves
  const first = asked.find((a) => a.type in CONDITIONS);
  const where = first ? `${/^[a-z_][\w.]*$/i.test(first.name) ? first.name : `"${first.name.replace(/"/g, '""')}"`} ${CONDITIONS[first.type]}` : "TRUE";
  message("guide-where", where);
  message("guide-command", `hitbox publish ${quoted(print(event))} --url ${location.origin}`);
  message("guide-client", `hitbox subscribe ${quoted(where)} --name me --url ${location.origin}`);
}

async function begin() {
  addEventListener("hashchange", showView);
  addEventListener("resize", drawPlots);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawPlots);
  try {
    setCaller(await ask("GET", "/v1/whoami"));
    await example();
    const { history } = await ask("GET", "/v1/stats");
    history.forEach(addLine);
  } catch { /* the state line says so */ }
  showView();
  checkHealth();
  setInterval(() => { if (!document.hidden && !document.querySelector("dialog[open]") && ["subscribers", "dead-letters"].includes(view)) LISTS[view]().catch(() => {}); }, 3000);
  watch();
}
begin();
