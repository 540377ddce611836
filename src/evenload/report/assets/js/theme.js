// Light or dark: the reader's choice, else the system's. Whoever draws asks `color()` and redraws on `onTheme`.

const theme = { choice: "auto", listeners: [], cache: {} };
const systemDark = window.matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return theme.choice === "auto" ? systemDark.matches : theme.choice === "dark";
}

function color(name) {
  theme.cache[name] ||= getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  return theme.cache[name];
}

function stageColor(i) {
  return color(`stage-${i % 6}`);
}

function applyTheme() {
  document.documentElement.dataset.look = isDark() ? "dark" : "light";
  theme.cache = {};
  for (const one of theme.listeners) one();
}

// Returns what ends it.
function onTheme(redraw) {
  theme.listeners.push(redraw);
  return () => {
    theme.listeners = theme.listeners.filter((one) => one !== redraw);
  };
}

function themeButton() {
  const names = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
  const next = { auto: "light", light: "dark", dark: "auto" };
  const button = el("button", { class: "button", type: "button", title: "System, light or dark" }, names[theme.choice]);
  button.addEventListener("click", () => {
    theme.choice = next[theme.choice];
    try {
      localStorage.setItem("evenload-theme", theme.choice);
    } catch {
      // A page opened from a file may have no storage; the choice then lasts as long as the page.
    }
    button.textContent = names[theme.choice];
    applyTheme();
  });
  return button;
}

function startTheme() {
  try {
    const kept = localStorage.getItem("evenload-theme");
    if (["light", "dark"].includes(kept)) theme.choice = kept;
  } catch {
    // as above
  }
  systemDark.addEventListener("change", applyTheme);
  window.addEventListener("beforeprint", () => {
    document.documentElement.dataset.look = "light";
    theme.cache = {};
    for (const one of theme.listeners) one();
  });
  window.addEventListener("afterprint", applyTheme);
  applyTheme();
}
