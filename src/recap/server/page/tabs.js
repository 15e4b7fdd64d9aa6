// The views: tabs that follow the arrow keys and the address.

const tabs = [...document.querySelectorAll('.tabs [role="tab"]')];
// the address has other names than the elements, or the browser would jump to them, past the tabs
const names = tabs.map((tab) => tab.getAttribute("aria-controls").replace("view-", ""));

export const shown = () => names[tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true")];

/** Shows a view, and says so in the address. */
export function show(name, { focus = false } = {}) {
  const at = Math.max(0, names.indexOf(name));
  tabs.forEach((tab, index) => {
    tab.setAttribute("aria-selected", String(index === at));
    tab.tabIndex = index === at ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).hidden = index !== at;
  });
  if (focus) tabs[at].focus();
  if (location.hash !== `#${names[at]}`) history.replaceState(null, "", `#${names[at]}`);
  document.dispatchEvent(new CustomEvent("viewchange", { detail: names[at] }));
}

/** Takes a view away that has nothing to show. */
export function drop(name) {
  const gone = names.indexOf(name);
  const away = shown() === name;
  tabs[gone].hidden = true;
  tabs.splice(gone, 1);
  names.splice(gone, 1);
  if (away) show(names[0]);
}

export function start() {
  const moves = { ArrowRight: 1, ArrowLeft: -1 };
  tabs.forEach((tab, index) => {
    const name = names[index];
    tab.addEventListener("click", () => show(name));
    tab.addEventListener("keydown", (event) => {
      const ends = { Home: 0, End: tabs.length - 1 };
      const index = tabs.indexOf(tab);
      const to = ends[event.key] ?? (event.key in moves ? (index + moves[event.key] + tabs.length) % tabs.length : null);
      if (to === null) return;
      event.preventDefault();
      show(names[to], { focus: true });
    });
  });
  const follow = () => show(location.hash.slice(1));
  addEventListener("hashchange", () => names.includes(location.hash.slice(1)) && follow());
  follow();
}
