// The network: participants on a circle, sized by their influence or, once one is selected, by what it did to them.

const SVG = "http://www.w3.org/2000/svg";
const CENTRE = [380, 320], RADIUS = 232;

function shape(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function* entries() {
  const rows = data.influence && data.influence.cascades[state.kind];
  for (let i = 0; rows && i < rows.value.length; i++) {
    if (rows.round[i] === state.round && (state.hop === ALL || rows.hop[i] === state.hop)) {
      yield { source: rows.source[i], hop: rows.hop[i], receiver: rows.receiver[i], value: rows.value[i] ?? 0 };
    }
  }
}

// Whether the data say whom an update reached, or only its total.
const cascading = () => data.influence !== null && data.influence.hops > 0;

// The influence that sizes each participant: on everyone or, with a source selected, of that source on it.
function sizes() {
  const values = new Map(data.shown.map((node) => [node, 0]));
  for (const { source, receiver, value } of entries()) {
    if (state.source === null || !cascading()) values.set(source, (values.get(source) ?? 0) + value);
    else if (source === state.source && values.has(receiver)) values.set(receiver, values.get(receiver) + value);
  }
  return values;
}

function matricesOf(round) {
  if (!data.mixing) return [{ receiver: [], source: [], weight: [] }];
  const { matrices, of } = data.mixing;
  return of[round] ? of[round].map((place) => matrices[place]) : [matrices[0]];
}

// Links that the cascade of the selected source can travel up to the chosen hop: link -> hop.
function travelled() {
  const steps = matricesOf(state.round);
  const far = !cascading() ? 1 : state.hop === ALL ? data.influence.hops : state.hop;
  const links = new Map();
  let reached = new Set([state.source]);
  for (let hop = 1; hop <= far; hop++) {
    const { receiver, source } = steps[Math.min(hop - 1, steps.length - 1)];
    const next = new Set();
    receiver.forEach((k, i) => {
      if (!reached.has(source[i])) return;
      next.add(k);
      if (k !== source[i] && !links.has(`${source[i]}-${k}`)) links.set(`${source[i]}-${k}`, hop);
    });
    reached = next;
  }
  return links;
}

function drawNetwork() {
  show("network", data.mixing !== null || data.influence !== null);
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.node : undefined;
  const places = new Map(data.shown.map((node, i) => {
    const angle = 2 * Math.PI * i / data.shown.length - Math.PI / 2;
    return [node, { x: CENTRE[0] + RADIUS * Math.cos(angle), y: CENTRE[1] + RADIUS * Math.sin(angle), angle }];
  }));
  const values = sizes(), most = Math.max(...[...values.values()].map(Math.abs), 1e-300);
  const largest = Math.min(26, 260 / data.shown.length + 8);
  for (const [node, at] of places) at.r = data.influence ? 6 + (largest - 6) * Math.sqrt(Math.abs(values.get(node)) / most) : Math.min(12, largest);
  const drawn = data.shown.map((node) => drawnNode(node, values.get(node), places.get(node)));
  $("graph").replaceChildren(arrowHead(), edges(places), shape("g", {}, ...drawn));
  if (focused !== undefined) document.querySelector(`#graph [data-node="${focused}"]`)?.focus();
  drawLegend();
}

function arrowHead() {
  const tip = shape("path", { d: "M0,0 L8,3.5 L0,7 z", fill: colour("accent") });
  return shape("defs", {}, shape("marker", { id: "tip", markerWidth: 8, markerHeight: 7, refX: 7, refY: 3.5, orient: "auto", markerUnits: "userSpaceOnUse" }, tip));
}

function edges(places) {
  const { receiver, source, weight } = matricesOf(state.round)[0];
  const paths = state.source !== null ? travelled() : new Map();
  const most = Math.max(...weight.filter((_, i) => receiver[i] !== source[i]), 1e-12);
  const crowd = Math.min(1, (80 / Math.max(weight.length, 1)) ** 0.5);
  const group = shape("g", { "aria-hidden": "true" });
  receiver.forEach((k, i) => {
    if (k === source[i]) return;
    const hop = paths.get(`${source[i]}-${k}`);
    const strength = weight[i] / most;
    const width = (0.4 + 1.8 * strength) * (hop ? 1 : crowd);
    const opacity = hop ? 0.9 / hop ** 1.3 : (state.source === null ? 0.18 + 0.3 * strength : 0.08);
    const d = bend(places.get(source[i]), places.get(k));
    const path = shape("path", { class: hop ? "edge path" : "edge", d, "stroke-width": width, opacity });
    if (hop === 1) path.setAttribute("marker-end", "url(#tip)");
    if (hop) group.append(path); else group.prepend(path);
  });
  return group;
}

function bend(from, to) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy), short = Math.min(to.r + 5, length / 2) / length;
  const middle = [(from.x + to.x) / 2 - 0.1 * dy, (from.y + to.y) / 2 + 0.1 * dx];
  return `M${from.x},${from.y} Q${middle} ${to.x - dx * short},${to.y - dy * short}`;
}

