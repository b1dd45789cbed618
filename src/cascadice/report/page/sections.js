// Samples, and the sections of the applications.

function sampleCards() {
  const scored = data.samples;
  show("samples", scored !== null);
  if (!scored) return;
  const rounds = scored.rounds.length === 1 ? `round ${scored.rounds[0]}` : `${scored.rounds.length} rounds from ${scored.rounds[0]} to ${scored.rounds[scored.rounds.length - 1]}`;
  say("samples-title", scored.caution ? "Samples with the lowest and the highest scores" : "Samples that clearly helped and harmed");
  say("samples-helped-title", scored.caution ? "Lowest" : "Helped");
  say("samples-harmed-title", scored.caution ? "Highest" : "Harmed");
  say("samples-text", `${scored.caution ? `${scored.caution} ` : ""}Influence of each sample by ${scored.kind}, summed over its uses in ${rounds}: ${measured(scored.kind, "sample")}, negative = it helped. ${scored.clear ? `${scored.clear} ` : ""}The strongest of ${scored.count.toLocaleString("en")} scored samples are shown.${[...scored.helped, ...scored.harmed].some((one) => one.became) ? " An arrow shows the label that an injected fault put in place of the true one, in how many of the uses." : ""}`);
  for (const side of ["helped", "harmed"]) {
    fill(`samples-${side}`, ...scored[side].map((one) => sampleCard(one, side)));
    if (!scored[side].length) fill(`samples-${side}`, element("li", {}, scored.caution ? "None." : `No sample clearly ${side}.`));
  }
}

function sampleCard(one, side) {
  const label = one.label ?? null;
  return element("li", {},
    one.picture ? element("img", { src: one.picture, alt: `Sample ${one.sample}${label === null ? "" : `, true label ${label}`}` }) : null,
    one.text ? element("pre", {}, one.text) : null,
    element("b", { class: data.samples.caution ? null : side }, interval(one)),
    element("div", {}, label === null ? `sample ${one.sample}` : `true label “${label}”, sample ${one.sample}`),
    one.became ? element("div", { class: "became" }, `“${label}” → ${one.became.map(([to, times]) => `“${to}”${times > 1 ? ` ${times}×` : ""}`).join(", ")}`) : null,
    element("div", { class: "muted" }, `${name(one.node)}, ${plural(one.uses, "use")}`));
}

function plainTable(columns, rows, caption) {
  const textual = columns.map((_, place) => rows.some((row) => typeof row[place] === "string" && isNaN(row[place].replaceAll("−", "-"))));
  const kind = (text, place) => (textual[place] || place === 0 ? `text${String(text).length > 40 ? " long" : ""}` : null); // a sentence must not become a column of words
  const cell = (tag, text, place) => element(tag, { class: kind(text, place), scope: tag === "th" ? "col" : null }, text);
  const values = columns.map((_, place) => rows.map((row) => row[place]));
  const decimals = columns.map((column, place) => sharedDecimals(values[column.startsWith("±") ? place - 1 : place]));
  const plus = values.map((column) => column.some((value) => value < 0 && !Number.isInteger(value))); // influence is shown with its sign
  return element("table", {}, element("caption", { class: "hidden" }, caption),
    element("thead", {}, element("tr", {}, ...columns.map((column, place) => cell("th", column, place)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((value, place) => cell("td", (plus[place] && value > 0 ? "+" : "") + cellText(value, decimals[place]), place))))));
}

// How many decimals give the largest number of a column four digits; null where they are whole, or too large or small to be written out.
function sharedDecimals(values) {
  const numbers = values.filter((value) => typeof value === "number" && isFinite(value));
  const largest = Math.max(...numbers.map(Math.abs));
  if (numbers.every(Number.isInteger) || largest < 1e-4 || largest >= 1e6) return null;
  return Math.max(0, 3 - Math.floor(Math.log10(largest)));
}

function cellText(value, decimals) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  const text = decimals === null ? (Number.isInteger(value) ? String(value) : number(value, 4)) : value.toFixed(decimals);
  return (/[1-9]/.test(text) ? text : text.replace("-", "")).replaceAll("-", "−"); // no −0.00
}

// Rebuilt only if they changed: a live page is rendered every few seconds, and their charts are not redrawn in place.
let built = "";
function applications() {
  const now = JSON.stringify([data.final, data.sections, document.documentElement.dataset.theme]);
  if (now === built) return;
  built = now;
  fill("final", ...(data.final ? [application(data.final)] : []));
  fill("sections", ...data.sections.map(application));
  for (const draw of undrawn.splice(0)) draw();
}

const undrawn = []; // charts are drawn once they are in the page and have a size

function charts(result) {
  const drawn = result.charts.map(writtenChart);
  undrawn.push(...drawn.map(([, draw]) => draw));
  return element("div", { class: "charts" }, ...drawn.map(([figure]) => figure));
}

// A picture that opens at its natural size; the browser closes the dialog on Escape and restores the focus.
function figure(src, alt) {
  const button = element("button", { type: "button", class: "figure", "aria-haspopup": "dialog" }, element("img", { src, alt }), element("span", {}, "Enlarge"));
  button.addEventListener("click", () => {
    fill("large-picture", element("img", { src, alt }));
    $("large").showModal();
  });
  return button;
}

$("large").addEventListener("click", (event) => { if (event.target === $("large")) $("large").close(); });

// A section's id has a prefix: a result may be called "search" or "table", as elements of the page are.
const NAMES = { contributions: "Final models", contribution: "Keep" }; // in the navigation, where the two looked alike
const sectionId = (name) => `result-${name}`;

function application(result) {
  const id = sectionId(result.name);
  const title = element("h2", { id: `${id}-title` }, capital(result.title));
  const lead = result.lead ? element("p", { class: "lead" }, result.lead) : null;
  const section = element("section", { id, "data-name": NAMES[result.name] ?? capital(result.name), "aria-labelledby": `${id}-title` }, title, lead);
  const card = element("div", { class: "card" });
  if (result.findings.length) card.append(element("ul", { class: "findings" }, ...result.findings.map(sentence)));
  if (result.charts?.length) card.append(charts(result));
  else if (result.picture) card.append(figure(result.picture, `${result.title}. ${result.findings[0] ?? ""}`));
  if (result.rows.length) {
    const scroll = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table: ${result.title}` }, plainTable(result.columns, result.rows, result.title));
    card.append(scroll);
    if (result.count > result.rows.length) card.append(element("p", { class: "muted" }, `${result.rows.length} of ${result.count} rows.`));
  }
  section.append(card);
  return section;
}
