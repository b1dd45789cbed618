// Samples, and what the commands over the run found.

function sampleCards() {
  const found = data.samples;
  show("samples", found !== null);
  if (!found) return;
  const relabelled = Object.values(data.known).some((what) => what.includes("label"));
  const rounds = found.rounds.length === 1 ? `round ${found.rounds[0]}` : `${found.rounds.length} rounds from ${found.rounds[0]} to ${found.rounds[found.rounds.length - 1]}`;
  say("samples-text", `${capital(found.kind)}, summed over the uses of each sample in ${rounds}; the strongest of ${found.count.toLocaleString("en")} scored.${relabelled ? " Labels are as stored: a participant told to change them trained on others." : ""}`);
  for (const side of ["helped", "harmed"]) {
    fill(`samples-${side}`, ...found[side].map((one) => sampleCard(one, side)));
    if (!found[side].length) fill(`samples-${side}`, element("li", {}, `No sample ${side}.`));
  }
}

function sampleCard(one, side) {
  const label = one.label ?? null;
  return element("li", {},
    one.picture ? element("img", { src: one.picture, alt: `Sample ${one.sample}${label === null ? "" : `, labelled ${label}`}` }) : null,
    one.text ? element("pre", {}, one.text) : null,
    element("b", { class: side }, signed(one.value)),
    element("div", {}, label === null ? `sample ${one.sample}` : `“${label}”, sample ${one.sample}`),
    element("div", { class: "muted" }, `${name(one.node)}, ${plural(one.uses, "use")}`));
}

function plainTable(columns, rows, caption) {
  const textual = columns.map((_, place) => rows.some((row) => typeof row[place] === "string" && isNaN(row[place].replace("−", "-"))));
  const cell = (tag, text, place) => element(tag, { class: textual[place] || place === 0 ? "text" : null, scope: tag === "th" ? "col" : null }, text);
  return element("table", {}, element("caption", { class: "hidden" }, caption),
    element("thead", {}, element("tr", {}, ...columns.map((column, place) => cell("th", column, place)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((value, place) => cell("td", cellText(value), place))))));
}

function cellText(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "number" && !Number.isInteger(value) ? number(value, 4).replace("-", "−") : String(value);
}

function applications() {
  fill("sections", ...data.sections.map(application));
}

// A picture that opens at its natural size, to scroll; the browser closes the dialog on Escape and gives the focus back.
function figure(src, alt) {
  const button = element("button", { type: "button", class: "figure", "aria-haspopup": "dialog" }, element("img", { src, alt }), element("span", {}, "Enlarge"));
  button.addEventListener("click", () => {
    fill("large-picture", element("img", { src, alt }));
    $("large").showModal();
  });
  return button;
}

$("large").addEventListener("click", (event) => { if (event.target === $("large")) $("large").close(); });

function application(found) {
  const title = element("h2", { id: `${found.name}-title` }, capital(found.title));
  const section = element("section", { id: found.name, "data-name": capital(found.name), "aria-labelledby": `${found.name}-title` }, title);
  const card = element("div", { class: "card" });
  if (found.findings.length) card.append(element("ul", { class: "findings" }, ...found.findings.map(sentence)));
  if (found.picture) card.append(figure(found.picture, `${found.title}. ${found.findings[0] ?? ""}`));
  if (found.rows.length) {
    const scroll = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table: ${found.title}` }, plainTable(found.columns, found.rows, found.title));
    card.append(scroll);
    if (found.count > found.rows.length) card.append(element("p", { class: "muted" }, `${found.rows.length} of ${found.count} rows.`));
  }
  section.append(card);
  return section;
}
