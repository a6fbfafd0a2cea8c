// A plain script in the head, so that the page has its colours before it is drawn for the first time.
(() => {
  let theme = null;
  try {
    theme = localStorage.getItem("theme");
  } catch {
    // Storage can be forbidden; the system's setting applies then.
  }
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
})();
