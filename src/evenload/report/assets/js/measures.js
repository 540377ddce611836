// The numbers that items leave behind: curves of losses over rounds, stage times of proofs stacked.

function measuresPart(view, host) {
  const stages = Object.entries(view.measures || {});
  if (!stages.length) return null;
  const title = stages.length === 1 ? `Figures of each ${stages[0][0]}` : "Figures of the items";
  return part("measures", title, null, host);
}

// One chart for the seconds of a stage if there are several, one for each other number.
function measureCharts(measures) {
  return Object.entries(measures).flatMap(([stage, one]) => {
    const names = Object.keys(one.series);
    const times = names.filter((name) => /_s$/.test(name) && names.filter((other) => /_s$/.test(other)).length > 1);
    const lines = names.filter((name) => !times.includes(name));
    const points = (name) => one.series[name].map((value, i) => [i * one.width, value]);
    const at = (x) => (one.width > 1 ? `${stage} ${x}–${x + one.width - 1}, mean` : `${stage} ${x}`);
    const stacked = times.length ? [{ key: `${stage}\n times`, title: "Seconds, by part", at, isStacked: true, text: time, series: times.map((name, i) => ({ name: measure(name, 0).label, points: points(name), ink: `stage-${i % 6}` })) }] : [];
    return stacked.concat(lines.map((name) => ({ key: `${stage}\n${name}`, title: measure(name, 0).label, at, text: (value) => measure(name, value).text, series: [{ name: measure(name, 0).label, points: points(name), ink: "stage-0" }] })));
  });
}

class MeasureCharts {
  constructor(host) {
    this.host = host;
    this.boxes = new Map();
    new ResizeObserver(() => {
      for (const one of this.boxes.values()) one.chart?.resize();
    }).observe(host);
    onTheme(() => this.draw());
  }

  update(measures) {
    this.charts = measureCharts(measures);
    for (const one of this.charts) {
      if (this.boxes.has(one.key)) continue;
      const box = el("div", { class: "chart", role: "img", "aria-label": one.title, style: { height: "180px" } });
      const legend = one.series.length > 1 ? el("span", { class: "legend" }, one.series.map((s) => el("span", {}, swatch("", `var(--${s.ink})`), s.name))) : null;
      this.host.append(el("figure", {}, el("figcaption", { class: "chart-title" }, el("b", {}, one.title), legend), box));
      this.boxes.set(one.key, { box, chart: null });
    }
    this.draw();
  }

  draw() {
    for (const one of this.charts || []) {
      const made = this.boxes.get(one.key);
      if (!made.box.clientWidth) continue;
      made.chart ||= echarts.init(made.box, null, { renderer: "canvas" });
      made.chart.setOption(measureOption(one), true);
    }
  }
}

function measureOption(one) {
  const font = getComputedStyle(document.body).fontFamily;
  const longest = Math.max(...one.series.map((s) => s.points.length));
  const label = { color: color("ink-2"), fontSize: 12 };
  return {
    animation: false,
    textStyle: { fontFamily: font },
    grid: { left: 54, right: 12, top: 10, bottom: 24 },
    xAxis: { type: "value", min: 0, max: "dataMax", minInterval: 1, axisLine: { lineStyle: { color: color("rule-strong") } }, axisTick: { show: false }, splitLine: { show: false }, axisLabel: label },
    yAxis: { type: "value", scale: !one.isStacked, splitNumber: 3, axisLabel: { ...label, formatter: (value) => figures(value).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "") }, splitLine: { lineStyle: { color: color("rule") } } },
    tooltip: {
      trigger: "axis", confine: true, className: "chart-tip", padding: [9, 12], borderWidth: 0, backgroundColor: color("raised"),
      textStyle: { color: color("ink"), fontSize: 13, fontFamily: font }, axisPointer: { type: "line", lineStyle: { color: color("ink-3") } },
      formatter: (rows) => el("div", {}, el("strong", {}, one.at(rows[0].value[0])), el("dl", {}, rows.map((row) => [el("dt", {}, row.seriesName), el("dd", {}, one.text(row.value[1]))]))),
    },
    series: one.series.map((s) => ({
      type: "line", name: clean(s.name), data: s.points, symbol: longest > 60 ? "none" : "circle", symbolSize: 5, connectNulls: true,
      stack: one.isStacked ? "all" : null, lineStyle: { width: one.isStacked ? 0.5 : 1.8, color: color(s.ink) }, itemStyle: { color: color(s.ink) },
      areaStyle: one.isStacked ? { color: color(s.ink), opacity: 0.75 } : null,
    })),
  };
}
