// A page that is served while its run trains asks for newer data until the run has ended.

const PATIENCE = 2; // questions without an answer before the reader is told
const address = location.pathname.replace(/\/?$/, "/data");
let version = "", unanswered = 0;

async function ask() {
  const answer = await fetch(address, { cache: "no-store", headers: version ? { "If-None-Match": version } : {} });
  if (answer.status === 304) return;
  if (!answer.ok) throw new Error(`the run answered ${answer.status}`);
  const fresh = await answer.json();
  version = answer.headers.get("ETag");
  keepingFocus(() => render(fresh));
}

async function follow() {
  tellLife();
  while (!data.live.ended) {
    await new Promise((done) => setTimeout(done, 1000 * data.live.every * Math.min(unanswered + 1, 10)));
    try {
      await ask();
      unanswered = 0;
    } catch (error) {
      unanswered += 1;
      console.info(error.message);
    }
    tellLife();
  }
}

function tellLife() {
  const { ended, rounds, report } = data.live;
  const lost = !ended && unanswered >= PATIENCE;
  $("live").dataset.state = ended ? "ended" : lost ? "lost" : "live";
  say("live", ended ? data.run.status : lost ? "no answer" : `live: ${data.run.rounds ?? 0} of ${rounds} rounds`);
  show("live", true);
  const words = ended ? `The run has ended: ${data.run.status}. The same page, to keep and to pass on, is ${report}.`
    : lost ? `The run does not answer. If it has ended, its page is ${report}; if it was killed, cascadice report makes one.` : "";
  if ($("live-note").textContent !== words) say("live-note", words); // a screen reader would say it again
  show("live-note", words !== "");
}

// What is drawn anew takes the place of what it was, for those who go by keyboard.
function keepingFocus(draw) {
  const before = document.activeElement, around = before?.parentElement?.closest("[id]")?.id;
  draw();
  if (!around || document.contains(before)) return;
  const called = (one) => one.dataset.row ?? one.getAttribute("aria-label") ?? one.textContent;
  const again = [...$(around).querySelectorAll(before.tagName)].find((one) => called(one) === called(before));
  again?.focus({ preventScroll: true });
}

follow();
