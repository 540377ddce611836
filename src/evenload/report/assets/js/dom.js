// Elements from plain values. Text from a run only ever becomes text nodes and attributes, never markup.

const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

// Control characters and marks that turn the reading direction are shown, not obeyed.
function clean(text) {
  return String(text).replace(UNSEEN, "\ufffd");
}

function el(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : clean(value));
  }
  node.append(...children.flat(3).filter((one) => one !== null && one !== undefined && one !== false).map(asNode));
  return node;
}

function asNode(one) {
  return one instanceof Node ? one : document.createTextNode(clean(one));
}

function swatch(kind, color) {
  return el("i", { class: `swatch ${kind}`, style: color ? { "--c": color } : null, "aria-hidden": "true" });
}

// A bar that is full to a share; `props` say what it tells, without them it is beside its number.
function meter(share, props = { "aria-hidden": "true" }, ink = null) {
  return el("div", { class: "meter", ...props }, el("i", { style: { width: `${100 * share}%`, ...(ink && { background: ink }) } }));
}

function part(id, title, tools, ...content) {
  const head = el("div", { class: "part-head" }, el("h2", {}, title), tools && el("div", { class: "tools" }, tools));
  return el("section", { class: "part", id, "aria-label": title }, head, ...content);
}

// columns: {label, value(row), num, wide, name, title}; value gives text or a node.
function table(columns, rows) {
  const kind = (column) => ["num", "wide", "name"].filter((one) => column[one]).join(" ");
  const cell = (tag, column, content) =>
    el(tag, { class: kind(column), title: tag === "th" ? column.title : null, scope: tag === "th" ? "col" : null }, content);
  return el(
    "div",
    { class: "table" },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, columns.map((one) => cell("th", one, one.label)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, columns.map((one) => cell("td", one, one.value(row)))))),
    ),
  );
}
