// The page is made from its data alone: render(data) may be called again with newer data, and keeps what was chosen.

const ALL = -1; // in round, hop and receiver: summed over
const state = { kind: null, round: ALL, hop: ALL, source: null };

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
  setTable(tableNote, "truth source:3 hop:1", `${data.folder}-influence`);
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
  show("missing", !data.influence && !(data.live && !data.live.ended));
  fill("missing", element("p", {}, "Nobody has asked yet whose data helped whom in this run. This adds it:"),
    element("p", {}, element("code", {}, ask ? ask.command : "")));
}

function tableNote() {
  const { note, words } = data.table;
  const places = words.folder.map((folder) => `${data.path}/${folder}`).join(", ");
  return `Influence of a source, of all its batch or of one sample, on a receiver. Negative helped. ${note ? `${note} All of them are in ${places}.` : ""}`;
}

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
