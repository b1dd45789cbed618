// The page is a function of its data: render(data) may be called again with newer data, and keeps what was selected.

const ALL = -1; // as round, hop or receiver: the sum over all
const state = { kind: null, round: ALL, hop: ALL, source: null };

function name(node) {
  return data.injected[node] ? `participant ${node} (${data.injected[node]})` : `participant ${node}`;
}

function render(fresh) {
  data = fresh;
  const influence = data.influence;
  if (influence && !(state.kind in influence.cascades)) state.kind = Object.keys(influence.cascades)[0];
  if (state.source !== null && !data.shown.includes(state.source)) state.source = null;
  overview();
  about();
  setControls();
  trainingCurves();
  reach();
  sampleCards();
  applications();
  setTable(tableNote, "participant 3 as source, hop 1", `${data.folder}-influence`);
  update();
  navigation();
}

// Redraw what depends on the sliders and the selection, and nothing else.
function update() {
  labelControls();
  drawNetwork();
  drawPanel();
  drawMatrices();
  writeAddress();
}

function overview() {
  const run = data.run;
  const when = run.started ? ` · ${run.started.slice(0, 16).replace("T", " ")}` : "";
  say("status", `${data.folder} · ${run.status ?? "unknown"}${when}`);
  say("title", data.title);
  const accuracy = data.training && data.training.accuracy;
  const loss = data.training && data.training["test loss"];
  const curve = accuracy ?? loss;
  const last = curve ? curve.mean[curve.mean.length - 1] : null;
  fill("tiles", ...[
    [data.nodes, "participants"],
    [run.rounds ?? 0, "rounds"],
    [last === null ? "–" : number(last), accuracy ? "mean test accuracy" : "mean test loss"],
    accuracy && loss ? [number(loss.mean[loss.mean.length - 1]), "mean test loss"] : null, // of next tokens it says more
    [Object.keys(data.injected).length, "with injected faults"],
    data.sections.some((section) => section.flagged !== null) ? [data.flagged.length, "flagged"] : null,
    run.seconds === null ? null : [`${number(run.seconds, 2)} s`, "training time"], // not known of a network built in Python
  ].filter(Boolean).map(([value, label]) => element("div", { class: "tile" }, element("b", {}, String(value)), element("span", {}, label))));
  fill("findings", ...data.findings.map(sentence));
  fill("notes", ...data.notes.map((text) => element("p", {}, text)));
  show("notes", data.notes.length > 0);
  const ask = data.commands.find((entry) => entry.name === "whole-run" || entry.name === "influence");
  show("missing", !data.influence && !(data.live?.training && !data.live.ended));
  fill("missing", element("p", {}, "Whose data helped whom has not been computed for this run yet. This command adds it:"),
    element("p", {}, element("code", {}, ask ? ask.command : "")));
}

function measured(kind, whose = "participant") {
  if (!kind.startsWith("whole-run")) return "the change in loss";
  return kind === "whole-run shares" ? `the ${whose}’s share of what training did to the loss of ${data.influence.models}` : `how the loss of ${data.influence.models} changes with the ${whose}’s weight (a derivative, not the effect of leaving it out)`;
}

function tableNote() {
  const { note, caution, words } = data.table;
  const places = words.folder.map((folder) => `${data.path}/${folder}`).join(", ");
  const whole = words.kind.filter((kind) => kind.startsWith("whole-run")).map((kind) => ` ${capital(kind)}: ${measured(kind)}.`).join("");
  return `Influence of a source (its whole batch, or one sample) on a receiver: the change in loss, negative = the loss went down = it helped.${whole} ${caution} ${note ? `${note} All rows are in ${places}.` : ""}`;
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
