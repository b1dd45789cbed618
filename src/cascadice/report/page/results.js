// Reproduced figures and studies: findings, picture, numbers and every point.

let chosen = null; // the result whose points are in the table

function render(fresh) {
  data = fresh;
  const alone = data.results.length === 1;
  say("status", `${data.folder} · cascadice ${data.version}`);
  say("title", data.title);
  fill("notes", ...data.notes.map((text) => element("p", {}, text)));
  show("notes", data.notes.length > 0);
  show("contents-card", !alone);
  fill("contents", ...data.results.map(({ name, title }) => element("li", {}, element("a", { href: `#${sectionId(name)}` }, title))));
  fill("sections", ...data.results.map((result) => resultSection(result, alone)));
  setPoints();
  navigation();
}

function resultSection(result, alone) {
  const section = application(alone ? { ...result, title: "What was found" } : result);
  const claim = result.claim ? element("p", { class: "lead" }, `The paper: ${result.claim}`) : null;
  section.querySelector("h2").after(...[claim].filter(Boolean));
  const open = result.points && !alone ? element("button", { type: "button", class: "quiet" }, "Show its points") : null;
  open?.addEventListener("click", () => { choose(result.name); $("table").scrollIntoView(); $("search").focus({ preventScroll: true }); });
  section.querySelector(".card").append(element("p", { class: "muted how" }, element("code", {}, result.command), ` ${result.made}`), ...[open].filter(Boolean));
  if (alone) section.dataset.name = "Result";
  else delete section.dataset.name; // the overview lists them all; the bar has no space for them
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
  setTable(() => `Every point of ${one.name}. ${one.points.note}`, one ? hint(one.points) : "", `${chosen}-points`);
}

// A search of one word that finds the first row.
function hint({ columns, values, words }) {
  const searches = columns.map((column, place) => `${column}:${words[column]?.[values[place][0]] ?? values[place][0]}`);
  return searches.find((text) => !/[\s,]/.test(text)) ?? "a word";
}

function listen() {
  $("which").addEventListener("change", (event) => choose(event.target.value));
}

function begin() {}
