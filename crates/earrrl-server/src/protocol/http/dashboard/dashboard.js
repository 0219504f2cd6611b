"use strict";
// The page of the admin listener. The token is kept in this variable only, and every text from the server is
// inserted as text, never as HTML.

let token = "";
let stream = null;
let rules = [];
let rates = null;
let chosen = null; // the edge of the bucket at which the line stands
let last = null; // the counters of the update before
const history = []; // {allowed, denied} a second
const sparks = new Map(); // the usage of each client at the latest updates
const MOST = 120;

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

// Returns a name without characters that are invisible or change the direction of writing.
function shown(text) {
  const harmless = text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (c) => "\\u{" + c.codePointAt(0).toString(16) + "}");
  return harmless.length > 80 ? harmless.slice(0, 80) + "…" : harmless;
}

function figure(x) {
  if (x === null || x === undefined) return "–";
  return x >= 1000 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toPrecision(3);
}

function wait(seconds) {
  if (seconds === null) return "never";
  if (seconds <= 0) return "";
  return seconds < 100 ? seconds.toFixed(1) + " s" : seconds < 6000 ? (seconds / 60).toFixed(0) + " min" : (seconds / 3600).toFixed(1) + " h";
}

function ask(path, options = {}) {
  const headers = token ? { Authorization: "Bearer " + token } : {};
  return fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
}

async function begin() {
  const answer = await ask("/v1/rules");
  if (answer.status === 401 || answer.status === 403) {
    $("login").hidden = false;
    $("main").hidden = true;
    $("status").textContent = "locked";
    if (token) $("refused").textContent = "This token is not accepted.";
    token = "";
    $("token").focus();
    return;
  }
  rules = (await answer.json()).rules;
  $("rule").replaceChildren(...rules.map((rule) => new Option(rule.name, rule.name)));
  if (!rules.length) { $("status").textContent = "no rules"; return; }
  watch(rules[0].name);
}

// Follows the server-sent events of a rule.
async function watch(rule) {
  if (stream) stream.abort();
  const mine = (stream = new AbortController());
  [last, rates, chosen] = [null, null, null];
  history.length = 0;
  sparks.clear();
  while (!mine.signal.aborted) {
    try {
      const answer = await ask("/v1/live?rule=" + encodeURIComponent(rule), { signal: mine.signal });
      if (answer.status === 401 || answer.status === 403) {
        $("refused").textContent = "This token is not accepted.";
        $("login").hidden = false;
        $("main").hidden = true;
        token = "";
        return;
      }
      if (!answer.ok) throw new Error((await answer.json()).detail);
      $("login").hidden = true;
      $("main").hidden = false;
      await read(answer.body.getReader(), mine.signal);
    } catch (error) {
      if (mine.signal.aborted) return;
      $("status").textContent = "no connection: " + error.message;
    }
    await new Promise((wake) => setTimeout(wake, 1000));
  }
}

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
      if (data.length) update(JSON.parse(data.map((line) => line.slice(6)).join("\n")));
    }
  }
}

function update(news) {
  const parts = ["engine " + news.engine];
  if (news.trouble) parts.push(news.trouble);
  if (news.displaced) parts.push(news.displaced + " clients evicted");
  if (news.reload_error) parts.push("reload failed: " + news.reload_error);
  $("status").textContent = shown(parts.join(" · "));
  if (last) {
    const seconds = Math.max(news.at - last.at, 0.001);
    const now = { allowed: (news.allowed - last.allowed) / seconds, denied: (news.denied - last.denied) / seconds };
    history.push(now);
    if (history.length > MOST) history.shift();
    $("allowed").textContent = figure(now.allowed);
    $("denied").textContent = figure(now.denied);
    drawTime();
  }
  last = news;
  rates = news.rates;
  if (chosen === null) chosen = edgeOf(rates.limit);
  drawRates();
  drawClients(news.clients);
}

