// The page is made from its data alone: render(data) may be called again with newer data, and keeps what was chosen.

const ALL = -1; // in round, hop and receiver: summed over
const state = { kind: null, round: ALL, hop: ALL, source: null };
let data = null;

const $ = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const fill = (id, ...children) => $(id).replaceChildren(...children);
const say = (id, text) => { $(id).textContent = text; };
const show = (id, visible) => { $(id).hidden = !visible; };

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e-4 && size < 1e6 ? value.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(size)))) : value.toExponential(digits - 1);
}
const fixed = (value, digits) => (value === null ? "–" : value.toFixed(digits));
const signed = (value) => (value > 0 ? "+" : "") + number(value).replace("-", "−");
const verdict = (value) => (value < 0 ? "helped" : value > 0 ? "harmed" : "neither");
const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function name(node) {
  return data.known[node] ? `participant ${node} (${data.known[node]})` : `participant ${node}`;
}

function render(fresh) {
  data = fresh;
  const influence = data.influence;
  if (influence && !influence.kinds.includes(state.kind)) state.kind = Object.keys(influence.cascades)[0] ?? influence.kinds[0];
  if (state.source !== null && !data.shown.includes(state.source)) state.source = null;
  overview();
  about();
  setControls();
  trainingCurves();
  reach();
  sampleCards();
  applications();
  setTable();
  update();
  navigation();
}

// What depends on the sliders and on who is selected; nothing else is touched.
function update() {
  labelControls();
  drawNetwork();
  drawPanel();
  drawMatrices();
}

function overview() {
  const run = data.run;
  const when = run.started ? ` · ${run.started.slice(0, 16).replace("T", " ")}` : "";
  say("status", `${data.folder} · ${run.status ?? "unknown"}${when}`);
  say("title", data.title);
  const accuracy = data.training && data.training.accuracy;
  const loss = data.training && data.training["test loss"];
  const judged = accuracy ?? loss;
  const last = judged ? judged.mean[judged.mean.length - 1] : null;
  fill("tiles", ...[
    [data.nodes, "participants"],
    [run.rounds ?? 0, "rounds"],
    [last === null ? "–" : number(last), accuracy ? "mean test accuracy" : "mean test loss"],
    [Object.keys(data.known).length, "told to misbehave"],
    data.sections.some((section) => section.name === "detect") ? [data.flagged.length, "flagged"] : null,
    [run.seconds === null ? "–" : `${number(run.seconds, 2)} s`, "training time"],
  ].filter(Boolean).map(([value, label]) => element("div", { class: "tile" }, element("b", {}, String(value)), element("span", {}, label))));
  fill("findings", ...data.findings.map(sentence));
  fill("notes", ...data.notes.map((text) => element("p", {}, text)));
  show("notes", data.notes.length > 0);
  const ask = data.commands.find((entry) => entry.name === "influence");
  show("missing", !data.influence);
  fill("missing", element("p", {}, "Nobody has asked yet whose data helped whom in this run. This adds it:"),
    element("p", {}, element("code", {}, ask ? ask.command : "")));
}

const sentence = (text) => element("li", {}, capital(text).replace(/(^|[ (])-(?=\d)/g, "$1−"));

function about() {
  const settings = [...data.run.settings].sort((a, b) => b[2] - a[2]);
  const versions = Object.entries(data.run.versions ?? {}).map(([key, value]) => [`version of ${key}`, value, false]);
  const rest = [["device", data.run.device, false], ["platform", data.run.platform, false], ["parameters", data.run.parameters, false], ["folder", data.path, false]];
  fill("settings", ...[...settings, ...versions, ...rest].map(([key, value, changed]) =>
    element("div", { class: changed ? "changed" : null }, element("dt", {}, key.replaceAll("_", " ")), element("dd", {}, written(value)))));
  show("ask", data.commands.length > 0);
  fill("commands", ...data.commands.flatMap(({ what, command }) => [element("dt", {}, what), element("dd", {}, element("code", {}, command))]));
}

function written(value) {
  if (value === null || value === undefined) return "none";
  if (Array.isArray(value)) return value.join(" ") || "none";
  return String(value);
}

function navigation() {
  const sections = [...document.querySelectorAll("section[data-name]")].filter((section) => !section.hidden);
  fill("nav", ...sections.map((section) => element("a", { href: `#${section.id}` }, section.dataset.name)));
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  say("theme", theme === "dark" ? "Light" : "Dark");
  $("theme").setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"} colours`);
}

function followTheme() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => { setTheme(dark.matches ? "dark" : "light"); render(data); });
  $("theme").addEventListener("click", () => {
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    render(data);
  });
}
