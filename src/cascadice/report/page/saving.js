// Every figure can be saved as PNG or SVG, on the background of its card.

function saveFile(address, name) {
  element("a", { href: address, download: name }).click();
  if (address.startsWith("blob:")) setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function saveButtons(title, save) {
  const button = (format) => {
    const one = element("button", { type: "button", class: "quiet", "aria-label": `Save as ${format.toUpperCase()}: ${title}` }, format.toUpperCase());
    one.addEventListener("click", () => save(format));
    return one;
  };
  return element("div", { class: "save" }, button("png"), button("svg"));
}

const fileName = (title) => `${data.folder}-${title}`.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");

async function saveChart(place, title, format) {
  const size = { width: place.clientWidth, height: place.clientHeight };
  const layout = { ...place.layout, ...size, autosize: false, paper_bgcolor: colour("card"), title: { text: title.replaceAll("<", "&lt;"), font: { size: 15 } }, margin: { ...place.layout.margin, t: 56 } };
  saveFile(await Plotly.toImage({ data: place.data, layout }, { ...size, format, scale: 2 }), `${fileName(title)}.${format}`);
}

// The network is drawn by style sheet, which a file of its own would lack: copy what it computes.
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-weight", "font-family"];

function networkFile() {
  const source = $("graph"), copy = source.cloneNode(true), [, , width, height] = source.getAttribute("viewBox").split(" ");
  const [from, to] = [source, copy].map((one) => [...one.querySelectorAll("*")]);
  from.forEach((one, i) => { const style = getComputedStyle(one); for (const key of STYLES) to[i].style.setProperty(key, style.getPropertyValue(key)); });
  for (const [key, value] of Object.entries({ xmlns: SVG, width, height })) copy.setAttribute(key, value);
  copy.prepend(shape("rect", { width, height, fill: colour("card") }));
  const font = { "font-family": "system-ui, sans-serif", fill: colour("soft"), x: 14 };
  copy.append(shape("text", { ...font, y: 24, "font-size": 15 }, data.title), shape("text", { ...font, y: height - 12, "font-size": 13 }, data.influence ? `${capital(state.kind)}, ${selectedText()}. Blue: helped (loss went down); orange: harmed; ring: within noise or none.` : "Line width: mixing weight."));
  return new XMLSerializer().serializeToString(copy);
}

async function saveNetwork(format) {
  const text = networkFile(), address = `data:image/svg+xml,${encodeURIComponent(text)}`;
  if (format === "svg") { saveFile(address, `${fileName("network")}.svg`); return; }
  const picture = new Image();
  picture.src = address;
  await picture.decode();
  const canvas = element("canvas", { width: 2 * picture.width, height: 2 * picture.height });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  saveFile(canvas.toDataURL("image/png"), `${fileName("network")}.png`);
}

function addSaveButtons() {
  for (const card of document.querySelectorAll("figure.card")) {
    const place = card.querySelector(".chart"), title = card.querySelector("h3")?.textContent;
    if (place) card.append(saveButtons(title, (format) => saveChart(place, title, format)));
  }
  $("graph").closest("figure").append(saveButtons("the network", saveNetwork));
}
