// The page of the admin listener. The token is kept in a variable of this module only, and every text from the server
// is inserted as text, never as HTML.
import { above, drawRates, drawTime, edgeOf, figure, rateOf, scaleOf, spark } from "/charts.js";

const SECONDS = 120; // of the chart of requests
const UPDATES = 60; // of the chart of a client
const LONGEST_NAME = 80;
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

let token = "";
let stream = null; // aborts the events of the rule shown
let rules = [];
let rates = null;
let chosen = null; // the edge at which the line stands
let last = null; // the event before
const history = []; // {allowed, denied} a second
const usages = new Map(); // by fingerprint, the usage at the latest events

const $ = (id) => document.getElementById(id);

// Returns a name without characters that are invisible or change the direction of writing.
function shown(text) {
  const harmless = text.replace(INVISIBLE, (c) => "\\u{" + c.codePointAt(0).toString(16) + "}");
  return harmless.length > LONGEST_NAME ? harmless.slice(0, LONGEST_NAME) + "…" : harmless;
}

// Returns a string of TOML, in which invisible characters are escaped.
function quoted(text) {
  const escaped = text.replace(/["\\]/g, "\\$&");
  return `"${escaped.replace(INVISIBLE, (c) => "\\U" + c.codePointAt(0).toString(16).padStart(8, "0"))}"`;
}

function duration(seconds) {
  if (seconds === null) return "never";
  if (seconds <= 0) return "";
  if (seconds < 100) return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
  return seconds < 6000 ? (seconds / 60).toFixed(0) + " min" : (seconds / 3600).toFixed(1) + " h";
}

function status(text, trouble) {
  $("status").textContent = shown(text);
  $("status").className = trouble ? "trouble" : "";
}

function ask(path, options = {}) {
  const headers = { ...options.headers, ...(token && { Authorization: "Bearer " + token }) };
  return fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
}

// Asks for a token if the answer demands one; returns true if it did.
function locked(answer) {
  if (answer.status !== 401 && answer.status !== 403) return false;
  lock();
  return true;
}

function lock() {
  $("login").hidden = false;
  $("main").hidden = true;
  status("locked", true);
  if (token) $("refused").textContent = "This token is not accepted.";
  token = "";
  $("token").focus();
}

async function begin() {
  try {
    const answer = await ask("/v1/rules");
    if (locked(answer)) return;
    rules = (await answer.json()).rules;
  } catch (error) {
    status("no connection: " + error.message, true);
    setTimeout(begin, 2000);
    return;
  }
  $("rule").replaceChildren(...rules.map((rule) => new Option(shown(rule.name), rule.name)));
  if (rules.length) watch(rules[0].name);
  else status("no rules", true);
}

const ruleShown = () => rules.find((rule) => rule.name === $("rule").value);

// Follows the events of a rule until another one is watched.
async function watch(name) {
  if (stream) stream.abort();
  const { signal } = (stream = new AbortController());
  [last, rates, chosen] = [null, null, null];
  history.length = 0;
  usages.clear();
  const { limit, unit } = ruleShown();
  $("current").textContent = unit ? `${limit} in ${unit}` : limit;
  while (!signal.aborted) {
    try {
      const answer = await ask("/v1/live?rule=" + encodeURIComponent(name), { signal });
      if (locked(answer)) return;
      if (!answer.ok) throw new Error((await answer.json()).detail);
      $("login").hidden = true;
      $("main").hidden = false;
      await read(answer.body.getReader(), signal);
      status("no connection", true);
    } catch (error) {
      if (signal.aborted) return;
      status("no connection: " + error.message, true);
    }
    await new Promise((wake) => setTimeout(wake, 1000));
  }
}

// Reads server-sent events. EventSource cannot send a token.
async function read(reader, signal) {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done || signal.aborted) return;
    text += decoder.decode(value, { stream: true });
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const data = text.slice(0, end).split("\n").filter((line) => line.startsWith("data: "));
      text = text.slice(end + 2);
      if (data.length) show(JSON.parse(data.map((line) => line.slice(6)).join("\n")));
    }
  }
}

