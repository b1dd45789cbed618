// The network: participants on a circle, sized by their influence or, once one is selected, by what it did to them.

const SVG = "http://www.w3.org/2000/svg";
const CENTRE = [380, 300], RADIUS = 222;

function shape(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function drawNetwork() {
  show("network", data.mixing !== null || data.influence !== null);
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.node : undefined;
  const places = new Map(data.shown.map((node, i) => {
    const angle = 2 * Math.PI * i / data.shown.length - Math.PI / 2;
    return [node, { x: CENTRE[0] + RADIUS * Math.cos(angle), y: CENTRE[1] + RADIUS * Math.sin(angle), angle }];
  }));
  const found = sizes(), most = Math.max(...[...found.values()].map(({ value }) => Math.abs(value)), 1e-300);
  const largest = Math.min(26, 260 / data.shown.length + 8);
  for (const [node, at] of places) at.r = data.influence ? 6 + (largest - 6) * Math.sqrt(Math.abs(found.get(node).value) / most) : Math.min(12, largest);
  const drawn = data.shown.map((node) => drawnNode(node, found.get(node), places.get(node)));
  $("graph").replaceChildren(arrowHeads(), edges(places), shape("g", {}, ...drawn));
  if (focused !== undefined) document.querySelector(`#graph [data-node="${focused}"]`)?.focus();
  drawLegend();
}

const LINK_COLOURS = { helped: "helped", harmed: "harmed", unclear: "grey", neither: "grey" };

function arrowHeads() {
  const marker = (name) => shape("marker", { id: `tip-${name}`, markerWidth: 8, markerHeight: 7, refX: 7, refY: 3.5, orient: "auto", markerUnits: "userSpaceOnUse" }, shape("path", { d: "M0,0 L8,3.5 L0,7 z", fill: colour(name) }));
  return shape("defs", {}, ...[...new Set(Object.values(LINK_COLOURS))].map(marker));
}

function edges(places) {
  const { receiver, source, weight } = matricesOf(state.round)[0];
  const paths = state.source !== null ? travelled() : new Map();
  const most = Math.max(...weight.filter((_, i) => receiver[i] !== source[i]), 1e-12);
  const crowd = Math.min(1, (80 / Math.max(weight.length, 1)) ** 0.5);
  const group = shape("g", { "aria-hidden": "true" });
  receiver.forEach((k, i) => {
    if (k === source[i]) return;
    const { hop, verdict: did } = paths.get(`${source[i]}-${k}`) ?? {};
    const strength = weight[i] / most;
    const width = (0.4 + 1.8 * strength) * (hop ? 1 : crowd);
    const opacity = hop ? 0.9 / hop ** 1.3 : (state.source === null ? 0.18 + 0.3 * strength : 0.08);
    const d = bend(places.get(source[i]), places.get(k));
    const path = shape("path", { class: hop ? `edge path ${did}` : "edge", d, "stroke-width": width, opacity });
    if (hop === 1) path.setAttribute("marker-end", `url(#tip-${LINK_COLOURS[did]})`);
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

function drawnNode(node, one, { x, y, angle, r }) {
  const chosen = node === state.source;
  const tab = node === (state.source ?? data.shown[0]) ? 0 : -1;
  const group = shape("g", { class: `node ${verdict(one)}${chosen ? " chosen" : ""}`, "data-node": node, role: "button", tabindex: tab, "aria-pressed": chosen, "aria-label": described(node, one) });
  group.append(shape("title", {}, capital(described(node, one))));
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

function described(node, one) {
  const flag = data.flagged.includes(node) ? ", flagged" : "";
  if (!data.influence) return `${name(node)}${flag}`;
  const did = verdict(one), passive = state.source !== null && cascading() && (did === "helped" || did === "harmed");
  return `${name(node)}${flag}: ${passive ? "was " : ""}${VERDICTS[did]}${did === "neither" || did === "unknown" ? "" : `, ${interval(one)}`}`;
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
    ...(data.influence ? [
      dot(`background:${colour("helped")}`, "helped: loss went down (−)"),
      dot(`background:${colour("harmed")}`, "harmed: loss went up (+)"),
      dot(`background:${colour("faint")};border:2px solid ${colour("grey")}`, "within noise or none"),
      ...(data.members ? [dot(`border:2px dotted ${colour("grey")}`, "of other processes, whose folders know its influence")] : []),
    ] : []),
    ...(data.flagged.length ? [dot(`border:2px dashed ${colour("harmed")}`, "flagged by its neighbours")] : []),
    element("span", {}, `${data.influence ? "Circle size: influence. " : ""}Line width: mixing weight.`));
}
