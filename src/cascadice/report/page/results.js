// Figures that were reproduced: what was found, the picture, the numbers, and every single point.

let chosen = null; // whose points are in the table

function render(fresh) {
  data = fresh;
  const alone = data.results.length === 1;
  say("status", `${data.folder} · cascadice ${data.version}`);
  say("title", data.title);
  fill("notes", ...data.notes.map((text) => element("p", {}, text)));
  show("notes", data.notes.length > 0);
  show("contents-card", !alone);
  fill("contents", ...data.results.map(({ name, title }) => element("li", {}, element("a", { href: `#${name}` }, title))));
  fill("sections", ...data.results.map((result) => resultSection(result, alone)));
  setPoints();
  navigation();
}

function resultSection(found, alone) {
  const section = application(alone ? { ...found, title: "What was found" } : found);
  const claim = found.claim ? element("p", { class: "lead" }, `The paper: ${found.claim}`) : null;
  section.querySelector("h2").after(...[claim].filter(Boolean));
  const open = found.points && !alone ? element("button", { type: "button", class: "quiet" }, "Its points") : null;
  open?.addEventListener("click", () => { choose(found.name); $("table").scrollIntoView(); $("search").focus({ preventScroll: true }); });
  section.querySelector(".card").append(element("p", { class: "muted how" }, element("code", {}, found.command), ` ${found.made}`), ...[open].filter(Boolean));
  if (alone) section.dataset.name = "Result";
  else delete section.dataset.name; // the overview lists them all; the bar has room for a few words only
  return section;
}

function choose(name) {
  [chosen, listing.sort, listing.page] = [name, null, 0];
  $("search").value = "";
  setPoints();
}

function setPoints() {
  const having = data.results.filter((result) => result.points);
  const one = having.find((result) => result.name === chosen) ?? having[0];
  data.table = one ? one.points : null;
  chosen = one ? one.name : null;
  show("which-label", having.length > 1);
  fill("which", ...having.map(({ name }) => element("option", { value: name, selected: name === chosen }, name)));
  const what = one?.points.what ?? "points";
  setTable(() => `Every single ${what.slice(0, -1)} of ${one.name}. ${one.points.note}`, one ? hint(one.points) : "", `${chosen}-${what}`);
}

// A search that finds the first row, of one word.
function hint({ columns, values, words }) {
  const told = columns.map((column, place) => `${column}:${words[column]?.[values[place][0]] ?? values[place][0]}`);
  return told.find((text) => !/[\s,]/.test(text)) ?? "a word";
}

function listen() {
  $("which").addEventListener("change", (event) => choose(event.target.value));
}
