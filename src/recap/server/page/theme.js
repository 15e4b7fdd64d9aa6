// Light or dark: what the system says, until somebody chooses; the choice is remembered. No module, so that it runs
// before anything is painted.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");

  function remembered() {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null; // storage may be switched off; then the system's theme holds
    }
  }

  function apply(theme) {
    root.dataset.theme = theme;
    document.getElementById("theme")?.setAttribute("aria-pressed", String(theme === "dark"));
    document.dispatchEvent(new CustomEvent("themechange"));
  }

  const current = () => remembered() ?? (system.matches ? "dark" : "light");
  apply(current());
  system.addEventListener("change", () => apply(current()));
  document.addEventListener("DOMContentLoaded", () => {
    apply(current());
    document.getElementById("theme").addEventListener("click", () => {
      const theme = root.dataset.theme === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("theme", theme);
      } catch (error) {
        console.info("the theme is not remembered:", error.message);
      }
      apply(theme);
    });
  });
})();
