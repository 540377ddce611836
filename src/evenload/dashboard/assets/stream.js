// The live page: frames come through server-sent events, stretches of the timeline are asked for as they are
// looked at. The newest frame is drawn, at most once in a while; those in between are passed over.

const sections = {};
const stretch = { asked: null, timeline: null, range: null, busy: false, again: false };
const connection = { state: "lost", source: null, failures: 0 };
const DRAW_MS = 250;

function connect() {
  connection.source?.close();
  const source = new EventSource("stream");
  connection.source = source;
  source.onopen = () => setState("live");
  source.onmessage = (message) => {
    connection.failures = 0;
    connection.state = "live";
    Object.assign(sections, JSON.parse(message.data));
    askTimeline();
  };
  source.onerror = () => {
    connection.failures += 1;
    setState(connection.failures > 4 ? "refused" : "lost");
    // A browser comes back by itself, but not after an answer that is no stream.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, Math.min(30, 2 ** connection.failures) * 1000);
  };
}

function setState(state) {
  connection.state = state;
  schedule();
}

// The whole run comes ready-made; a part of it with as much to each side, so that moving needs no waiting.
function timelineUrl() {
  const width = Math.max(100, Math.min(2400, Math.round(window.innerWidth)));
  const { range } = stretch;
  if (!range) return `timeline?width=${width}`;
  const span = range.to - range.from;
  const from = Math.max(0, range.from - span);
  return `timeline?width=${3 * width}&from=${from.toFixed(6)}&to=${(range.to + span).toFixed(6)}`;
}

async function askTimeline() {
  if (document.hidden) return;
  if (stretch.busy) {
    stretch.again = true;
    return;
  }
  stretch.busy = true;
  try {
    const answer = await fetch(timelineUrl(), { credentials: "same-origin" });
    if (answer.ok) stretch.timeline = await answer.json();
  } catch {
    // The stream says that the connection is lost.
  }
  stretch.busy = false;
  schedule();
  if (stretch.again) {
    stretch.again = false;
    setTimeout(askTimeline, 60);
  }
}

let drawnAt = 0;
let isScheduled = false;

function schedule() {
  if (isScheduled) return;
  isScheduled = true;
  setTimeout(() => requestAnimationFrame(draw), Math.max(0, drawnAt + DRAW_MS - performance.now()));
}

function draw() {
  isScheduled = false;
  drawnAt = performance.now();
  if (!sections.run?.n_events || !stretch.timeline) return waiting();
  const { run } = sections;
  const { timeline } = stretch;
  const view = {
    version: sections.version,
    summary: { ...sections.summary, failures: sections.failures, slowest: sections.slowest },
    timeline: { ...timeline, moves: sections.moves, end_s: run.is_running ? Math.max(timeline.end_s, run.now_s) : timeline.end_s },
    load: run.is_running ? settled(sections.load) : sections.load,
    gallery: sections.gallery,
    measures: sections.measures,
    plan: sections.plan,
    notes: sections.notes,
    config: sections.config,
    faults: sections.faults,
    links: false,
    live: { run, state: connection.state, loads: sections.loads, queues: sections.queues, control: sections.control, report: "report.html", act },
  };
  const page = render(view);
  page.onWindow = looked;
}

// What runs is told when it is over, so the last moments look idle and are not: they are left out.
function settled(load) {
  const last = Object.values(load.busy).map((row) => row.findLastIndex((share) => share > 0));
  const recent = last.filter((i) => i > load.n * 0.8);
  const n = recent.length ? Math.min(...recent) : load.n;
  const cut = (rows) => Object.fromEntries(Object.entries(rows).map(([name, row]) => [name, row.slice(0, n)]));
  return { ...load, n, busy: cut(load.busy), items_per_s: load.items_per_s.slice(0, n), imbalance: load.imbalance.slice(0, n) };
}

function waiting() {
  const said = sections.faults?.length ? sections.faults.join(" ") : "Waiting for the run …";
  document.getElementById("page").replaceChildren(el("p", { class: "empty" }, said));
}

let looking = 0;

function looked(range, isWhole) {
  const next = isWhole ? null : { from: range.from, to: range.to };
  if (JSON.stringify(next) === JSON.stringify(stretch.range)) return;
  stretch.range = next;
  clearTimeout(looking);
  looking = setTimeout(askTimeline, 80);
}

async function act(action, device) {
  try {
    const answer = await fetch("control", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ action, device }), credentials: "same-origin" });
    if (!answer.ok) window.alert(await answer.text());
  } catch {
    setState("lost");
  }
}

document.addEventListener("visibilitychange", () => document.hidden || askTimeline());
document.getElementById("page").replaceChildren(el("p", { class: "empty" }, "Waiting for the run …"));
connect();