function path(values, most, className) {
  const line = document.createElementNS(SVG, "path");
  const x = (i) => (600 * i) / (MOST - 1);
  line.setAttribute("d", values.map((v, i) => (i ? "L" : "M") + x(MOST - values.length + i) + " " + (117 - (114 * v) / most)).join(""));
  line.setAttribute("class", className);
  return line;
}

function drawTime() {
  const most = Math.max(1, ...history.map((one) => Math.max(one.allowed, one.denied)));
  $("time").replaceChildren(path(history.map((one) => one.allowed), most, "allowed"), path(history.map((one) => one.denied), most, "denied"));
}

// The buckets of the server: 16 for each doubling of the rate.
const edgeOf = (rate) => (rate > 0 ? Math.floor(Math.log2(rate) * 16 + 1e-9) : -640);
const rateOf = (edge) => 2 ** (edge / 16);

function scale() {
  const edges = rates.buckets.map((bucket) => (bucket.from > 0 ? edgeOf(bucket.from) : -640)).filter((edge) => edge > -640);
  const limit = edgeOf(rates.limit);
  const [low, high] = [Math.min(limit, ...edges) - 16, Math.max(limit, ...edges) + 16];
  return { low, high, place: (edge) => (edge - low) / (high - low) };
}

// Returns the clients at or above the line, and their share of requests: the numbers of /v1/rates.
function above(edge) {
  let [clients, rate] = [0, 0];
  for (const bucket of rates.buckets) {
    if (bucket.from > 0 ? edgeOf(bucket.from) >= edge : edge <= -640) {
      clients += bucket.clients;
      rate += bucket.rate;
    }
  }
  return { clients, share: rates.rate > 0 ? Math.min(1, rate / rates.rate) : 0 };
}

function drawRates() {
  const { low, high, place } = scale();
  chosen = Math.min(Math.max(chosen, low), high);
  const most = Math.log(1 + Math.max(1, ...rates.buckets.map((bucket) => bucket.clients)));
  const width = 600 / (high - low);
  $("rates").replaceChildren(...rates.buckets.filter((bucket) => bucket.from > 0).map((bucket) => {
    const bar = document.createElementNS(SVG, "rect");
    const edge = edgeOf(bucket.from);
    const height = (150 * Math.log(1 + bucket.clients)) / most;
    for (const [name, value] of [["x", 600 * place(edge)], ["y", 160 - height], ["width", Math.max(width * 0.9, 1)], ["height", height]]) {
      bar.setAttribute(name, value);
    }
    if (edge >= chosen) bar.setAttribute("class", "above");
    return bar;
  }));
  $("lowest").textContent = figure(rateOf(low));
  $("highest").textContent = figure(rateOf(high));
  drawLine(place);
}

function drawLine(place) {
  const line = $("line");
  const box = $("rates");
  const [inner, outer] = [box.getBoundingClientRect(), box.parentElement.getBoundingClientRect()];
  line.style.left = inner.left - outer.left + inner.width * place(chosen) + "px";
  line.style.top = inner.top - outer.top + "px";
  const { clients, share } = above(chosen);
  const rate = figure(rateOf(chosen));
  line.setAttribute("aria-valuenow", Math.round(100 * place(chosen)));
  line.setAttribute("aria-valuetext", rate + " requests a second");
  line.dataset.rate = rateOf(chosen);
  $("would").textContent = `would limit ${clients} of ${rates.clients} clients and ${Math.round(100 * share)} % of requests`;
  $("text").textContent = ruleText(rateOf(chosen));
}

