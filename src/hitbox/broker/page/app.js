// The broker's page: figures and plots from /v1/live, the rest by requests. Data from clients is inserted as text, never
// as HTML. The token stays in this tab (sessionStorage) and is sent in a header, never in a URL.
"use strict";

const $ = (id) => document.getElementById(id);
const SECONDS = 300, LATEST = 20, TRIED = 50;

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

const counted = (count, one, many) => `${count} ${count === 1 ? one : many}`;

// ---- requests

function headers(more) {
  const token = sessionStorage.getItem("hitbox-token");
  return token ? { ...more, authorization: `Bearer ${token}` } : { ...more };
}

async function ask(method, path, body) {
  const options = { method, headers: headers(body === undefined ? {} : { "content-type": "application/json" }) };
  if (body !== undefined) options.body = typeof body === "string" ? body : print(body);
  const response = await fetch(path, options);
  if (response.status === 401) { $("token-form").hidden = false; $("state").textContent = "a token is required"; }
  const found = response.status === 204 ? null : parse(await response.text());
  if (!response.ok) throw Object.assign(new Error(found.error.message), found.error, { status: response.status });
  return found;
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("hitbox-token", $("token").value);
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

// ---- live figures

const FIGURES = [
  ["subscriptions", "subscriptions"], ["connections", "connections"], ["published", "events/s"], ["delivered", "deliveries/s"],
  ["p50", "median ms"], ["p99", "p99 ms"], ["pending", "pending"], ["unmatched", "unmatched events"], ["refused", "refused events"],
  ["dead_letters", "dead letters"], ["last", "last event"], ["way", "way"],
];
const lines = [[], [], [], [], []]; // time, published, delivered, p50, p99
let plots = [];

function color(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function plot(place, names) {
  const axis = { stroke: color("--soft"), grid: { stroke: color("--line") } };
  const series = names.map(([label, stroke], n) => ({ label, stroke, width: 2, dash: n ? [6, 4] : [] }));
  const options = { width: place.clientWidth || 400, height: 180, axes: [axis, { ...axis, size: 60 }], series: [{}, ...series],
    scales: { y: { range: (u, low, high) => [0, Math.max(high || 0, 1) * 1.1] } } };
  return new uPlot(options, [[], [], []], place);
}

function drawPlots() {
  plots.forEach((p) => p.destroy());
  plots = [
    plot($("rates"), [["events/s", color("--accent")], ["deliveries/s", color("--good")]]),
    plot($("latency"), [["median", color("--accent")], ["p99", color("--bad")]]),
  ];
  feedPlots();
}

function feedPlots() {
  plots[0].setData([lines[0], lines[1], lines[2]]);
  plots[1].setData([lines[0], lines[3], lines[4]]);
}

function addLine(line) {
  if (!line.time || line.time === lines[0].at(-1)) return;
  ["time", "published", "delivered", "p50", "p99"].forEach((name, n) => {
    lines[n].push(line[name]);
    if (lines[n].length > SECONDS) lines[n].shift();
  });
}

function showFigures(stats) {
  const list = $("figures");
  if (!list.children.length) {
    for (const [name, label] of FIGURES) { const box = make("div"); box.append(make("dt", label), make("dd")); box.dataset.name = name; list.append(box); }
  }
  for (const box of list.children) {
    const value = stats[box.dataset.name];
    box.lastChild.textContent = typeof value === "number" && !Number.isInteger(value) ? value.toFixed(1) : value ?? "";
  }
}

function showArrivals(events, total) {
  for (const one of events) {
    const row = make("li", `#${one.seq} ${print(one.event)} `);
    if (one.where) row.append(make("code", `where ${one.where}`), " ");
    row.append(make("span", counted(one.matches, "match", "matches"), one.matches ? "true" : "unknown"));
    $("arrivals").prepend(row);
  }
  while ($("arrivals").children.length > LATEST) $("arrivals").lastChild.remove();
  const shown = $("arrivals").children.length;
  $("arrivals-count").textContent = `${shown < total ? `the latest ${shown} of ` : ""}${counted(total, "event", "events")} since the broker started`;
}

async function watch() {
  try {
    const response = await fetch("/v1/live", { headers: headers() });
    if (response.status === 401 || response.status === 403) $("token-form").hidden = false;
    if (response.status === 403) $("state").textContent = "this token lacks the role observe";
    if (!response.ok) throw new Error(response.statusText);
    $("state").textContent = "live";
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
  } catch { /* reported below */ }
  if ($("token-form").hidden) $("state").textContent = "no connection, trying again…";
  setTimeout(watch, 2000);
}

// ---- try an event

// The event is sent as typed: numbers stay exact, and the broker reports its errors.
function request(more) {
  const text = $("event").value, where = $("event-where").value.trim();
  try { JSON.parse(text); } catch (problem) { throw new Error(`The event is not JSON: ${problem.message}`); }
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
    $("try-count").textContent = found.count === 1 ? "1 subscription matches" : `${found.count} subscriptions match, most urgent first${shown}`;
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
  const [owner, name] = [$("owner").value, $("name").value];
  try {
    const found = await ask("PUT", subscriptionPath(owner, name), { where: $("where").value, priority: Number($("priority").value) });
    markWhere();
    $("add-done").textContent = [`${owner}/${name} is saved`, ...found.warnings].join("; ");
    listSubscriptions();
  } catch (error) { markWhere(error); }
});

function cells(...values) {
  const row = make("tr");
  row.append(...values.map((value) => { const cell = make("td"); cell.append(value); return cell; }));
  return row;
}

const LISTED = 100;
const shownOf = (shown, count, search) => (search ? `${shown === LISTED ? `the first ${shown}` : shown} found among ${count}` : `${shown} of ${count} shown`);

async function listSubscriptions() {
  const found = await ask("GET", `/v1/subscriptions?limit=${LISTED}&q=${encodeURIComponent($("search").value)}`);
  $("subs-count").textContent = shownOf(found.subscriptions.length, found.count, $("search").value);
  $("subs").replaceChildren(...found.subscriptions.map((s) => {
    const remove = make("button", "Remove", "small");
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove ${s.subscriber}/${s.name}`);
    remove.addEventListener("click", async () => {
      try {
        await ask("DELETE", subscriptionPath(s.subscriber, s.name));
        $("subs-done").textContent = `${s.subscriber}/${s.name} is removed`;
      } catch (error) { $("subs-done").textContent = error.message; }
      await listSubscriptions();
      $("search").focus(); // the button is gone
    });
    return cells(s.subscriber, s.name, String(s.priority), make("code", s.where), remove);
  }));
}

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

let searching = 0;
$("search").addEventListener("input", () => { const turn = ++searching; setTimeout(() => turn === searching && listSubscriptions(), 200); });
$("search-form").addEventListener("submit", (event) => { event.preventDefault(); listSubscriptions(); });

// ---- subscribers and dead letters

async function listSubscribers() {
  const found = await ask("GET", "/v1/subscribers?limit=100");
  $("who-count").textContent = `${found.subscribers.length} of ${found.count} shown, most pending first`;
  $("who").replaceChildren(...found.subscribers.map((s) => cells(s.name,
    (s.connected ? "connected" : "not connected") + (s.ephemeral ? ", ephemeral" : "") + (s.spooled ? ", spooled" : "") + (s.options.unmatched ? ", receives unmatched" : ""),
    String(s.pending), String(s.held), s.options.policy, String(s.options.limit), String(s.dropped), String(s.dead))));
}

async function listDead() {
  const found = await ask("GET", "/v1/dead?limit=100");
  const chosen = new Set([...document.querySelectorAll("#dead input:checked")].map((box) => box.value));
  $("dead-count").textContent = `${found.letters.length} of ${found.count} shown`;
  $("revive").disabled = !found.letters.length;
  $("dead").replaceChildren(...found.letters.map((letter) => {
    const box = make("input");
    box.type = "checkbox";
    box.value = letter.number;
    box.checked = chosen.has(String(letter.number));
    box.setAttribute("aria-label", `event ${letter.seq} for ${letter.subscriber}`);
    return cells(box, letter.subscriber, make("code", `#${letter.seq} ${print(letter.event)}`), letter.reason, String(letter.tries));
  }));
}

$("revive").addEventListener("click", async () => {
  const numbers = [...document.querySelectorAll("#dead input:checked")].map((box) => Number(box.value));
  if (!numbers.length) { $("dead-done").textContent = "Select at least one first"; return; }
  const found = await ask("POST", "/v1/dead/replay", { numbers });
  $("dead-done").textContent = `${found.count} sent again`;
  listDead();
});

// ---- start

async function example() {
  const samples = { int: 3, float: 12.5, string: "Paris", bool: true, timestamp: "2026-01-31T12:00:00Z" };
  const { attributes } = await ask("GET", "/v1/schema");
  const event = Object.fromEntries(attributes.filter((a) => a.role === "criteria").slice(0, 6).map((a) => [a.name, samples[a.type]]));
  $("event").value = print(event, 1);
  $("event-where").disabled = attributes.every((a) => a.role === "criteria");
}

async function begin() {
  drawPlots();
  addEventListener("resize", drawPlots);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawPlots);
  try {
    const { history } = await ask("GET", "/v1/stats");
    history.forEach(addLine);
    await Promise.all([example(), listSubscriptions(), listSubscribers(), listDead()]);
  } catch { /* the state line says so */ }
  setInterval(() => { if (!document.hidden) { listSubscribers().catch(() => {}); listDead().catch(() => {}); } }, 3000);
  watch();
}
begin();
