// The charts of the dashboard, as SVG. Nothing here holds state or asks the server.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 190; // at least
const LABELS = 24; // the space for the labels of the horizontal axis
const BOTTOM = HEIGHT - LABELS;
const TOP = 18;
// The server counts rates in 16 buckets for each doubling; a bucket is named by the number of its lower edge.
const PER_DOUBLING = 16;
const LOWEST = -40 * PER_DOUBLING;

export const rateOf = (edge) => 2 ** (edge / PER_DOUBLING);
export const edgeOf = (rate) => (rate > 0 ? Math.max(LOWEST, Math.floor(Math.log2(rate) * PER_DOUBLING + 1e-9)) : LOWEST);

export function figure(x) {
  if (x === null || x === undefined) return "–";
  if (x === 0) return "0";
  if (x >= 1000) return Math.round(x).toLocaleString("en");
  return x >= 0.001 ? String(Number(x.toPrecision(3))) : x.toExponential(1);
}

export function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Gives a chart a coordinate system of CSS pixels, and returns its width and height.
function prepare(svg) {
  const [width, height] = [Math.max(100, svg.clientWidth), Math.max(HEIGHT, svg.clientHeight)];
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  return [width, height];
}

function gridLine(y, width, label) {
  return [
    element("line", { class: "grid", x1: 0, x2: width, y1: y, y2: y }),
    element("text", { x: 0, y: y - 4 }, label),
  ];
}

// Returns the smallest 1, 2 or 5 times a power of ten that is not below `x`.
function ceiling(x) {
  const power = 10 ** Math.floor(Math.log10(x));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= x * (1 - 1e-9));
}

// Draws the requests of each second, denied ones above those that were allowed; the latest is at the right.
export function drawTime(svg, history, most) {
  const [width, height] = prepare(svg);
  const bottom = height - LABELS;
  const highest = ceiling(Math.max(1, ...history.map((one) => one.allowed + one.denied)));
  const x = (nth) => width - ((history.length - 1 - nth) * width) / (most - 1);
  const y = (value) => bottom - ((bottom - TOP) * value) / highest;
  const area = (low, high, kind) => {
    const points = [...history.map((one, nth) => [x(nth), y(high(one))]), ...history.map((one, nth) => [x(nth), y(low(one))]).reverse()];
    return element("polygon", { class: kind, points: points.map((point) => point.map((v) => v.toFixed(1)).join(",")).join(" ") });
  };
  svg.replaceChildren(
    area(() => 0, (one) => one.allowed, "allowed"),
    area((one) => one.allowed, (one) => one.allowed + one.denied, "denied"),
    ...[0.5, 1].flatMap((share) => gridLine(y(share * highest), width, figure(share * highest))),
    element("line", { class: "grid", x1: 0, x2: width, y1: bottom, y2: bottom }),
    element("text", { x: 0, y: height - 6 }, "2 minutes ago"),
    element("text", { x: width, y: height - 6, "text-anchor": "end" }, "now"),
  );
}

// Returns the numbers of the first and the last bucket that the chart of rates shows.
export function scaleOf(rates) {
  const edges = rates.buckets.filter((bucket) => bucket.from > 0).map((bucket) => edgeOf(bucket.from));
  const limit = edgeOf(rates.limit);
  return { low: Math.min(limit, ...edges) - PER_DOUBLING, high: Math.max(limit, ...edges) + PER_DOUBLING };
}

// Returns the clients at or above an edge, and their share of requests: the numbers of /v1/rates.
export function above(rates, edge) {
  let [clients, rate] = [0, 0];
  for (const bucket of rates.buckets) {
    if (edgeOf(bucket.from) < edge) continue;
    clients += bucket.clients;
    rate += bucket.rate;
  }
  return { clients, share: rates.rate > 0 ? Math.min(1, rate / rates.rate) : 0 };
}

// Adds neighbouring buckets up until a bar is at least 5 pixels wide; returns [first edge, clients] of each bar.
function barsOf(rates, pixels) {
  let group = 1;
  while (group * pixels < 5) group *= 2;
  const bars = new Map();
  for (const bucket of rates.buckets.filter((bucket) => bucket.from > 0)) {
    const first = Math.floor(edgeOf(bucket.from) / group) * group;
    bars.set(first, (bars.get(first) ?? 0) + bucket.clients);
  }
  return { group, bars: [...bars] };
}

// Returns the marks of the axis of rates: powers of ten, or of two where those are too few.
function marksOf(low, high) {
  const powers = (base) => {
    const [first, last] = [low, high].map((edge) => Math.log(rateOf(edge)) / Math.log(base));
    const all = [];
    for (let power = Math.ceil(first); power <= last; power++) all.push(base ** power);
    return all;
  };
  const tens = powers(10);
  return tens.length >= 3 ? tens : powers(high - low > 7 * PER_DOUBLING ? 4 : 2);
}

// Draws the number of clients by rate; the bars right of the line at `chosen` in another colour. Returns the place
// of an edge in pixels.
export function drawRates(svg, rates, chosen) {
  const [width] = prepare(svg);
  const { low, high } = scaleOf(rates);
  const place = (edge) => (width * (edge - low)) / (high - low);
  const { group, bars } = barsOf(rates, width / (high - low));
  const highest = 10 ** Math.ceil(Math.log10(Math.max(10, ...bars.map(([, clients]) => clients)) + 1) - 1e-9);
  const y = (clients) => BOTTOM - ((BOTTOM - TOP) * Math.log(1 + clients)) / Math.log(1 + highest);
  const draw = (kind, from, to) => bars.map(([first, clients]) => {
    const [left, right] = [Math.max(from, place(first)), Math.min(to, place(first + group) - 1)];
    return left < right && element("rect", { class: kind, x: left, y: y(clients), width: right - left, height: BOTTOM - y(clients) });
  });
  const limit = place(edgeOf(rates.limit));
  const counts = [];
  for (let count = 1; count <= highest; count *= 10) counts.push(...gridLine(y(count), width, figure(count)));
  const marks = marksOf(low, high).map((rate) => {
    const x = place(Math.log2(rate) * PER_DOUBLING);
    return element("text", { x, y: HEIGHT - 6, "text-anchor": x < 30 ? "start" : x > width - 30 ? "end" : "middle" }, figure(rate));
  });
  svg.replaceChildren(
    ...counts,
    element("line", { class: "grid", x1: 0, x2: width, y1: BOTTOM, y2: BOTTOM }),
    ...draw("below", 0, place(chosen)).filter(Boolean),
    ...draw("above", place(chosen), width).filter(Boolean),
    element("line", { class: "limit", x1: limit, x2: limit, y1: 0, y2: BOTTOM }),
    ...marks,
  );
  return place;
}

// Returns a small chart of a client's usage, with a scale that ends at 1 or above.
export function spark(past, most) {
  const svg = element("svg", { class: "spark", viewBox: "0 0 100 22", "aria-hidden": "true" });
  const highest = Math.max(1, ...past);
  const points = past.map((value, nth) => `${(98 - ((past.length - 1 - nth) * 96) / (most - 1)).toFixed(1)} ${(20 - (18 * value) / highest).toFixed(1)}`);
  svg.append(element("path", { d: "M" + points.join("L") }));
  return svg;
}
