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
    auditOthers(audit),
    auditDevices(audit),
    auditGaps(audit),
    audit.findings.length > 0 && part("findings", "Stragglers", null, el("ul", {}, audit.findings.map((one) => el("li", {}, one)))),
  ].filter(Boolean);
  const meta = el("div", { class: "meta" }, el("span", {}, plural(audit.devices.length, "device")), el("span", {}, plural(audit.n_spans, "span")), el("span", {}, time(audit.wall_s)));
  const faults = audit.faults.length > 0 && el("div", { class: "faults", role: "note" }, "To know of this trace:", el("ul", {}, audit.faults.map((one) => el("li", {}, one))));
  const head = el("header", {}, el("div", { class: "head" }, el("div", {}, brand(), el("h1", {}, `Audit: ${audit.source}`)), el("div", { class: "tools" }, themeButton())), meta, faults);
  const hero = el("div", { class: "hero" }, auditVerdict(audit), auditCauses(audit));
  const advice = audit.largest && el("p", { class: "advice" }, `The largest loss: ${audit.largest} (${audit.causes[audit.largest].says}). ${audit.remedy}`);
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

// A row for each cause: hatched is what it took, full is what is left, on the scale of all devices' time.
function auditCauses(audit) {
  const whole_h = audit.work_h + audit.lost_h;
  const share = (h) => `${(100 * h) / whole_h}%`;
  let left = whole_h;
  const rows = [el("dt", {}, "device time"), el("dd", { class: "track" }, el("i", { class: "left", style: { width: "100%" } })), el("dd", { class: "value" }, ""), el("dd", { class: "value" }, deviceTime(whole_h))];
  for (const [name, cause] of Object.entries(audit.causes)) {
    if (!cause.lost_h) continue;
    left = Math.max(0, left - cause.lost_h);
    rows.push(
      el("dt", { title: cause.says }, name),
      el("dd", { class: "track", "aria-hidden": "true" }, el("i", { class: "left", style: { width: share(left) } }), el("i", { class: "lost", style: { left: share(left), width: share(cause.lost_h) } })),
      el("dd", { class: "value" }, percent(cause.lost_h / whole_h)),
      el("dd", { class: "value" }, `−${deviceTime(cause.lost_h)}`),
    );
  }
  rows.push(el("dt", { class: "sum" }, "work"), el("dd", { class: "track" }, el("i", { class: "useful", style: { width: share(audit.work_h) } })), el("dd", { class: "value sum" }, percent(audit.share)), el("dd", { class: "value sum" }, deviceTime(audit.work_h)));
  const list = Object.entries(audit.causes).map(([name, cause]) => el("li", {}, el("b", {}, name), `: ${cause.says} (factor: ${cause.factor})`));
  const why = el("details", { class: "why" }, el("summary", {}, "What are these?"), el("p", {}, `Every nanosecond of every device belongs to work or to one cause. Gaps below ${time(audit.gap_s)} are launch gaps.`), el("ul", {}, list));
  return el("div", { class: "where" }, el("dl", { class: "factors" }, rows), why);
}

function auditOthers(audit) {
  const rows = [{ name: "this run", wall_s: audit.wall_s, says: "as it was recorded" }, ...audit.what_ifs, { name: "bound", wall_s: audit.bound_s, says: "no plan for this work on these devices is faster, if pieces are not cut" }];
  const most = Math.max(...rows.map((one) => one.wall_s));
  const columns = [
    { label: "Dealing", name: true, value: (one) => [one.name, el("span", { class: "sub" }, one.says)] },
    { label: "", wide: true, value: (one) => el("div", { class: "meter", "aria-hidden": "true" }, el("i", { style: { width: `${(100 * one.wall_s) / most}%` } })) },
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