function show(event) {
  const parts = ["engine: " + event.engine];
  if (event.trouble) parts.push(event.trouble);
  if (event.displaced) parts.push(figure(event.displaced) + " clients evicted");
  if (event.reload_error) parts.push("reload failed: " + event.reload_error);
  status(parts.join(" · "), event.trouble || event.reload_error);
  if (last) showRequests(event);
  last = event;
  rates = event.rates;
  chosen ??= edgeOf(rates.limit);
  for (const verdict of ["allowed", "denied"]) $(verdict + "-total").textContent = event[verdict].toLocaleString("en");
  $("known").textContent = figure(rates.clients);
  $("over").textContent = figure(event.over);
  showRates();
  showClients(event.clients, event.names_are_keys);
}

function showRequests(event) {
  const seconds = Math.max(event.at - last.at, 0.001);
  // The counters begin anew when the server was restarted.
  const perSecond = (verdict) => Math.max(0, event[verdict] - last[verdict]) / seconds;
  const now = { allowed: perSecond("allowed"), denied: perSecond("denied") };
  history.push(now);
  if (history.length > SECONDS) history.shift();
  $("allowed").textContent = figure(now.allowed);
  $("denied").textContent = figure(now.denied);
  drawTime($("time"), history, SECONDS);
}

function showRates() {
  const { low, high } = scaleOf(rates);
  chosen = Math.min(Math.max(chosen, low), high);
  const place = drawRates($("rates"), rates, chosen);
  const line = $("line");
  line.style.left = place(chosen) + "px";
  line.setAttribute("aria-valuenow", Math.round((100 * (chosen - low)) / (high - low)));
  line.setAttribute("aria-valuetext", figure(rateOf(chosen)) + " requests a second");
  line.dataset.rate = rateOf(chosen);
  const { clients, share } = above(rates, chosen);
  const count = (x) => x.toLocaleString("en");
  $("would").textContent = `A limit of ${figure(rateOf(chosen))}/s would limit ${count(clients)} of ${count(rates.clients)} clients and ${Math.round(100 * share)} % of requests`;
  $("text").textContent = withRate(ruleShown().limit, rateOf(chosen));
}

// Returns the text of a rule with another rate, in requests a second.
function withRate(text, rate) {
  const rounded = (x) => String(Number(x.toPrecision(3)));
  if (/^(recent-average|gcra) /.test(text)) return text.replace(/ \S+/, ` ${rounded(rate)}/s`);
  if (/ refill=/.test(text)) return text.replace(/ refill=\S+/, ` refill=${rounded(rate)}/s`);
  return text.replace(/ \d+\/(\S+)/, (_, span) => ` ${Math.max(1, Math.round(rate * secondsOf(span)))}/${span}`);
}

function secondsOf(span) {
  const units = { ns: 1e-9, us: 1e-6, ms: 0.001, s: 1, m: 60, h: 3600, d: 86400 };
  const parts = [...span.matchAll(/([\d.]*)([a-z]+)/g)];
  return parts.reduce((sum, [, count, unit]) => sum + (count === "" ? 1 : Number(count)) * units[unit], 0);
}

function showClients(clients, named) {
  const focused = document.activeElement?.dataset?.action;
  $("clients").replaceChildren(...clients.map((client) => rowOf(client, named)));
  // The rows are new, so the button that had the focus is found again.
  if (focused) [...$("clients").querySelectorAll("button")].find((button) => button.dataset.action === focused)?.focus();
  const known = new Set(clients.map((client) => client.fingerprint));
  for (const fingerprint of usages.keys()) if (!known.has(fingerprint)) usages.delete(fingerprint);
}

