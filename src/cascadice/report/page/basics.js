// Shared by all pages: elements, numbers as text, navigation, light and dark. Each page has its own `render`.

let data = null;

const $ = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const fill = (id, ...children) => $(id).replaceChildren(...children);
const say = (id, text) => { $(id).textContent = text; };
const show = (id, visible) => { $(id).hidden = !visible; };

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e-4 && size < 1e6 ? value.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(size)))) : value.toExponential(digits - 1);
}
const fixed = (value, digits) => (value === null ? "–" : value.toFixed(digits));
const signed = (value) => (value > 0 ? "+" : "") + number(value).replaceAll("-", "−");
const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Flags, which are not broken at their hyphens, and `commands` are set as code.
function sentence(text) {
  const shown = capital(text).replace(/(^|[ (])-(?=\d)/g, "$1−").replaceAll(" -> ", " → ");
  const code = (part) => (part.startsWith("`") ? element("code", {}, part.slice(1, -1)) : element("code", { class: "flag" }, part));
  return element("li", {}, ...shown.split(/(`[^`]+`|--[a-z][a-z-]*)/).map((part, place) => (place % 2 ? code(part) : part)));
}

function navigation() {
  const sections = [...document.querySelectorAll("section[data-name]")].filter((section) => !section.hidden);
  const same = [...$("nav").children].map((link) => link.textContent).join() === sections.map((section) => section.dataset.name).join();
  if (!same) fill("nav", ...sections.map((section) => element("a", { href: `#${section.id}` }, section.dataset.name)));
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  say("theme", theme === "dark" ? "Light" : "Dark");
  $("theme").setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"} colours`);
}

// The theme chosen by the button, if the browser stores anything for local files; null: the system's theme.
const THEME = "cascadice-theme";
function storedTheme() {
  try { return localStorage.getItem(THEME); } catch { return null; }
}
function storeTheme(theme) {
  try { if (theme === null) localStorage.removeItem(THEME); else localStorage.setItem(THEME, theme); } catch { /* for this visit only */ }
}

function followTheme() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const system = () => (dark.matches ? "dark" : "light");
  setTheme(storedTheme() ?? system());
  dark.addEventListener("change", () => { setTheme(storedTheme() ?? system()); render(data); });
  $("theme").addEventListener("click", () => {
    const chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    setTheme(chosen);
    storeTheme(chosen === system() ? null : chosen);
    render(data);
  });
}
