// Light or dark: the system's choice, until the reader makes another.

const SYSTEM = matchMedia("(prefers-color-scheme: dark)");
const THEME = "lamplighter-theme";

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : SYSTEM.matches;
}

function palette() {
  return isDark()
    ? { ink: "#e8e6e1", soft: "#a5abb3", grid: "#2c3138", ground: "#14171b", raised: "#1d2126", line: "#4a525c" }
    : { ink: "#1c1e21", soft: "#5a5f66", grid: "#e9e7e2", ground: "#ffffff", raised: "#ffffff", line: "#b9b5ac" };
}

function remembered(theme) {
  try {
    if (theme) localStorage.setItem(THEME, theme);
    return localStorage.getItem(THEME);
  } catch {
    return theme; // storage is closed to some files: the choice then lasts as long as the page
  }
}

function startTheme(changed) {
  const button = document.getElementById("theme");
  const show = () => (button.textContent = isDark() ? "Light theme" : "Dark theme");
  const before = remembered();
  if (before === "light" || before === "dark") document.documentElement.dataset.theme = before;
  button.hidden = false;
  show();
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    remembered(theme);
    show();
    changed();
  });
  SYSTEM.addEventListener("change", () => {
    show();
    changed();
  });
}
