// Charts by Plotly: all of one look, redrawn in place.

function layout(more) {
  const axis = { gridcolor: colour("line"), zerolinecolor: colour("line"), linecolor: colour("line"), automargin: true, exponentformat: "power", tickfont: { size: 12 }, };
  const titled = ({ title, ...settings }) => ({ ...axis, ...settings, title: { standoff: 10, font: { size: 12, color: colour("soft") }, ...title } });
  const { xaxis = {}, yaxis = {}, ...rest } = more;
  return {
    font: { family: "system-ui, sans-serif", size: 13, color: colour("ink") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 8, r: 8, t: 8, b: 8 },
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
    xaxis: titled(xaxis), yaxis: titled(yaxis),
    ...rest,
  };
}

function chart(id, traces, more, label) {
  const place = $(id);
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", label);
  Plotly.react(place, traces, layout(more), {
    responsive: true, displayModeBar: false,
  });
  $("js-plotly-tester")?.setAttribute("aria-hidden", "true"); // where Plotly measures text
  return place;
}

const KIND_COLOURS = ["grey", "two", "three", "four", "one"];
const KIND_SYMBOLS = ["circle", "circle", "diamond", "square", "cross"];
const kindPlace = (kind) => Math.max(0, data.influence.kinds.indexOf(kind));
const kindColour = (kind) => colour(KIND_COLOURS[kindPlace(kind) % KIND_COLOURS.length]);

function curve(found, tone, label) {
  const traces = [];
  for (const [node, values] of (found.each ?? []).entries()) {
    traces.push({ x: found.rounds, y: values, mode: "lines", line: { color: colour(tone), width: 0.8 }, opacity: 0.35, showlegend: false, name: name(node), hovertemplate: `${label} %{y:.3f}, round %{x}<extra>%{data.name}</extra>` });
  }
  if (found.least) {
    const band = { x: found.rounds, mode: "lines", line: { width: 0 }, showlegend: false, hoverinfo: "skip" };
    traces.push({ ...band, y: found.least }, { ...band, y: found.greatest, fill: "tonexty", fillcolor: `${colour(tone)}33` });
  }
  const mode = found.rounds.length === 1 ? "markers" : "lines";
  traces.push({ x: found.rounds, y: found.mean, mode, line: { color: colour(tone), width: 2.6 }, name: label, hovertemplate: `mean %{y:.3f}, round %{x}<extra>${label}</extra>` });
  return traces;
}

function trainingCurves() {
  const found = data.training;
  show("training", found !== null);
  if (!found) return;
  const lines = data.nodes <= 64 ? "Thin lines are participants, thick ones their mean." : "Bands go from the least to the greatest participant.";
  say("training-text", lines + (found.thinned ? " Some rounds are left out of the curves." : ""));
  const round = { title: { text: "round" } };
  show("accuracy-card", found.accuracy !== null);
  if (found.accuracy) {
    const mean = found.accuracy.mean;
    chart("accuracy", curve(found.accuracy, "one", "accuracy"), { xaxis: round, yaxis: { range: [0, 1.02] }, showlegend: false }, `Mean test accuracy over the rounds, in the end ${number(mean[mean.length - 1])}.`);
  }
  const test = found["test loss"];
  const means = test ? [{ x: test.rounds, y: test.mean, mode: "lines", line: { color: colour("two"), width: 2.6, dash: "dash" }, name: "test data", hovertemplate: "test %{y:.3f}, round %{x}<extra></extra>" }] : [];
  chart("loss", [...curve(found.loss, "harmed", "own batches"), ...means], { xaxis: round, yaxis: { rangemode: "tozero" } }, "Mean training and test loss over the rounds.");
  chart("consensus", curve(found.consensus, "grey", "distance"), { xaxis: round, yaxis: { rangemode: "tozero" }, showlegend: false }, "Distance of the participants' models from their mean, over the rounds.");
}

