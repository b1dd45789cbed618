// The table of all rows: search, sort, download.

const PAGE = 25;
const listing = { order: [], sort: null, down: false, page: 0, texts: [], file: "", asked: "" };

const cells = (row) => data.table.columns.map((column, place) => tableCell(column, data.table.values[place][row]));

function tableCell(column, value) {
  if (value === null) return "";
  if (column in data.table.words) return data.table.words[column][value];
  return data.table.sums.includes(column) && value === -1 ? "all" : String(value);
}

// `note` is a function because the table may be absent.
function setTable(note, hint, file) {
  show("table", data.table !== null);
  if (!data.table) return;
  listing.file = file;
  $("search").placeholder = `Search, e.g. ${hint}`;
  const count = data.table.values[0].length;
  listing.texts = Array.from({ length: count }, (_, row) => searchable(row));
  say("table-note", note());
  search();
}

const tight = (text) => text.toLowerCase().replace(/:\s*([<>]?)\s*/g, ":$1");

// "participant 3" is a person's way to write participant:3, "participant 3 as source" of source:3, "round > 20" of round:>20.
const WHO = ["participant", "source", "receiver", "node"];
function words(text) {
  const columns = [...WHO, ...data.table.columns].map((column) => tight(column).replace(/[^a-z0-9 ]/g, ".")).join("|");
  const roles = tight(text).replace(/,(?=\s|$)/g, " ").replace(/(^|\s)(?:participant|node)s?\s+#?(\d+)\s+as\s+(?:an?\s+|the\s+)?(source|receiver)(?=\s|$)/g, "$1$3:$2");
  return roles.replace(new RegExp(`(^|\\s)(${columns})s?\\s+#?([<>]?)\\s*(-?[\\d.]+)(?=\\s|$)`, "g"), "$1$2:$3$4").split(/\s+/).filter(Boolean);
}
const searchable = (row) => cells(row).map((text, place) => tight(`${data.table.columns[place]}:${text}`)).join(" ");

// Every word must occur; source:3 finds source 3 but not 13 or 30, round:>20 every round after 20.
function search() {
  const asked = words($("search").value), tests = asked.map(searched);
  listing.asked = asked.map(inWords).join(", ");
  listing.order = [];
  listing.texts.forEach((text, row) => { if (tests.every((test) => test(text, row))) listing.order.push(row); });
  sortRows();
}

// The columns in which participant:3 is looked for.
const columnsOfParticipants = () => data.table.columns.filter((column) => WHO.includes(column));

function inWords(word) {
  const [, named, value] = word.match(/^(.+?):(.+)$/) ?? [];
  if (named === undefined) return `“${word}”`;
  if (named === "source" || named === "receiver") return `participant ${value} as ${named}`;
  const where = named === "participant" || named === "node" ? columnsOfParticipants().filter((column) => column !== named) : [];
  return `${named} ${value.replace(/^([<>])/, "$1 ")}${where.length ? ` as ${where.join(" or ")}` : ""}`;
}

function searched(word) {
  const [, whose] = word.match(/^(?:participant|node):(\d+)$/) ?? [];
  if (whose !== undefined) {
    const places = columnsOfParticipants().map((column) => data.table.columns.indexOf(column));
    return (_, row) => places.some((place) => tableCell(data.table.columns[place], data.table.values[place][row]) === whose);
  }
  const [, named, sign, bound] = word.match(/^(.+):([<>])([-+.e\d]+)$/) ?? [];
  const place = data.table.columns.findIndex((column) => tight(column) === named);
  if (place >= 0) {
    const value = (row) => parseFloat(tableCell(data.table.columns[place], data.table.values[place][row]));
    return sign === ">" ? (_, row) => value(row) > bound : (_, row) => value(row) < bound;
  }
  return word.includes(":") ? (text) => ` ${text} `.includes(` ${word} `) || ` ${text}`.includes(` ${word},`) : (text) => text.includes(word);
}

function sortRows() {
  const place = data.table.columns.indexOf(listing.sort);
  if (place >= 0) {
    const values = data.table.values[place], sign = listing.down ? -1 : 1;
    listing.order.sort((a, b) => sign * ((values[a] ?? Infinity) - (values[b] ?? Infinity)) || a - b);
  }
  drawTable();
}

// What may be searched for instead: a column that has numbers, which one that is summed up does not.
function nothingMatches() {
  const { columns, values, words, sums } = data.table;
  const numbers = (column) => values[columns.indexOf(column)].filter((value) => value !== null && !(sums.includes(column) && value === -1));
  const column = columns.find((one) => !(one in words) && !WHO.includes(one) && new Set(numbers(one)).size > 1);
  const value = column === undefined ? "" : `, or a column and its value, such as ${column} > ${numbers(column).reduce((a, b) => Math.min(a, b))}`;
  return `Nothing matches. Search for a word, participant 3${value}.`;
}

function drawTable() {
  const total = listing.order.length, pages = Math.max(1, Math.ceil(total / PAGE));
  listing.page = Math.min(Math.max(listing.page, 0), pages - 1);
  const rows = listing.order.slice(listing.page * PAGE, (listing.page + 1) * PAGE);
  const textual = (place) => (data.table.columns[place] in data.table.words ? "text" : null);
  fill("rows", element("caption", { class: "hidden" }, $("table-title").textContent),
    element("thead", {}, element("tr", {}, ...data.table.columns.map((column, place) => heading(column, textual(place))))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells(row).map((text, place) => element("td", { class: textual(place), "data-column": data.table.columns[place] }, textual(place) ? text : text.replaceAll("-", "−")))))));
  const all = total < listing.texts.length ? ` of ${listing.texts.length.toLocaleString("en")}` : "";
  say("table-count", `${plural(total, "row")}${all}${listing.asked ? ` with ${listing.asked}` : ""}${total ? "" : `. ${nothingMatches()}`}`);
  say("place", `${listing.page + 1} / ${pages}`);
  $("earlier").disabled = listing.page === 0;
  $("later").disabled = listing.page >= pages - 1;
}

function heading(column, align) {
  const sorted = listing.sort === column ? (listing.down ? "descending" : "ascending") : null;
  const button = element("button", { type: "button" }, column);
  button.addEventListener("click", () => {
    [listing.down, listing.sort] = [listing.sort === column && !listing.down, column];
    sortRows();
    [...document.querySelectorAll("#rows th button")].find((one) => one.textContent === column)?.focus();
  });
  return element("th", { class: align, "data-column": column, scope: "col", "aria-sort": sorted }, button);
}

const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

function csv() {
  return [data.table.columns, ...listing.order.map(cells)].map((row) => row.map(quoted).join(",")).join("\n") + "\n";
}

function download() {
  const address = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
  element("a", { href: address, download: `${listing.file}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

$("search").addEventListener("input", () => { listing.page = 0; search(); });
$("download").addEventListener("click", download);
$("earlier").addEventListener("click", () => { listing.page -= 1; drawTable(); });
$("later").addEventListener("click", () => { listing.page += 1; drawTable(); });
