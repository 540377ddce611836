// Where the time went: the share that was useful, and each loss as a step down from the whole time to it.

// "0.71" of a factor; one that took nothing says nothing.
function factorText(value) {
  return value === null ? "not known" : value > 0.9995 ? "1" : value.toFixed(value > 0.9945 ? 3 : 2);
}

// Seconds with as many places as let a person add them up; one unit for all.
function secondsOf(factors) {
  const places = factors.wall_s >= 1000 ? 0 : factors.wall_s >= 100 ? 1 : factors.wall_s >= 1 ? 2 : 4;
  return (s) => `${s.toFixed(places)}\u202fs`;
}

function usefulVerdict(summary, isGoing) {
  const [number, word] = summary.factors === null ? ["–", ""] : [(100 * summary.factors.share).toFixed(summary.factors.share < 0.0995 ? 1 : 0), "%"];
  const none = isGoing ? "Nothing has finished yet." : "Nothing useful finished, so there is nothing to share out.";
  const some = `of the time was useful work at the devices’ speed${isGoing ? ", so far" : ""}`;
  return el("div", {}, el("p", { class: "verdict-number" }, number, word && el("span", {}, word)), el("p", { class: "verdict-text" }, summary.factors === null ? none : some));
}

// A row for each loss: hatched is what it took, full is what is left, on the scale of the whole.
// whole, useful: [label, ...texts]; losses: {name, says, lost, texts, isQuiet}
function stairs(total, whole, losses, useful) {
  const share = (x) => `${(100 * x) / total}%`;
  const track = (...bars) => el("dd", { class: "track", "aria-hidden": "true" }, bars);
  const values = (texts, kind = "") => texts.map((text) => el("dd", { class: `value${texts.length < 2 ? " unknown" : ""}${kind}` }, text));
  let left = total;
  const rows = [el("dt", {}, whole[0]), track(el("i", { class: "left", style: { width: "100%" } })), values(["", whole[1]])];
  for (const one of losses) {
    left = Math.max(0, left - one.lost);
    const lost = one.lost > 0 && el("i", { class: "lost", style: { left: share(left), width: share(one.lost) } });
    rows.push(el("dt", { class: one.isQuiet ? "quiet" : null, title: one.says }, one.name), track(el("i", { class: "left", style: { width: share(left) } }), lost), values(one.texts, one.isQuiet ? " quiet" : ""));
  }
  const [name, ...texts] = useful;
  return el("dl", { class: "factors" }, rows, el("dt", { class: "sum" }, name), track(el("i", { class: "useful", style: { width: share(left) } })), values(texts, " sum"));
}

function factorRows(summary, isGoing) {
  const { factors } = summary;
  if (factors === null) return null;
  const seconds = secondsOf(factors);
  const left = factors.parts.reduce((before, one) => Math.max(0, before - one.lost_s), factors.wall_s);
  const losses = factors.parts.map((one) => {
    const isSmall = one.value !== null && one.value > 0.9995;
    const texts = one.value === null ? ["not known"] : [factorText(one.value), one.lost_s > 0 && !isSmall ? `−${seconds(one.lost_s)}` : "–"];
    return { name: one.name, says: one.says, lost: one.lost_s, texts, isQuiet: one.value === null || isSmall };
  });
  const shown = stairs(factors.wall_s, [isGoing ? "time so far" : "time", seconds(factors.wall_s)], losses, ["useful", factors.share.toFixed(2), seconds(left)]);
  return el("div", { class: "where" }, shown, whatTheyAre(factors));
}

function whatTheyAre(factors) {
  return el(
    "details",
    { class: "why" },
    el("summary", {}, "What are these?"),
    el("p", {}, "Every second of every worker is counted once, by the device’s speed, and belongs to useful work or to one loss. A factor is what is left after its loss over what there was before it; so the factors multiply to the useful share."),
    el("ul", {}, factors.parts.map((part) => el("li", {}, el("b", {}, part.name), `: ${part.says}`))),
  );
}

function adviceText(summary) {
  return summary.advice ? el("p", { class: "advice" }, summary.advice.text.replace(/(\d) s\b/g, "$1\u00a0s")) : null;
}

const MOST_WORKERS = 64;

// The seconds of each worker, as the timeline draws them, and what they come to: a person can add them up.
function workerSecondsPart(summary) {
  const { factors } = summary;
  const known = factors.workers.filter((one) => one.price > 0);
  const kinds = factors.parts.map((part) => part.name).filter((name) => known.some((one) => (one.lost_s[name] ?? 0) > 0));
  const seconds = (s) => (s > 0 ? s.toFixed(factors.wall_s >= 100 ? 1 : factors.wall_s >= 1 ? 2 : 4) : "–");
  const priced = (of) => known.reduce((sum, one) => sum + one.price * of(one), 0);
  const inTask = priced((one) => one.in_task_s);
  const total = { name: "by price", price: 1, in_task_s: inTask, lost_s: Object.fromEntries(kinds.map((name) => [name, priced((one) => one.lost_s[name] ?? 0)])) };
  const columns = [
    { label: "Worker", name: true, value: (one) => one.name },
    { label: "Price", num: true, title: "Its share of the speed of all: what one of its seconds is worth", value: (one) => one.price.toFixed(3) },
    ...kinds.map((name) => ({ label: name, num: true, title: factors.parts.find((part) => part.name === name).says, value: (one) => seconds(one.lost_s[name] ?? 0) })),
    { label: "in the task", num: true, title: "For results that counted", value: (one) => seconds(one.in_task_s) },
    { label: "sum", num: true, value: (one) => seconds(one.in_task_s + Object.values(one.lost_s).reduce((sum, s) => sum + s, 0)) },
  ];
  const more = known.length - MOST_WORKERS;
  return part("seconds", "Seconds of each worker", null, table(columns, [...known.slice(0, MOST_WORKERS), total]), el("p", { class: "small quiet", style: { "margin-top": "12px" } }, movedText(factors, inTask), more > 0 ? ` Not shown: ${plural(more, "worker")}.` : ""));
}

// What is between the sums of the workers and the factors.
function movedText(factors, inTask) {
  const lost = (name) => factors.parts.find((part) => part.name === name).lost_s;
  const seconds = secondsOf(factors);
  const useful = factors.useful_s + lost("device efficiency");
  const slower = inTask - useful;
  const said = ["Each row sums to the time of the run. The last row is each column times the prices: the seconds of the factors at the top."];
  if (slower > 5e-5 * factors.wall_s) said.push(`Of the seconds in the task, ${seconds(slower)} would not have been needed had each stage run where it is cheapest: they count as balance.`);
  if (lost("longest item") > 0) said.push(`Of the balance, ${seconds(lost("longest item"))} are the longest item’s.`);
  if (lost("device efficiency") > 0) said.push(`Of the useful seconds, ${seconds(lost("device efficiency"))} are the devices’ efficiency.`);
  return said.join(" ");
}
