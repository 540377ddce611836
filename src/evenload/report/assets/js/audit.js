// The audit of a trace: where the devices' time went by cause, the bound, and what other dealing would have reached.

function renderAudit(view) {
  const { audit } = view;
  document.title = `Audit: ${clean(audit.source)} · evenload`;
  const tracks = decodeTracks(view.timeline);
  const model = { ...view.timeline, names: new Map(), tracks, load: { ...view.load, most: audit.devices.length } };
  const host = el("div", { class: "timeline" });
  const tools = timelineTools();
  const parts = [
    part("timeline", "Timeline", tools.nodes, timelineLegend(view, model), host),
    auditCulprits(audit),
    auditSteps(audit),
    audit.what_ifs.length > 0 && auditOthers(audit),
    auditDevices(audit),
    auditGaps(audit),
    audit.findings.length > 0 && part("findings", "Stragglers", null, el("ul", {}, audit.findings.map((one) => el("li", {}, one)))),
  ].filter(Boolean);
  const meta = el("div", { class: "meta" }, el("span", {}, plural(audit.devices.length, "device")), el("span", {}, plural(audit.n_spans, "span")), el("span", {}, time(audit.wall_s)));
  const faults = audit.faults.length > 0 && el("div", { class: "faults", role: "note" }, "To know of this trace:", el("ul", {}, audit.faults.map((one) => el("li", {}, one))));
  const head = el("header", {}, el("div", { class: "head" }, el("div", {}, brand(), el("h1", {}, `Audit: ${audit.source}`)), el("div", { class: "tools" }, themeButton())), meta, faults);
  const hero = el("div", { class: "hero" }, auditVerdict(audit), auditCauses(audit));
  const advice = el("p", { class: "advice" }, audit.sentence);
  document.getElementById("page").replaceChildren(...[head, hero, advice, jumps(parts), ...parts, footPart(view)].filter(Boolean));
  const drawn = new TimelineView(host, model, { view: (_, isWhole) => tools.see(isWhole), layout: () => {} });
  tools.act(drawn);
}

// Device-hours; of less than a tenth of one, seconds.
function deviceTime(hours) {
  return hours >= 0.1 ? `${figures(hours)}\u202fh` : time(3600 * hours);
}

function auditVerdict(audit) {
  const text = `of the devices’ time was work; ${deviceTime(audit.lost_h)} of device time were lost`;
  return el("div", {}, el("p", { class: "verdict-number" }, (100 * audit.share).toFixed(audit.share < 0.0995 ? 1 : 0), el("span", {}, "%")), el("p", { class: "verdict-text" }, text));
}

function auditCauses(audit) {
  const whole_h = audit.work_h + audit.lost_h;
  const losses = Object.entries(audit.causes)
    .filter(([, cause]) => cause.lost_h)
    .map(([name, cause]) => ({ name, says: cause.says, lost: cause.lost_h, texts: [percent(cause.lost_h / whole_h), `−${deviceTime(cause.lost_h)}`] }));
  const rows = stairs(whole_h, ["device time", deviceTime(whole_h)], losses, ["work", percent(audit.share), deviceTime(audit.work_h)]);
  const list = Object.entries(audit.causes).map(([name, cause]) => el("li", {}, el("b", {}, name), `: ${cause.says} (factor: ${cause.factor})`));
  const why = el("details", { class: "why" }, el("summary", {}, "What are these?"), el("p", {}, `Every nanosecond of every device belongs to work or to one cause. Gaps below ${time(audit.gap_s)} are launch gaps.`), el("ul", {}, list));
  return el("div", { class: "where" }, rows, why);
}

