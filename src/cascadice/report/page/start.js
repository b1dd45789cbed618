// Last of the scripts: everything is defined, so the page can start.

window.cascadice = { render };
followTheme();
listen();
render(JSON.parse($("data").textContent));
begin();
