// Numbers as people read them: three figures that matter, and a unit.

function figures(x, n = 3) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e6) return `${trim((x / 1e6).toPrecision(n))} M`;
  if (size >= 10 ** n) return Math.round(x).toLocaleString("en").replaceAll(",", "\u2009");
  if (size < 1e-4) return x.toExponential(1);
  return trim(x.toPrecision(n));
}

function trim(text) {
  return text.includes(".") && !text.includes("e") ? text : text;
}

function whole(n) {
  return Math.round(n).toLocaleString("en").replaceAll(",", "\u2009");
}

// [number, unit] of a time
function timeParts(s) {
  if (s === null || s === undefined || !Number.isFinite(s)) return ["–", ""];
  const size = Math.abs(s);
  if (size === 0) return ["0", "s"];
  if (size < 0.9995e-3) return [figures(s * 1e6), "µs"];
  if (size < 0.9995) return [figures(s * 1e3), "ms"];
  if (size < 99.95) return [figures(s), "s"];
  if (size < 3599.5) return [`${Math.floor(Math.round(s) / 60)}:${pad(Math.round(s) % 60)}`, "min"];
  return [`${Math.floor(Math.round(s / 60) / 60)}:${pad(Math.round(s / 60) % 60)}`, "h"];
}

function pad(n) {
  return String(n).padStart(2, "0");
}

function time(s) {
  return timeParts(s).join("\u202f").trim();
}

// A moment on the axis, with as many digits as the step between ticks needs.
function moment(t, step) {
  if (step >= 60 || t >= 600) {
    const rounded = Math.round(t);
    const seconds = step < 1 ? (t % 60).toFixed(decimals(step)).padStart(3 + decimals(step), "0") : pad(rounded % 60);
    const minutes = Math.floor((step < 1 ? t : rounded) / 60);
    return minutes >= 60 ? `${Math.floor(minutes / 60)}:${pad(minutes % 60)}:${seconds}` : `${minutes}:${seconds}`;
  }
  if (step >= 1) return `${Math.round(t)} s`;
  if (step >= 1e-3 && t >= 1) return `${t.toFixed(decimals(step))} s`;
  if (step >= 1e-3) return `${(t * 1e3).toFixed(0)} ms`;
  return `${(t * 1e3).toFixed(Math.max(0, decimals(step) - 3))} ms`;
}

function decimals(step) {
  return step >= 1 ? 0 : Math.min(9, Math.ceil(-Math.log10(step) - 1e-9));
}

function percent(share) {
  if (share === null || share === undefined) return "–";
  return `${(share * 100).toFixed(share > 0 && share < 0.0995 ? 1 : 0)}\u202f%`;
}

function bytes(n) {
  if (!n && n !== 0) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return `${figures(n)}\u202f${units[i]}`;
}

function plural(n, one, many) {
  return `${whole(n)} ${n === 1 ? one : many || `${one}s`}`;
}

// "psnr_gain_db_at_0.1" is written "psnr gain at 0.1", its unit with the number
const UNITS = { db: "dB", s: "s", ms: "ms", bytes: "B", px: "px" };
const UNIT = new RegExp(`_(${Object.keys(UNITS).join("|")})(?=_|$)`);

function measure(name, value) {
  const unit = UNITS[name.match(UNIT)?.[1]];
  const label = name.replace(UNIT, "").replaceAll("_", " ");
  const sign = /gain|delta|change/.test(name) && value > 0 ? "+" : "";
  return { label, text: `${sign}${figures(value)}${unit ? `\u202f${unit}` : ""}` };
}

function itemsText(index, n) {
  if (index < 0) return plural(n, "item");
  return n > 1 ? `items ${index}–${index + n - 1}` : `item ${index}`;
}
