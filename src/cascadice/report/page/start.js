// The page is told to begin when all of its program is there.

window.cascadice = { render };
followTheme();
listen();
render(JSON.parse($("data").textContent));