function drawnNode(node, value, { x, y, angle, r }) {
  const chosen = node === state.source;
  const kind = chosen && value === 0 ? "neither" : verdict(value);
  const tab = node === (state.source ?? data.shown[0]) ? 0 : -1;
  const group = shape("g", { class: `node ${kind}${chosen ? " chosen" : ""}`, "data-node": node, role: "button", tabindex: tab, "aria-pressed": chosen, "aria-label": described(node, value) });
  group.append(shape("circle", { class: "ring", cx: x, cy: y, r: r + 5 }));
  if (data.flagged.includes(node)) group.append(shape("circle", { class: "flag", cx: x, cy: y, r: r + 9 }));
  group.append(shape("circle", { class: "body", cx: x, cy: y, r }), shape("circle", { cx: x, cy: y, r: Math.max(r, 16), fill: "transparent" }));
  group.append(nodeLabel(node, angle));
  group.addEventListener("click", () => select(node));
  group.addEventListener("keydown", (event) => nodeKey(event, node));
  return group;
}

function nodeLabel(node, angle) {
  const [x, y] = [CENTRE[0] + (RADIUS + 42) * Math.cos(angle), CENTRE[1] + (RADIUS + 42) * Math.sin(angle)];
  const side = Math.abs(Math.cos(angle)) < 0.2 ? "middle" : Math.cos(angle) > 0 ? "start" : "end";
  const text = shape("text", { x, y: y + 5, "text-anchor": side, "aria-hidden": "true" }, String(node));
  if (data.injected[node]) {
    const what = data.injected[node].length > 16 ? `${data.injected[node].slice(0, 15)}…` : data.injected[node];
    text.append(shape("tspan", { class: "what", x, dy: "1.15em" }, what));
  }
  if (data.shown.length > 32) text.setAttribute("style", "font-size: 11px");
  return text;
}

function described(node, value) {
  const flag = data.flagged.includes(node) ? ", flagged" : "";
  if (!data.influence) return `${name(node)}${flag}`;
  return `${name(node)}${flag}: ${verdict(value) === "neither" ? "no influence" : `${state.source === null || !cascading() ? verdict(value) : `was ${verdict(value)}`}, ${signed(value)}`}`;
}

function nodeKey(event, node) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (step) {
    const place = (data.shown.indexOf(node) + step + data.shown.length) % data.shown.length;
    document.querySelector(`#graph [data-node="${data.shown[place]}"]`).focus();
  } else if (event.key === "Enter" || event.key === " ") select(node);
  else return;
  event.preventDefault();
}

function select(node) {
  state.source = node === state.source ? null : node;
  update();
}

function drawLegend() {
  const dot = (style, words) => element("span", {}, element("i", { style }), words);
  fill("legend",
    ...(data.influence ? [dot(`background:${colour("helped")}`, "helped: loss went down"), dot(`background:${colour("harmed")}`, "harmed: loss went up"), dot(`border:2px solid ${colour("grey")}`, "neither")] : []),
    ...(data.flagged.length ? [dot(`border:2px dashed ${colour("harmed")}`, "flagged by its neighbours")] : []),
    element("span", {}, `${data.influence ? "Circle size: influence. " : ""}Line width: mixing weight.`));
}

