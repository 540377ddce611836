// What `evenload bench` measured: a part for each trial, speed-ups drawn beside Amdahl's prediction and the ideal.

const BENCH_HEADS = {
  work_s: ["Work", time], in_all_s: ["In all", time], start_s: ["To the first result", time], round_s: ["Round", time],
  us_per_task: ["Per task", (x) => time(x / 1e6)], tasks_per_s: ["Tasks/s", figures], items_per_s: ["Items/s", figures], per_s: ["Per second", figures],
  mib_per_s: ["MiB/s", figures], ms_per_mib: ["Per MiB", (x) => time(x / 1e3)],
  speed_up: ["Speed-up", (x) => `${figures(x)}×`], efficiency: ["Efficiency", percent], amdahl: ["Amdahl predicts", (x) => `${figures(x)}×`],
  x_bound: ["× of the bound", (x) => `${x.toFixed(3)}×`], utilisation_std: ["Utilisation ±", percent],
  of_best: ["Of the best possible", percent], worst: ["Worst draw", percent], stalled_of_best: ["With a stall", percent],
  plan_ms_per_layer: ["Plan, per layer", (x) => time(x / 1e3)], route_us_per_layer: ["Route, per layer", (x) => time(x / 1e6)],
  imbalance: ["Imbalance", (x) => x.toFixed(3)], bound: ["Bound", (x) => x.toFixed(3)], p99: ["99th of 100", (x) => x.toFixed(3)],
};

function renderBench(view) {
  document.title = "Bench · evenload";
  const { machine } = view;
  const drawings = [];
  const parts = view.trials.map((trial) => {
    const content = trial.rows.length ? [benchTable(trial.rows), speedUps(trial.rows, drawings)] : [el("p", { class: "empty" }, `Left out: ${trial.skipped}. `, trial.hint && el("code", { class: "mono" }, trial.hint))];
    const note = [trial.note, ...trial.missing].filter(Boolean).join(" ");
    return part(`trial-${trial.name}`, trial.title, trial.took_s ? el("span", { class: "quiet small" }, `took ${time(trial.took_s)}`) : null, note && el("p", { class: "small quiet", style: { margin: "-8px 0 12px", "max-width": "80ch" } }, note), ...content);
  });
  const facts = { processor: machine.cpu, cores: machine.cores, devices: machine.devices.join(", "), "load before": machine.load, system: machine.system, ...machine.versions };
  parts.push(part("machine", "Measured on", null, el("dl", { class: "pairs" }, Object.entries(facts).map(([name, value]) => [el("dt", {}, name), el("dd", {}, plain(value))]))));
  const meta = el("div", { class: "meta" }, el("span", {}, machine.cpu), el("span", {}, plural(machine.cores, "core")), el("span", {}, machine.date), view.quick && el("span", { class: "status" }, "quick: small sizes"));
  document.getElementById("page").replaceChildren(el("header", {}, el("div", { class: "head" }, el("div", {}, brand(), el("h1", {}, "What this machine does")), el("div", { class: "tools" }, themeButton())), meta), jumps(parts), ...parts, footPart(view));
  const draw = () => {
    for (const one of drawings) {
      one.chart ||= echarts.init(one.box, null, { renderer: "canvas" });
      one.chart.setOption(measureOption(one), true);
    }
  };
  new ResizeObserver(() => drawings.forEach((one) => one.chart?.resize())).observe(document.getElementById("page"));
  onTheme(draw);
  draw();
}

function benchTable(rows) {
  const columns = Object.keys(rows[0]).map((key, i) => {
    const [label, text] = BENCH_HEADS[key] || [key.replaceAll("_", " "), plain];
    const value = (row) => (row[key] === null || row[key] === undefined ? "–" : typeof row[key] === "string" ? row[key] : text(row[key]));
    return { label: i ? label : label[0].toUpperCase() + label.slice(1), name: i === 0, num: i > 0, value };
  });
  return table(columns, rows);
}

// Only where the same work ran on different numbers of devices.
function speedUps(rows, drawings) {
  const measured = rows.filter((row) => row.speed_up !== null && row.speed_up !== undefined && row.n);
  if (measured.length < 3) return null;
  const box = el("div", { class: "chart", role: "img", "aria-label": "Speed-up by number of devices", style: { height: "220px", "max-width": "560px" } });
  const lines = [["measured", (row) => row.speed_up, "stage-0"], ["Amdahl predicts", (row) => row.amdahl, "stage-1"], ["ideal", (row) => row.n / measured[0].n, "ink-3"]];
  const legend = el("div", { class: "legend", style: { "margin-top": "14px" } }, lines.map(([label, , ink]) => el("span", {}, swatch("", `var(--${ink})`), label)));
  drawings.push({ box, at: (n) => plural(n, "device"), text: (value) => `${figures(value)}×`, series: lines.map(([name, value, ink]) => ({ name, ink, points: measured.map((row) => [row.n, value(row)]) })) });
  return el("div", {}, legend, box);
}
