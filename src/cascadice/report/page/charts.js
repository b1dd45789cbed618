// Charts by Plotly, all in one style, redrawn in place.

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
  return chartIn($(id), traces, more, label);
}

function chartIn(place, traces, more, label) {
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

const modeOf = (line) => (line.rounds.length === 1 ? "markers" : "lines"); // a line of one point would not be seen

function curve(line, tone, label) {
  const traces = [];
  for (const [node, values] of (line.each ?? []).entries()) {
    traces.push({ x: line.rounds, y: values, mode: "lines", connectgaps: true, line: { color: colour(tone), width: 0.8 }, opacity: 0.35, showlegend: false, name: name(node), hovertemplate: `${label} %{y:.3f}, round %{x}<extra>%{data.name}</extra>` });
  }
  if (line.least) {
    const band = { x: line.rounds, mode: "lines", line: { width: 0 }, showlegend: false, hoverinfo: "skip" };
    traces.push({ ...band, y: line.least }, { ...band, y: line.greatest, fill: "tonexty", fillcolor: `${colour(tone)}33` });
  }
  traces.push({ x: line.rounds, y: line.mean, mode: modeOf(line), line: { color: colour(tone), width: 2.6 }, name: label, hovertemplate: `mean %{y:.3f}, round %{x}<extra>${label}</extra>` });
  return traces;
}

function trainingCurves() {
  const curves = data.training;
  show("training", curves !== null);
  if (!curves) return;
  const lines = data.nodes <= 64 ? "Thin lines are participants, thick lines their mean." : "Bands span the lowest to the highest participant.";
  const distance = " Consensus distance: how far the participants’ parameters are from their mean (root mean square); 0 = all the same.";
  say("training-text", lines + (curves.consensus ? distance : "") + (curves.thinned ? " Some rounds are left out of the curves." : ""));
  const round = { title: { text: "round" }, rangemode: "tozero" };
  show("accuracy-card", curves.accuracy !== null);
  if (curves.accuracy) {
    const mean = curves.accuracy.mean;
    chart("accuracy", curve(curves.accuracy, "one", "accuracy"), { xaxis: round, yaxis: { range: [0, 1.02], title: { text: "share classified correctly" } }, showlegend: false }, `Mean test accuracy by round; ${number(mean[mean.length - 1])} at the end.`);
  }
  const test = curves["test loss"];
  const means = test ? [{ x: test.rounds, y: test.mean, mode: modeOf(test), line: { color: colour("two"), width: 2.6, dash: "dash" }, name: "test data", hovertemplate: "test %{y:.3f}, round %{x}<extra></extra>" }] : [];
  const trained = curves.loss.mean.some((value) => value !== null) ? curve(curves.loss, "harmed", "training batches") : []; // a recorder knows none
  chart("loss", [...trained, ...means], { xaxis: round, yaxis: { rangemode: "tozero" } }, "Mean training and test loss by round.");
  show("consensus-card", curves.consensus !== null);
  if (curves.consensus) chart("consensus", curve(curves.consensus, "grey", "distance"), { xaxis: round, yaxis: { rangemode: "tozero" }, showlegend: false }, "Distance of the participants' parameters from their mean, by round.");
}

function reach() {
  const influence = data.influence;
  const decays = influence ? Object.entries(influence.decay) : [];
  const compared = influence ? Object.entries(influence.agreements) : [];
  show("reach", decays.length + compared.length > 0);
  show("decay-card", decays.length > 0);
  show("scatter-card", compared.length > 0);
  say("reach-title", !compared.length ? "How far influence reaches" : !decays.length ? "How accurate the estimates are" : "How far influence reaches, and how accurate the estimates are");
  $("decay-card").classList.toggle("alone", compared.length === 0);
  $("scatter-card").classList.toggle("alone", decays.length === 0);
  if (decays.length) {
    const bars = decays.map(([kind, values]) => ({ type: "bar", name: kind, x: values.map((_, hop) => hop), y: values, marker: { color: kindColour(kind) }, hovertemplate: "hop %{x}: %{y:.5f}<extra>%{data.name}</extra>" }));
    const [kind, values] = decays[0];
    chart("decay", bars, { xaxis: { title: { text: "hop" }, dtick: 1 }, yaxis: { rangemode: "tozero", title: { text: "mean size of influence (loss)" } }, bargroupgap: 0.1 }, `Mean size of influence by hop, ${kind}: ${values.map((value) => number(value)).join(", ")}.`);
  }
  if (compared.length) scatter(influence, compared);
}

function scatter(influence, compared) {
  const { values, round, source, of } = influence.points;
  const known = values.truth.filter((value) => value !== null);
  const ends = [Math.min(...known), Math.max(...known)];
  const where = source.map((node, i) => `${name(node)}, round ${round[i]}`);
  const clouds = compared.map(([kind]) => ({ x: values.truth, y: values[kind], text: where, mode: "markers", name: kind, marker: { color: kindColour(kind), symbol: KIND_SYMBOLS[kindPlace(kind) % KIND_SYMBOLS.length], size: 7, opacity: 0.75 }, hovertemplate: "%{text}<br>truth %{x:.5f}, estimate %{y:.5f}<extra>%{data.name}</extra>" }));
  const line = { x: ends, y: ends, mode: "lines", line: { color: colour("soft"), width: 1 }, hoverinfo: "skip", showlegend: false };
  const words = compared.map(([kind, a]) => `${kind}: Pearson ${fixed(a.pearson, 3)}`).join("; ");
  chart("scatter", [line, ...clouds], { xaxis: { title: { text: "true influence of an update (change in loss)" } }, yaxis: { title: { text: "estimate (change in loss)" } } }, `Estimates against the truth. ${words}.`);
  const measured = influence.tests.map((one) => `${fixed(one.mean, 3)} (round ${one.t})`).join(" → ");
  const some = values.truth.length < of ? ` ${values.truth.length} of ${of} points are drawn.` : "";
  say("scatter-text", `Each point is one update; on the line, the estimate is exact. Relative RMSE: the error divided by the size of the truth, 0 = exact.${measured ? ` The network’s test ${influence.tests[0].metric}: ${measured}.` : ""}${some}`);
  const within = (kind) => { const [mean, low, high] = influence.within[kind] ?? []; return mean === undefined ? "" : `${fixed(mean, 2)} (${fixed(low, 2)} to ${fixed(high, 2)})`; };
  const rows = compared.map(([kind, a]) => [kind, fixed(a.pearson, 4), fixed(a.spearman, 4), within(kind), fixed(a.relative_rmse, 3)]);
  fill("agreements", plainTable(["", "Pearson", "Spearman", "within a round (range)", "relative RMSE"], rows, "Accuracy of the estimates"));
}

function heatMap(id, z, { scale, zmax, zmin, label, hover }) {
  const names = data.shown.map(String);
  const room = $(id).clientWidth / (8 + 8 * Math.max(...names.map((text) => text.length)));
  const every = Math.ceil(names.length / Math.max(2, 0.7 * room));
  const some = names.filter((_, i) => i % every === 0);
  const ticks = { tickmode: "array", tickvals: some, ticktext: some };
  const axis = { type: "category", showgrid: false, zeroline: false, ...ticks, tickangle: 0 };
  const trace = { type: "heatmap", x: names, y: names, z, colorscale: scale, zmin, zmax, xgap: 1, ygap: 1, hoverongaps: false, hovertemplate: `${hover}<extra></extra>`, colorbar: { thickness: 10, outlinewidth: 0, len: 0.9, exponentformat: "power", tickfont: { size: 11 } } };
  return chart(id, [trace], { xaxis: { ...axis, title: { text: "source j" } }, yaxis: { ...axis, title: { text: "receiver k" }, autorange: "reversed" }, plot_bgcolor: colour("faint") }, label);
}

// Charts that the program wrote as plain data: "--name" is a colour of the theme, "signed" the scale of influence.
function resolved(value, key = "") {
  if (Array.isArray(value)) return value.map((one) => resolved(one, key));
  if (value !== null && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, resolved(one, name)]));
  if (typeof value !== "string" || key === "hovertemplate") return value;
  if (key === "colorscale" && value === "signed") return signedScale();
  return value.startsWith("--") ? colour(value.slice(2)) : value.replaceAll("<", "&lt;");
}

function writtenChart({ title, note, traces, layout: more, label }) {
  const { height, ...settings } = more;
  const place = element("div", { class: "chart", style: height ? `height:${height}px` : null });
  const figure = element("figure", {}, element("figcaption", {}, element("h4", {}, title), note ? element("p", { class: "muted" }, note) : null), place);
  figure.append(saveButtons(title, (format) => saveChart(place, title, format)));
  return [figure, () => chartIn(place, resolved(traces), resolved(settings), label)];
}
