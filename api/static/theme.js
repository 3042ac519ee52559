// The colour theme: as the system says, or light, or dark. Runs before the first paint.
"use strict";
{
  const names = { auto: "Auto", light: "Light", dark: "Dark" };
  const root = document.documentElement;
  const kept = () => {
    try {
      const value = localStorage.getItem("theme");
      return value in names ? value : "auto";
    } catch {
      return "auto";
    }
  };
  const apply = (theme) => {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    const label = document.getElementById("theme-name");
    if (label) label.textContent = names[theme];
    document.dispatchEvent(new Event("themechange"));
  };
  apply(kept());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(kept()));
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    button.hidden = false;
    apply(kept());
    button.addEventListener("click", () => {
      const order = Object.keys(names);
      const next = order[(order.indexOf(kept()) + 1) % order.length];
      try {
        localStorage.setItem("theme", next);
      } catch {
        // private windows may keep nothing: the theme then lasts as long as the page
      }
      apply(next);
    });
  });
}
