// The influence matrix and the mixing matrix, both with receivers as rows and sources as columns.

// A share of a colour on the background of the cards; hues as #rrggbb.
function blend(tone, share) {
  const parts = (hue) => [1, 3, 5].map((place) => parseInt(hue.slice(place, place + 2), 16));
  const [ground, full] = [parts(colour("card")), parts(colour(tone))];
  return `rgb(${ground.map((part, i) => Math.round(part + share * (full[i] - part)))})`;
}

const signedScale = () => [[0, colour("helped")], [0.35, blend("helped", 0.5)], [0.5, colour("card")], [0.65, blend("harmed", 0.5)], [1, colour("harmed")]];

function square(fill = null) {
  return data.shown.map(() => data.shown.map(() => fill));
}

// An estimator that gives totals only has no matrix: then the first one that has is shown, over all its rounds.
function drawMatrices() {
  const kind = Object.keys(data.influence?.scored ?? {}).find((one) => data.influence.scored[one].hops > 0);
  if (cascading() || !kind) { drawBoth(); return; }
  const chosen = { ...state };
  Object.assign(state, { kind, hop: ALL, round: data.influence.scored[kind].rounds.includes(state.round) ? state.round : ALL });
  drawBoth();
  Object.assign(state, chosen);
}

function drawBoth() {
  show("matrices", cascading() || data.mixing !== null);
  show("matrix-card", cascading());
  show("weights-card", data.mixing !== null);
  const both = cascading() && data.mixing !== null;
  say("matrices-title", both ? "Influence beside the weights that carry it" : cascading() ? "Influence of each source on each receiver" : "Who listens to whom");
  say("matrices-text", `${both ? "Both matrices have" : "The matrix has"} a row for each receiver and a column for each source.${cascading() ? ` ${both ? "They follow" : "It follows"} the round, hop and estimator chosen beside the network.` : ""}`);
  $("matrix-card").classList.toggle("alone", data.mixing === null);
  $("weights-card").classList.toggle("alone", !cascading());
  const place = new Map(data.shown.map((node, i) => [node, i]));
  if (data.mixing) drawWeights(place);
  if (cascading()) drawInfluence(place);
}

function drawInfluence(place) {
  const z = square(), found = [];
  const pairs = totals((source, receiver, hop) => (receiver === ALL || (state.hop === ALL && hop === 0) ? undefined : `${receiver}-${source}`));
  for (const [pair, { value }] of pairs) {
    const [k, j] = pair.split("-").map(Number);
    if (value) { z[place.get(k)][place.get(j)] = value; found.push(Math.abs(value)); }
  }
  found.sort((a, b) => a - b);
  const most = found[Math.floor(0.98 * (found.length - 1))] ?? 1;
  say("matrix-text", `What each source did to each receiver’s loss: blue = helped, orange = harmed (${state.kind}, ${roundText()}, ${state.hop === ALL ? "from hop 1 on" : hopText()}). Colours saturate at the strongest 2 %.`);
  heatMap("matrix", z, { scale: signedScale(), zmin: -most, zmax: most, hover: "from %{x} to %{y}: %{z:.5f}", label: "Influence on each receiver of each source." });
}

function drawWeights(place) {
  const { receiver, source, weight } = matricesOf(state.round)[0];
  const z = square();
  receiver.forEach((k, i) => { z[place.get(k)][place.get(source[i])] = weight[i]; });
  const single = data.mixing.matrices.length <= 2, mean = state.round === ALL || !data.mixing.of[state.round];
  say("weights-text", `The weight that each receiver gives to the parameters of each source${single ? ", the same in every round shown" : `: ${mean ? "mean over the rounds" : roundText()}`}.`);
  const dark = document.documentElement.dataset.theme === "dark";
  const scale = [[0, dark ? "#17324a" : "#dcecf7"], [1, dark ? "#8fd0f7" : "#004b78"]];
  heatMap("weights", z, { scale, zmin: 0, zmax: Math.max(...weight, 1e-12), hover: "%{y} gives %{x} weight %{z:.4f}", label: "The mixing matrix: weight by receiver and source." });
}