// Returns the text of the rule with another rate.
function ruleText(rate) {
  const rule = rules.find((one) => one.name === $("rule").value);
  const words = rule.limit.split(" ");
  const perSecond = Number(rate.toPrecision(3)) + "/s";
  if (["recent-average", "gcra"].includes(words[0])) words[1] = perSecond;
  else if (["token-bucket", "credit-pool"].includes(words[0])) return rule.limit.replace(/refill=\S+/, "refill=" + perSecond);
  else {
    const [, span] = words[1].split("/");
    const units = { ms: 0.001, s: 1, m: 60, h: 3600, d: 86400 };
    let seconds = 0;
    for (const [, count, unit] of span.matchAll(/([\d.]*)(ms|s|m|h|d)/g)) seconds += (count === "" ? 1 : Number(count)) * units[unit];
    words[1] = Math.max(1, Math.round(rate * seconds)) + "/" + span;
  }
  return words.join(" ");
}

function drawClients(clients) {
  const known = new Set();
  $("clients").replaceChildren(...clients.map((client) => {
    known.add(client.fingerprint);
    const past = sparks.get(client.fingerprint) || [];
    past.push(client.usage);
    if (past.length > 60) past.shift();
    sparks.set(client.fingerprint, past);
    const row = document.createElement("tr");
    const cell = (text) => { const td = document.createElement("td"); td.textContent = text; row.append(td); return td; };
    const name = client.key ?? client.key_b64 ?? "#" + client.fingerprint;
    cell(shown(name) + (client.key_is_cut ? "…" : ""));
    cell(figure(client.rate));
    if (client.usage >= 1) cell(Math.round(100 * client.usage) + " %").className = "over";
    else cell(Math.round(100 * client.usage) + " %");
    cell("").append(spark(past));
    cell(wait(client.retry_after));
    cell(client.denied ?? "");
    const actions = cell("");
    if (client.key !== null && !client.key_is_cut) {
      actions.append(button("Reset", name, () => reset(client.key)), " ", button("Exempt", name, () => exempt(client.key)));
    }
    return row;
  }));
  for (const fingerprint of sparks.keys()) if (!known.has(fingerprint)) sparks.delete(fingerprint);
}

function spark(past) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 60 20");
  svg.setAttribute("class", "spark");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const most = Math.max(1, ...past);
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("class", "spark");
  line.setAttribute("d", past.map((v, i) => (i ? "L" : "M") + (60 - past.length + i) + " " + (19 - (18 * v) / most)).join(""));
  svg.append(line);
  return svg;
}

function button(text, name, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.setAttribute("aria-label", text + " " + shown(name));
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
  confirmed(`Reset ${shown(key)} under ${rule}? Its history is forgotten.`, "", async () => {
    const answer = await ask(`/v1/clients/${encodeURIComponent(rule)}/${encodeURIComponent(key)}`, { method: "DELETE" });
    if (!answer.ok) $("status").textContent = "not reset: " + answer.status;
  });
}

function exempt(key) {
  const rule = rules.find((one) => one.name === $("rule").value);
  const part = rule.key.length === 1 ? rule.key[0] : rule.key.join(" and ");
  confirmed("To exempt this client, add to the rule and reload:", `exempt = { ${JSON.stringify(part)} = ${JSON.stringify(key)} }`, null);
}

function move(edge) {
  if (!rates) return;
  chosen = edge;
  drawRates();
}

function drag(event) {
  const box = $("rates").getBoundingClientRect();
  const { low, high } = scale();
  const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  move(Math.round(low + share * (high - low)));
}

$("line").addEventListener("pointerdown", (event) => {
  $("line").setPointerCapture(event.pointerId);
  $("line").addEventListener("pointermove", drag);
});
$("line").addEventListener("pointerup", () => $("line").removeEventListener("pointermove", drag));
$("line").addEventListener("keydown", (event) => {
  const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -16, PageUp: 16 };
  if (event.key in steps) {
    event.preventDefault();
    move(chosen + steps[event.key]);
  }
});
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value;
  $("token").value = "";
  $("refused").textContent = "";
  begin();
});
$("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText($("text").textContent);
  $("copy").textContent = "Copied";
  setTimeout(() => { $("copy").textContent = "Copy"; }, 1500);
});
$("rule").addEventListener("change", () => watch($("rule").value));
addEventListener("resize", () => { if (rates) drawRates(); });
begin();
