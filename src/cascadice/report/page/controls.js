// Round, hop and estimator; the play button; links that keep the selection.

// The last position of each slider is the sum over all.
const roundsToChoose = () => (data.influence ? scored().rounds : Object.keys(data.mixing ? data.mixing.of : {}).map(Number).sort((a, b) => a - b));

function setControls() {
  const rounds = roundsToChoose(), hops = hopsToChoose();
  if (state.round !== ALL && !rounds.includes(state.round)) state.round = ALL;
  if (state.hop > hops || hops === 0) state.hop = ALL;
  $("round").max = rounds.length;
  $("hop").max = hops + 1;
  const still = !data.influence && (!data.mixing || data.mixing.matrices.length <= 2);
  $("round").closest(".control").hidden = rounds.length < 2 || still;
  $("hop").closest(".control").hidden = hops === 0;
  const kinds = data.influence ? Object.keys(data.influence.cascades) : [];
  if ([...$("kind").options].map((option) => option.value).join() !== kinds.join()) {
    fill("kind", ...kinds.map((kind) => element("option", { value: kind }, kind)));
  }
  if (kinds.length) $("kind").value = state.kind;
  $("kind").closest(".control").hidden = kinds.length < 2;
  show("controls", [...$("controls").children].some((control) => !control.hidden));
  const all = data.shown.length < data.nodes ? ` ${data.shown.length} of ${data.nodes} participants are drawn${data.influence ? ", those with the most influence" : ""}.` : "";
  const rule = data.influence ? "Influence is a change in loss: negative (blue) helped, positive (orange) harmed." : "A line is a link between participants, as wide as its mixing weight.";
  say("network-lead", rule + all);
}

// What the network shows: somebody is promised to have helped or harmed only if an interval says so.
function networkTitle() {
  if (!data.influence) return "Who gossiped with whom";
  const whom = state.kind.startsWith("whole-run") ? ` ${data.influence.models}` : "";
  if (state.round !== ALL || scored()["half width"] === null) return cascading() ? "Who influenced whom" : whom ? `Influence on${whom}` : "Influence of each participant";
  const did = new Set([...totals((source) => source).values()].map(verdict));
  if (!did.has("helped") && !did.has("harmed")) return `Nobody clearly helped or harmed${whom}`;
  if (cascading()) return "Who influenced whom";
  if (did.has("helped") && did.has("harmed")) return `Who helped${whom}, and who harmed${whom && (whom.endsWith("models") ? " them" : " it")}`;
  return `Who ${did.has("helped") ? "helped" : "harmed"}${whom}`;
}

function labelControls() {
  say("network-title", networkTitle());
  const rounds = roundsToChoose(), hops = hopsToChoose();
  for (const [id, place, text] of [["round", state.round === ALL ? rounds.length : rounds.indexOf(state.round), roundText()], ["hop", state.hop === ALL ? hops + 1 : state.hop, hopText()]]) {
    $(id).value = place;
    $(id).setAttribute("aria-valuetext", text);
    say(`${id}-value`, text);
  }
}

// Play: one round after the other, then the sum over all.
const STEP = 800; // milliseconds
let playing = null;

function play() {
  if (playing !== null) { stop(); return; }
  if (state.round === ALL) state.round = roundsToChoose()[0];
  playing = setInterval(() => {
    const rounds = roundsToChoose(), next = rounds.indexOf(state.round) + 1;
    state.round = rounds[next] ?? ALL;
    if (state.round === ALL) stop();
    update();
  }, STEP);
  say("play", "Stop");
  update();
}

function stop() {
  clearInterval(playing);
  playing = null;
  say("play", "Play");
}

// The address keeps what is selected, to pass on: #participant=3&round=40&hop=1&estimator=truth&section=table
let section = "";

function writeAddress() {
  const selected = { participant: state.source, round: state.round === ALL ? null : state.round, hop: state.hop === ALL ? null : state.hop, estimator: data.influence && state.kind !== Object.keys(data.influence.cascades)[0] ? state.kind : null };
  const parts = Object.entries(selected).filter(([, value]) => value !== null);
  if (parts.length && section) parts.push(["section", section]);
  const wanted = parts.length ? `#${new URLSearchParams(parts)}` : section ? `#${section}` : "";
  if (location.hash !== wanted) history.replaceState(null, "", wanted || location.pathname + location.search);
}

function readAddress() {
  const hash = location.hash.slice(1);
  if (!hash.includes("=")) { section = document.getElementById(hash) ? hash : section; return; }
  const given = new URLSearchParams(hash);
  const whole = (key) => (/^\d+$/.test(given.get(key) ?? "") ? Number(given.get(key)) : null);
  Object.assign(state, { source: whole("participant"), round: whole("round") ?? ALL, hop: whole("hop") ?? ALL, kind: given.get("estimator") });
  section = given.get("section") ?? "";
}

function listen() {
  $("round").addEventListener("input", (event) => { stop(); state.round = roundsToChoose()[event.target.value] ?? ALL; update(); });
  $("hop").addEventListener("input", (event) => { state.hop = Number(event.target.value) > hopsToChoose() ? ALL : Number(event.target.value); update(); });
  $("kind").addEventListener("change", (event) => { state.kind = event.target.value; setControls(); update(); });
  $("play").addEventListener("click", play);
  $("clear").addEventListener("click", () => { select(state.source); $("ranking").focus(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && state.source !== null && !$("large").open) select(state.source); });
  readAddress();
  window.addEventListener("hashchange", () => { readAddress(); if (location.hash.includes("=")) render(data); else writeAddress(); });
}

// After the first drawing, because sections are made by it.
function begin() {
  addSaveButtons();
  if (location.hash.includes("=") && section) document.getElementById(section)?.scrollIntoView();
}