function rowOf(client, named) {
  const past = usages.get(client.fingerprint) ?? [];
  past.push(client.usage);
  if (past.length > UPDATES) past.shift();
  usages.set(client.fingerprint, past);
  const row = document.createElement("tr");
  const cell = (kind, text, label) => {
    const made = row.insertCell();
    made.className = kind;
    made.textContent = text;
    if (label) made.dataset.label = label;
    return made;
  };
  const name = client.key ?? client.key_b64;
  if (name) cell("client", shown(name) + (client.key_is_cut ? "…" : ""));
  else cell("client unnamed", "#" + client.fingerprint).title = "The server keeps no name of this client. The number is the same until it restarts.";
  cell("number", figure(client.rate) + "/s", "rate");
  cell(client.usage >= 1 ? "number over" : "number", Math.round(100 * client.usage) + " %");
  cell("", "").append(spark(past, UPDATES));
  cell("number", duration(client.retry_after), "forgiven in");
  cell("number", client.denied ? figure(client.denied) : "", "denied");
  const actions = cell("actions", "");
  if (named && client.key !== null && !client.key_is_cut) {
    actions.append(button("Reset", client, () => reset(client.key)));
    if (ruleShown().key.length === 1) actions.append(" ", button("Exempt", client, () => exempt(client.key)));
  }
  return row;
}

function button(text, client, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.dataset.action = text + client.fingerprint;
  made.setAttribute("aria-label", text + " " + shown(client.key));
  made.addEventListener("click", act);
  return made;
}

function confirmed(question, snippet, yes) {
  $("question").textContent = question;
  $("snippet").textContent = snippet;
  $("yes").hidden = !yes;
  $("dialog").returnValue = "";
  $("dialog").showModal();
  $("dialog").onclose = () => { if ($("dialog").returnValue === "yes" && yes) yes(); };
}

function reset(key) {
  const rule = $("rule").value;
  confirmed(`Reset ${shown(key)} under ${shown(rule)}? Its history is deleted.`, "", async () => {
    const answer = await ask(`/v1/clients/${encodeURIComponent(rule)}/${encodeURIComponent(key)}`, { method: "DELETE" });
    if (!answer.ok) status("not reset: " + (await answer.json()).detail, true);
  });
}

function exempt(key) {
  const text = `exempt = { ${quoted(ruleShown().key[0])} = [${quoted(key)}] }`;
  confirmed("To exempt this client, add this line to the rule and reload:", text, null);
}

function move(edge) {
  if (!rates) return;
  chosen = edge;
  showRates();
}

function drag(event) {
  const box = $("rates").getBoundingClientRect();
  const { low, high } = scaleOf(rates);
  move(Math.round(low + ((event.clientX - box.left) / box.width) * (high - low)));
}

$("line").addEventListener("pointerdown", (event) => {
  $("line").setPointerCapture(event.pointerId);
  $("line").addEventListener("pointermove", drag);
});
$("line").addEventListener("pointerup", () => $("line").removeEventListener("pointermove", drag));
$("line").addEventListener("keydown", (event) => {
  const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -16, PageUp: 16, Home: -1e4, End: 1e4 };
  if (!(event.key in steps)) return;
  event.preventDefault();
  move(chosen + steps[event.key]);
});
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value;
  $("token").value = "";
  $("refused").textContent = "";
  begin();
});
$("copy").addEventListener("click", async () => {
  // Browsers offer the clipboard to pages of this machine and to those over TLS.
  if (!navigator.clipboard) return getSelection().selectAllChildren($("text"));
  await navigator.clipboard.writeText($("text").textContent);
  $("copy").textContent = "Copied";
  setTimeout(() => { $("copy").textContent = "Copy"; }, 1500);
});
$("rule").addEventListener("change", () => watch($("rule").value));
addEventListener("resize", () => {
  if (rates) showRates();
  if (history.length) drawTime($("time"), history, SECONDS);
});
if (document.body.dataset.token) lock();
else begin();