function drawPanel() {
  const chosen = state.source;
  const ranked = [...sizes()].filter(([, value]) => chosen === null || !cascading() || value !== 0).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  say("panel-title", chosen !== null ? capital(name(chosen)) : data.influence ? "Everyone, ranked by influence" : "Everyone");
  show("clear", chosen !== null);
  say("panel-text", panelText(chosen, ranked));
  const most = Math.max(...ranked.map(([, value]) => Math.abs(value)), 1e-300);
  fill("ranking", ...(data.influence ? ranked : data.shown.map((node) => [node, null])).map(([node, value]) => rankedRow(node, value, most)));
}

function rankedRow(node, value, most) {
  const injected = data.injected[node] ? element("em", {}, ` ${data.injected[node]}`) : null;
  const row = element("button", { type: "button", "data-row": node }, element("span", { class: "name" }, `Participant ${node}`, injected));
  if (value !== null) {
    const strip = element("i", { style: `width:${100 * Math.abs(value) / most}%;background:${colour(value < 0 ? "helped" : "harmed")}` });
    row.append(element("span", { class: "value" }, signed(value)), element("span", { class: "strip" }, strip));
  }
  row.addEventListener("click", () => select(node));
  return element("li", {}, row);
}

function panelText(chosen, ranked) {
  if (!data.influence) return chosen === null ? "Select a participant to see who receives its updates." : `Its updates are received by ${plural(travelled().size, "participant")}.`;
  if (chosen === null) return `Influence by ${state.kind} (${roundText()}, ${hopText()}): ${measured(state.kind)}; negative = it helped. Select a participant to see ${cascading() ? "whom it reached" : "who receives its updates"}.`;
  if (!cascading()) return `Total influence ${signed(sizes().get(chosen))} (${roundText()}). Its updates are received by ${plural(travelled().size, "participant")}; ${state.kind}: only totals are known, not whom they reached.`;
  const own = [...entries()].filter(({ source, value }) => source === chosen && value !== 0);
  if (!own.length) return `Reached nobody (${roundText()}, ${hopText()}).`;
  const others = own.some(({ receiver }) => receiver === ALL) ? " and others not drawn" : "";
  const sum = own.reduce((total, { value }) => total + value, 0);
  return `Its updates reached ${plural(ranked.length, "participant")}${others}; total influence ${signed(sum)} (${roundText()}, ${hopText()}).`;
}

const roundText = () => (state.round === ALL ? "all rounds" : `round ${state.round}`);
const hopText = () => (state.hop === ALL ? "all hops" : state.hop === 0 ? "hop 0: on itself, before gossip" : `after ${plural(state.hop, "hop")}`);

// The last position of each slider is the sum over all.
const roundsToChoose = () => (data.influence ? data.influence.rounds : Object.keys(data.mixing ? data.mixing.of : {}).map(Number).sort((a, b) => a - b));

function setControls() {
  const rounds = roundsToChoose(), hops = data.influence ? data.influence.hops : 0;
  if (state.round !== ALL && !rounds.includes(state.round)) state.round = ALL;
  if (state.hop > hops) state.hop = ALL;
  $("round").max = rounds.length;
  $("hop").max = hops + 1;
  const still = !data.influence && (!data.mixing || data.mixing.matrices.length <= 2);
  $("round").parentElement.hidden = rounds.length < 2 || still;
  $("hop").parentElement.hidden = hops === 0;
  const kinds = data.influence ? Object.keys(data.influence.cascades) : [];
  if ([...$("kind").options].map((option) => option.value).join() !== kinds.join()) {
    fill("kind", ...kinds.map((kind) => element("option", { value: kind, selected: kind === state.kind }, kind)));
  }
  $("kind").parentElement.hidden = kinds.length < 2;
  show("controls", [...$("controls").children].some((control) => !control.hidden));
  const all = data.shown.length < data.nodes ? ` ${data.shown.length} of ${data.nodes} participants are drawn${data.influence ? ", those with the most influence" : ""}.` : "";
  say("network-title", cascading() ? "Who influenced whom" : data.influence ? "Who helped and who harmed" : "Who gossiped with whom");
  say("network-lead", (cascading() ? "Select a participant to see how its influence travels along the links, one hop in each round of gossip." : "A line is a link between participants, as wide as its mixing weight.") + all);
}

