// Influence as selected: totals of participants, or what one did to each receiver, with 95 % intervals over rounds.

const scored = () => (data.influence ? data.influence.scored[state.kind] : null);
const hopsToChoose = () => (scored() ? scored().hops : 0);

// Whether the data say whom an update reached, or only its total.
const cascading = () => hopsToChoose() > 0;

// What the selected round and hop say: key(source, receiver, hop) names what a row is summed into, undefined leaves it out.
function totals(key) {
  const rows = data.influence && data.influence.cascades[state.kind], found = new Map();
  for (let i = 0; rows && i < rows.value.length; i++) {
    if (state.hop !== ALL && rows.hop[i] !== state.hop) continue;
    const [round, value, into] = [rows.round[i], rows.value[i] ?? 0, key(rows.source[i], rows.receiver[i], rows.hop[i])];
    if (into === undefined || (state.round !== ALL && round !== state.round)) continue;
    if (!found.has(into)) found.set(into, { value: 0, rounds: new Map() });
    const one = found.get(into);
    if (round === state.round) one.value += value;
    else one.rounds.set(round, (one.rounds.get(round) ?? 0) + value);
  }
  for (const one of found.values()) one.half = halfWidth([...one.rounds.values()]);
  return found;
}

// Half of the 95 % interval of a total over all rounds; null of one round. A round without a row has no influence.
function halfWidth(values) {
  const { rounds, "half width": factor } = scored();
  if (state.round !== ALL || factor === null) return null;
  const mean = values.reduce((sum, value) => sum + value, 0) / rounds.length;
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) + (rounds.length - values.length) * mean ** 2;
  return factor * Math.sqrt(squares / (rounds.length - 1));
}

const nothing = { value: 0, half: null };
const unknown = { value: 0, half: null, unknown: true };
const verdict = ({ value, half, unknown }) => (unknown ? "unknown" : value === 0 ? "neither" : half !== null && Math.abs(value) <= half ? "unclear" : value < 0 ? "helped" : "harmed");
const VERDICTS = { helped: "helped", harmed: "harmed", unclear: "within noise", neither: "no influence", unknown: "known to its own process" };
// Both with the decimals that show two digits of the half width, more of them would be noise; and that 0 is excluded, where it is.
function interval({ value, half }) {
  if (!half) return signed(value);
  let decimals = Math.min(100, Math.max(0, 1 - Math.floor(Math.log10(half))));
  while (Math.abs(value) > half && decimals < 12 && Math.abs(value).toFixed(decimals) === half.toFixed(decimals)) decimals++;
  const text = half >= 1e-6 && Math.max(Math.abs(value), half) >= 1e-4 && half < 1e6 ? [value.toFixed(decimals), half.toFixed(decimals)] : [number(value), number(half, 2)];
  return `${value > 0 ? "+" : ""}${text.join(" ± ")}`.replaceAll("-", "−");
}

// What sizes each participant: its influence on everyone or, with a source selected, that source's influence on it.
function sizes() {
  const of = state.source === null || !cascading() ? (source) => source : (source, receiver) => (source === state.source && receiver !== ALL ? receiver : undefined);
  const found = totals(of);
  const own = (node) => !data.members || data.members.includes(node) || (state.source !== null && cascading());
  return new Map(data.shown.map((node) => [node, found.get(node) ?? (own(node) ? nothing : unknown)]));
}

function matricesOf(round) {
  if (!data.mixing) return [{ receiver: [], source: [], weight: [] }];
  const { matrices, of } = data.mixing;
  return of[round] ? of[round].map((place) => matrices[place]) : [matrices[0]];
}

// Links that the cascade of the selected source can travel up to the chosen hop: link -> its hop, and what it did there.
function travelled() {
  const steps = matricesOf(state.round), links = new Map();
  const far = !cascading() ? 1 : state.hop === ALL ? hopsToChoose() : state.hop;
  const done = data.influence ? totals((source, receiver, hop) => (source !== state.source ? undefined : cascading() ? `${hop}-${receiver}` : "all")) : new Map();
  let reached = new Set([state.source]);
  for (let hop = 1; hop <= far; hop++) {
    const { receiver, source } = steps[Math.min(hop - 1, steps.length - 1)];
    const next = new Set();
    receiver.forEach((k, i) => {
      if (!reached.has(source[i])) return;
      next.add(k);
      const did = done.get(cascading() ? `${hop}-${k}` : "all") ?? nothing;
      if (k !== source[i] && !links.has(`${source[i]}-${k}`)) links.set(`${source[i]}-${k}`, { hop, verdict: verdict(did) });
    });
    reached = next;
  }
  return links;
}
