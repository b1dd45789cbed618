// A page that is served: asks for newer data until the run has ended or, if it is only viewed, as long as it is open.

const PATIENCE = 2; // unanswered requests before the reader is told
const address = location.pathname.replace(/\/?$/, "/data");
let version = "", unanswered = 0;

async function ask() {
  const answer = await fetch(address, { cache: "no-store", headers: version ? { "If-None-Match": version } : {} });
  if (answer.status === 304) return;
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  const fresh = await answer.json();
  version = answer.headers.get("ETag");
  keepingFocus(() => render(fresh));
}

async function follow() {
  showStatus();
  while (!data.live.ended) {
    await new Promise((done) => setTimeout(done, 1000 * data.live.every * Math.min(unanswered + 1, 10)));
    try {
      await ask();
      unanswered = 0;
    } catch (error) {
      unanswered += 1;
      console.info(error.message);
    }
    showStatus();
  }
}

function showStatus() {
  const { ended, training, rounds, report } = data.live;
  const lost = !ended && unanswered >= PATIENCE;
  $("live").dataset.state = ended ? "ended" : lost ? "lost" : "live";
  say("live", ended ? data.run.status : lost ? "no response" : training ? `live: ${data.run.rounds ?? 0} of ${rounds} rounds` : data.run.status ?? "served");
  show("live", true);
  const note = ended ? `The run has ended: ${data.run.status}. This page is saved as ${report}.`
    : lost && training ? `The run is not responding. If it has ended, its page is ${report}; if it was killed, make one with cascadice report.`
      : lost ? `The server has stopped. Start it again with cascadice view, or write the page with cascadice report.` : "";
  if ($("live-note").textContent !== note) say("live-note", note); // else a screen reader would repeat it
  show("live-note", note !== "");
}

// Redrawing replaces elements: give the focus to the replacement, for keyboard users.
function keepingFocus(draw) {
  const before = document.activeElement, around = before?.parentElement?.closest("[id]")?.id;
  draw();
  if (!around || document.contains(before)) return;
  const label = (one) => one.dataset.row ?? one.getAttribute("aria-label") ?? one.textContent;
  const again = [...$(around).querySelectorAll(before.tagName)].find((one) => label(one) === label(before));
  again?.focus({ preventScroll: true });
}

follow();