function labelControls() {
  const rounds = roundsToChoose(), hops = data.influence ? data.influence.hops : 0;
  for (const [id, place, text] of [["round", state.round === ALL ? rounds.length : rounds.indexOf(state.round), roundText()], ["hop", state.hop === ALL ? hops + 1 : state.hop, hopText()]]) {
    $(id).value = place;
    $(id).setAttribute("aria-valuetext", text);
    say(`${id}-value`, text);
  }
}

function listen() {
  $("round").addEventListener("input", (event) => { state.round = roundsToChoose()[event.target.value] ?? ALL; update(); });
  $("hop").addEventListener("input", (event) => { state.hop = Number(event.target.value) > data.influence.hops ? ALL : Number(event.target.value); update(); });
  $("kind").addEventListener("change", (event) => { state.kind = event.target.value; update(); });
  $("clear").addEventListener("click", () => { select(state.source); $("ranking").focus(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && state.source !== null && !$("large").open) select(state.source); });
}

// A share of a colour on the background of the cards; hues as #rrggbb.
function blend(tone, share) {
  const parts = (hue) => [1, 3, 5].map((place) => parseInt(hue.slice(place, place + 2), 16));
  const [ground, full] = [parts(colour("card")), parts(colour(tone))];
  return `rgb(${ground.map((part, i) => Math.round(part + share * (full[i] - part)))})`;
}

function square(fill = null) {
  return data.shown.map(() => data.shown.map(() => fill));
}

function drawMatrices() {
  show("matrix-card", cascading());
  show("weights-card", data.mixing !== null);
  $("matrix-card").classList.toggle("alone", data.mixing === null);
  $("weights-card").classList.toggle("alone", !cascading());
  const place = new Map(data.shown.map((node, i) => [node, i]));
  if (data.mixing) drawWeights(place);
  if ($("matrix-card").hidden) return;
  const z = square(), sizes = [];
  for (const { source, receiver, hop, value } of entries()) {
    if (receiver === ALL || !value || (state.hop === ALL && hop === 0)) continue;
    z[place.get(source)][place.get(receiver)] = (z[place.get(source)][place.get(receiver)] ?? 0) + value;
  }
  for (const row of z) for (const value of row) if (value) sizes.push(Math.abs(value));
  sizes.sort((a, b) => a - b);
  const most = sizes[Math.floor(0.98 * (sizes.length - 1))] ?? 1;
  say("matrix-text", `Change in loss: blue = helped, orange = harmed (${roundText()}, ${state.hop === ALL ? "from hop 1 on" : hopText()}). The colour scale leaves out the strongest 2 %.`);
  const scale = [[0, colour("helped")], [0.35, blend("helped", 0.5)], [0.5, colour("card")], [0.65, blend("harmed", 0.5)], [1, colour("harmed")]];
  heatMap("matrix", z, { rows: "source", columns: "receiver", scale, zmin: -most, zmax: most, hover: "from %{y} to %{x}: %{z:.5f}", label: "Influence of each source on each receiver." });
}

function drawWeights(place) {
  const { receiver, source, weight } = matricesOf(state.round)[0];
  const z = square();
  receiver.forEach((k, i) => { z[place.get(k)][place.get(source[i])] = weight[i]; });
  const single = data.mixing.matrices.length <= 2;
  say("weights-text", `The weight that each receiver gives to the parameters of each source${single ? ", the same in every round shown" : `: ${state.round === ALL ? "mean over the rounds" : roundText()}`}.`);
  const dark = document.documentElement.dataset.theme === "dark";
  const scale = [[0, dark ? "#17324a" : "#dcecf7"], [1, dark ? "#8fd0f7" : "#004b78"]];
  heatMap("weights", z, { rows: "receiver k", columns: "source j", scale, zmin: 0, zmax: Math.max(...weight, 1e-12), hover: "%{y} gives %{x} weight %{z:.4f}", label: "The mixing matrix: weight by receiver and source." });
}
