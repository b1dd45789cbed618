// Beside the network: everyone ranked by influence, or whom the selected participant reached.

function drawPanel() {
  const chosen = state.source;
  const ranked = [...sizes()].filter(([, one]) => !one.unknown).filter(([, { value }]) => chosen === null || !cascading() || value !== 0).sort((a, b) => Math.abs(b[1].value) - Math.abs(a[1].value));
  say("panel-title", chosen !== null && cascading() ? capital(name(chosen)) : data.influence ? `${data.members ? "Participants of this process" : "Everyone"}, ranked by influence` : "Everyone");
  show("clear", chosen !== null);
  say("panel-text", panelText(chosen, ranked));
  const most = Math.max(...ranked.map(([, { value, half }]) => Math.abs(value) + (half ?? 0)), 1e-300);
  fill("ranking", ...(data.influence ? ranked : data.shown.map((node) => [node, null])).map(([node, one]) => rankedRow(node, one, most)));
}

function rankedRow(node, one, most) {
  const injected = data.injected[node] ? element("em", {}, ` ${data.injected[node]}`) : null;
  const row = element("button", { type: "button", "data-row": node, "aria-current": node === state.source }, element("span", { class: "name" }, `Participant ${node}`, injected));
  if (one !== null) {
    const did = verdict(one), tone = { helped: "helped", harmed: "harmed" }[did] ?? "grey";
    const part = (size) => `${100 * Math.max(0, Math.min(1, size / most))}%`;
    const strip = element("span", { class: "strip" }, element("i", { style: `width:${part(Math.abs(one.value))};background:${colour(tone)}` }));
    if (one.half) strip.append(element("u", { style: `left:${part(Math.abs(one.value) - one.half)};right:calc(100% - ${part(Math.abs(one.value) + one.half)})` }));
    row.append(element("span", { class: "value", title: VERDICTS[did] }, interval(one), did === "unclear" ? element("em", {}, " within noise") : null), strip);
  }
  row.addEventListener("click", () => select(node));
  return element("li", {}, row);
}

function panelText(chosen, ranked) {
  if (!data.influence) return chosen === null ? "Select a participant to see who receives its updates." : `${capital(name(chosen))}: its updates are received by ${plural(travelled().size, "participant")}.`;
  const intervals = state.round === ALL && scored()["half width"] !== null ? ` ± is a 95 % interval, from how much it varies between ${scored().rounds.length} rounds.` : "";
  if (chosen === null) return `Influence by ${state.kind} (${selectedText()}): ${measured(state.kind)}; negative = it helped.${intervals} Select a participant to see ${cascading() ? "whom it reached" : "who receives its updates"}.`;
  const other = Object.entries(data.influence.scored).find(([, { hops }]) => hops > 0);
  if (!cascading()) return `${capital(name(chosen))}: total influence ${interval(sizes().get(chosen))} (${roundText()}). Its updates are received by ${plural(travelled().size, "participant")}; ${state.kind}: only totals are known, not whom they reached.${other ? ` Choose the estimator ${other[0]} to see that.` : ""}`;
  const others = totals((source, receiver) => (source === chosen && receiver === ALL ? ALL : undefined)).get(ALL)?.value ? " and others not drawn" : "";
  const sum = totals((source) => (source === chosen ? source : undefined)).get(chosen) ?? nothing;
  if (!ranked.length && !others) return `Reached nobody (${selectedText()}).`;
  return `Its updates reached ${plural(ranked.length, "participant")}${others}; total influence ${interval(sum)} (${selectedText()}).${intervals}`;
}

// A sum over all rounds that were scored, which may be a few of the run's.
function roundText() {
  if (state.round !== ALL) return `round ${state.round}`;
  const summed = scored()?.summed ?? data.run.rounds;
  return summed < data.run.rounds ? `${summed} of ${data.run.rounds} rounds` : "all rounds";
}
const selectedText = () => (cascading() ? `${roundText()}, ${hopText()}` : roundText());
const hopText = () => (state.hop === ALL ? "all hops" : state.hop === 0 ? "hop 0: on itself, before gossip" : `after ${plural(state.hop, "hop")}`);