function reach() {
  const found = data.influence;
  const decays = found ? Object.entries(found.decay) : [];
  const compared = found ? Object.entries(found.agreements) : [];
  show("reach", decays.length + compared.length > 0);
  show("decay-card", decays.length > 0);
  show("scatter-card", compared.length > 0);
  $("decay-card").classList.toggle("alone", compared.length === 0);
  $("scatter-card").classList.toggle("alone", decays.length === 0);
  if (decays.length) {
    const bars = decays.map(([kind, values]) => ({ type: "bar", name: kind, x: values.map((_, hop) => hop), y: values, marker: { color: kindColour(kind) }, hovertemplate: "hop %{x}: %{y:.5f}<extra>%{data.name}</extra>" }));
    const [kind, values] = decays[0];
    chart("decay", bars, { xaxis: { title: { text: "hops" }, dtick: 1 }, yaxis: { rangemode: "tozero" }, bargroupgap: 0.1 }, `Mean size of influence by hop, ${kind}: ${values.map((value) => number(value)).join(", ")}.`);
  }
  if (compared.length) scatter(found, compared);
}

function scatter(found, compared) {
  const { values, round, source, of } = found.points;
  const known = values.truth.filter((value) => value !== null);
  const ends = [Math.min(...known), Math.max(...known)];
  const where = source.map((node, i) => `${name(node)}, round ${round[i]}`);
  const clouds = compared.map(([kind]) => ({ x: values.truth, y: values[kind], text: where, mode: "markers", name: kind, marker: { color: kindColour(kind), symbol: KIND_SYMBOLS[kindPlace(kind) % KIND_SYMBOLS.length], size: 7, opacity: 0.75 }, hovertemplate: "%{text}<br>truth %{x:.5f}, estimate %{y:.5f}<extra>%{data.name}</extra>" }));
  const line = { x: ends, y: ends, mode: "lines", line: { color: colour("soft"), width: 1 }, hoverinfo: "skip", showlegend: false };
  const words = compared.map(([kind, a]) => `${kind}: Pearson ${fixed(a.pearson, 3)}`).join("; ");
  chart("scatter", [line, ...clouds], { xaxis: { title: { text: "truth: influence of an update" } }, yaxis: { title: { text: "estimate" } } }, `Estimates against the truth. ${words}.`);
  const judged = found.judged.map((one) => `${fixed(one.mean, 3)} (round ${one.t})`).join(" → ");
  const some = values.truth.length < of ? ` ${values.truth.length} of ${of} points are drawn.` : "";
  say("scatter-text", `A point is an update; on the line, an estimate is exact.${judged ? ` The network’s test ${found.judged[0].measure}: ${judged}.` : ""}${some}`);
  const rows = compared.map(([kind, a]) => [kind, fixed(a.pearson, 4), fixed(a.spearman, 4), fixed(a.relative_rmse, 3)]);
  fill("agreements", plainTable(["", "Pearson", "Spearman", "relative RMSE"], rows, "How near the estimates are to the truth"));
}

function heatMap(id, z, { rows, columns, scale, zmax, zmin, label, hover }) {
  const names = data.shown.map(String);
  const room = $(id).clientWidth / (8 + 8 * Math.max(...names.map((text) => text.length)));
  const every = Math.ceil(names.length / Math.max(2, 0.7 * room));
  const some = names.filter((_, i) => i % every === 0);
  const ticks = { tickmode: "array", tickvals: some, ticktext: some };
  const axis = { type: "category", showgrid: false, zeroline: false, ...ticks, tickangle: 0 };
  const trace = { type: "heatmap", x: names, y: names, z, colorscale: scale, zmin, zmax, xgap: 1, ygap: 1, hoverongaps: false, hovertemplate: `${hover}<extra></extra>`, colorbar: { thickness: 10, outlinewidth: 0, len: 0.9, exponentformat: "power", tickfont: { size: 11 } } };
  return chart(id, [trace], { xaxis: { ...axis, title: { text: columns } }, yaxis: { ...axis, title: { text: rows }, autorange: "reversed" }, plot_bgcolor: colour("faint") }, label);
}