// Who came late to collectives: because of what, and what others waited for it.
function auditCulprits(audit) {
  if (!audit.culprits.length) return null;
  const most = Math.max(...audit.culprits.map((one) => one.cost_ns));
  const victims = (one) => Object.entries(one.victims).map(([name, ns]) => `${name} ${time(ns / 1e9)}`).join(", ");
  const columns = [
    { label: "Came late", name: true, value: (one) => [one.device, el("span", { class: "sub" }, `${one.reason}${one.span ? `: ${one.span}` : ""}`)] },
    { label: "", wide: true, value: (one) => meter(one.cost_ns / most) },
    { label: "Times", num: true, value: (one) => whole(one.n_late) },
    { label: "Cost others", num: true, value: (one) => time(one.cost_ns / 1e9) },
    { label: "Who waited", value: victims },
  ];
  const note = el("p", { class: "small quiet", style: { "margin-top": "12px" } }, "What a rank waited in collectives while nothing else ran on it, charged to the rank that came last, and to what that did more of since the collective before.");
  return part("culprits", "Late to collectives", null, table(columns, audit.culprits), note);
}

function auditSteps(audit) {
  if (!audit.steps.length) return null;
  const slow = (one) => one.slow.map((step) => `${step.number}: ${time(step.took_s)}, ${time(step.more_s)} more ${step.use}`).join("; ");
  const columns = [
    { label: "Steps of", name: true, value: (one) => one.devices.join(", ") },
    { label: "Number", num: true, value: (one) => whole(one.n_steps) },
    { label: "Median", num: true, value: (one) => time(one.median_s) },
    { label: "Longest", num: true, value: (one) => time(one.longest_s) },
    { label: "Slow ones", value: (one) => slow(one) || "–" },
  ];
  return part("steps", "Steps", null, table(columns, audit.steps));
}

function auditOthers(audit) {
  const rows = [{ name: "this run", wall_s: audit.wall_s, says: "as it was recorded" }, ...audit.what_ifs, { name: "bound", wall_s: audit.bound_s, says: "no plan for this work on these devices is faster, if pieces are not cut" }];
  const most = Math.max(...rows.map((one) => one.wall_s));
  const columns = [
    { label: "Dealing", name: true, value: (one) => [one.name, el("span", { class: "sub" }, one.says)] },
    { label: "", wide: true, value: (one) => meter(one.wall_s / most) },
    { label: "Takes", num: true, value: (one) => time(one.wall_s) },
    { label: "Change", num: true, value: (one) => (one === rows[0] || one.name === "bound" ? "" : change(audit.wall_s, one.wall_s, -1)) },
  ];
  const note = el("p", { class: "small quiet", style: { "margin-top": "12px" } }, "Simulated with the spans’ own durations, by the scheduler of real runs. Within a stretch of the run every piece of work is taken to be ready at its start; times in which no device worked stay as they were.");
  return part("others", "With other dealing", null, table(columns, rows), note);
}

function auditDevices(audit) {
  const worst = (one) => Object.entries(one.lost_s).reduce((a, b) => (b[1] > a[1] ? b : a));
  const bar = (one) => el("div", { class: "split", role: "img", "aria-label": `work ${percent(one.work_s / audit.wall_s)}` }, el("i", { class: "busy", style: { width: `${(100 * one.work_s) / audit.wall_s}%` } }));
  const columns = [
    { label: "Device", name: true, value: (one) => one.name },
    { label: "Its time", wide: true, value: bar },
    { label: "At work", num: true, value: (one) => percent(one.work_s / audit.wall_s) },
    { label: "Speed", num: true, title: "Beside the others, by spans of the same names; 1 where it is not clear", value: (one) => one.speed.toFixed(2) },
    { label: "Spans", num: true, value: (one) => whole(one.n_spans) },
    { label: "Lost most to", value: (one) => (worst(one)[1] > 0 ? `${worst(one)[0]} ${time(worst(one)[1])}` : "–") },
  ];
  return part("devices", "Devices", null, table(columns, audit.devices));
}

function auditGaps(audit) {
  if (!audit.gaps.length) return null;
  const columns = [
    { label: "From", num: true, value: (one) => time(one.start_s) },
    { label: "For", num: true, value: (one) => time(one.stop_s - one.start_s) },
    { label: "At work", name: true, value: (one) => one.device || "no device" },
    { label: "Span", name: true, value: (one) => one.span || "–" },
  ];
  return part("gaps", "Longest stretches with at most one device at work", null, table(columns, audit.gaps));
}
